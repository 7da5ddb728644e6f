"""The Common API over HTTP, made of the gateway's OpenAPI document: the stub that the conformance script runs over.
It does not use the library."""

from .connection import *  # noqa: F403  # the names of the API

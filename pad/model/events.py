"""Events of a delegate's contracts, for who wants to know: a node tells them as information objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from jbi_pubsub.core.wire.endpoint import Caller

What = Literal["created", "updated", "removed"]


class Happening(NamedTuple):
    """A publisher or subscriber process (`of` connection), a registration or a subscription (`of` sequence) has come,
    changed, or gone. `uid` as status pages show it; `user` who it is, "" if that is only claimed."""

    of: Literal["connection", "sequence"]
    what: What
    role: Literal["publisher", "subscriber"]
    uid: str
    client: str
    user: str
    type: str = ""


Witness = Callable[[Happening], None]
"""Called under the delegate's lock: it never waits, and never raises."""


def proved(caller: Caller | None) -> str:
    """The user behind a caller, as far as that is certain."""
    return caller.user if caller is not None and not caller.claimed else ""

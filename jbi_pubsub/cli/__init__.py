"""The `jbi` command."""

from .app import codegen_main, lookup_main, main, pad_main, study_main

__all__ = ["codegen_main", "lookup_main", "main", "pad_main", "study_main"]

"""The browser of tests: how it is found and started, and pictures of its pages for people.

A tab costs as much as five of the pages that it opens one after the other: who need not have two has one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this host (apt-get install chromium)"
)


@contextmanager
def browser() -> Iterator[Any]:
    """A headless one, until the context ends."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra test)")
    with sync_api.sync_playwright() as pw:
        started = pw.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


@contextmanager
def browsed(url: str) -> Iterator[tuple[Any, list[str]]]:
    """A page that a browser has opened, and what went wrong in it or asked people."""
    with browser() as started:
        page = started.new_context().new_page()
        page.set_default_timeout(60_000)
        troubles: list[str] = []
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("dialog", lambda d: (troubles.append(f"dialog {d.message}"), d.dismiss()))
        page.goto(url)
        page.get_by_role("heading", level=1).wait_for()
        yield page, troubles


def picture(page: Any, name: str, *, whole: bool = True) -> None:
    """What it looks like, as a file of the folder SCREENSHOTS, if there is one: for people."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=whole)

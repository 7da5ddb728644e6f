"""The archive in the console: a query over the archive of a delegate that is no node, and an object of its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from browsing import browsed, needs_chromium, picture

from jbi_pubsub.web.archivepage import SHOWN

from .test_console import WIDER

pytestmark = [pytest.mark.processes, needs_chromium]
HOSTILE: Final = "<img src=x onerror=alert(1)></script>"
OBJECTS: Final = SHOWN + 10


@pytest.fixture
def address(reached: Callable[..., Any], world: str, start: Callable[..., Any]) -> Callable[..., str]:
    """`address()`: that of a console over a delegate with an archive of OBJECTS reports."""

    def begin(*flags: str) -> str:
        place = reached()
        report = "<r:report xmlns:r='urn:r'><r:n>%d</r:n><r:who>%s</r:who></r:report>"
        objects = [
            ((report % (n, HOSTILE.replace("<", "&lt;"))).encode(), f"payload {n} {HOSTILE}".encode())
            for n in range(OBJECTS)
        ]
        at = "/v1/types/report/1.0/objects?wait=20&validate=false&persist=true"
        assert place.publish(*objects, at=at).status == 201
        lookup = place.federation.lookups[0].address
        where = ("--no-multicast", "--group", world, "--locator", lookup)
        return str(start(*where, "web", "--port", "0", *flags, "--json").fact()["url"])

    return begin


def test_an_archive_is_searched_and_an_object_looked_at_and_deleted(
    address: Callable[..., str], tmp_path: Path
) -> None:
    with browsed(address("--admin")) as (page, troubles):
        page.get_by_role("link", name="Archive").click()
        page.get_by_role("heading", name="Archive", level=1).wait_for()
        said = page.get_by_role("status")
        # When a path, a prefix or a time is wrong; Expect to be told what and where
        for label, wrong, told in (
            ("Predicate", "//n > 107 and", "predicate: an operand is missing, at position 13"),
            ("Predicate", "//r:n > 107", "the prefix 'r' is not bound"),
            ("From", "yesterday", "since: 'yesterday' is not a time"),
            ("Type", "nothing", "no archive has objects of type nothing"),
        ):
            page.get_by_label(label).fill(wrong)
            page.get_by_label(label).press("Enter")
            said.get_by_text(told).wait_for()
            page.get_by_label(label).fill("")
        # When nothing is asked for; Expect the newest, and to be told that there are others
        page.get_by_role("button", name="Search the archives").click()
        said.get_by_text(f"The first {SHOWN} objects").wait_for()
        # When it is asked by type, XPath and time; Expect what a query finds, as text
        for label, text in (("Type", "report"), ("Predicate", "//r:n > 107"), ("Prefixes", "r=urn:r"), ("From", "1h")):
            page.get_by_label(label).fill(text)
        page.get_by_role("button", name="Search the archives").click()
        said.get_by_text("2 objects", exact=True).wait_for()
        assert page.locator("tbody td").nth(3).inner_text() == f"n: 109, who: {HOSTILE}"
        # Expect an object's page to have all of it, and Back the results
        page.locator("tbody a").first.click()
        page.get_by_label("Payload").get_by_text("payload 109").wait_for()
        assert page.locator("pre[aria-label=Payload]").inner_text() == f"payload 109 {HOSTILE}"
        assert "type: report 1.0" in page.locator("pre[aria-label=Facts]").inner_text()
        assert page.locator("img[src=x]").count() == 0
        with page.expect_download() as download:
            page.get_by_role("button", name="Download the payload").click()
        assert Path(download.value.path()).read_bytes() == f"payload 109 {HOSTILE}".encode()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            picture(page, f"object-{width}")
            assert page.evaluate(WIDER) == []
        # When an administrator deletes it; Expect it to be gone after a question, from the results too
        page.get_by_role("button", name="Delete it").click()
        page.get_by_role("button", name="Yes, do it").click()
        said.get_by_text("It was deleted.").wait_for()
        page.reload()
        said.get_by_text("no archive").wait_for()
        page.go_back()
        said.get_by_text("1 object", exact=True).wait_for()
        assert troubles == []


def test_who_only_reads_deletes_nothing(address: Callable[..., str]) -> None:
    with browsed(address()) as (page, _):
        page.goto(page.url.rstrip("/") + "/archive?type=report")
        page.locator("tbody a").first.click()
        page.get_by_label("Facts").get_by_text("report 1.0").wait_for()
        assert page.get_by_role("button", name="Delete it").count() == 0

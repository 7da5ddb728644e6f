"""The page of a node in a real headless browser: `jbi web --admin` beside `jbi node start`, as processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import browsing
import msgspec
import pytest
from browsing import needs_chromium, picture

from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.core.config import ClientSection
from jbi_pubsub.node.admin import NodeProxy
from jbi_pubsub.policy.users import Account, read_accounts, write_accounts

from .test_console import WIDER

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra test)")
pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra web)")

pytestmark = [pytest.mark.processes, needs_chromium]
HOSTILE: Final = "<img src=x onerror=alert(1)></script>"
XSD: Final = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
<xs:element name="Report"><xs:complexType><xs:sequence><xs:element name="n" type="xs:int" jbi:variance="variant"/>
<xs:element name="by" type="xs:string"/></xs:sequence></xs:complexType></xs:element></xs:schema>"""
CLICK_ALL: Final = """names => names.forEach(n => document.querySelector(`[aria-label="${n}"]`).click())"""
RULES: Final = """
[[access]]
user = "root"
action = "*"
allow = true

[[access]]
user = "guest"
action = ["connect", "status", "subscribe", "publish", "query"]
allow = true
"""


class Page:
    """A browser's page, and what it has complained of."""

    def __init__(self, browser: Any, url: str, *, width: int = 1280) -> None:
        self.troubles: list[str] = []
        self.base = url.partition("/enter")[0]
        self.page = browser.new_context().new_page()
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda e: self.troubles.append(str(e)))
        self.page.on("dialog", lambda d: (self.troubles.append(f"dialog {d.message}"), d.dismiss()))
        self.page.goto(url)
        self.page.get_by_role("heading", level=1).wait_for()
        self.page.goto(f"{self.base}/node")
        self.page.get_by_role("heading", name="Node", level=1).wait_for()

    def yes(self) -> None:
        self.page.get_by_role("button", name="Yes, do it").click()

    def told(self, text: str) -> None:
        log = self.page.get_by_role("log")
        try:
            log.get_by_text(text).first.wait_for()
        except sync_api.TimeoutError:
            pytest.fail(f"{text!r} was not said, but {log.inner_text()!r}; {self.troubles}")


@pytest.fixture
def browser() -> Iterator[Any]:
    with browsing.browser() as made:
        yield made


@pytest.mark.row("G-169", "G-171")
def test_a_node_is_administered_in_a_browser_by_administrators_alone(
    start: Callable[..., Any],
    fixtures: Any,
    browser: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    # Given a node with users and rules, an object of a hostile publisher in its archive, and two consoles
    users, policy = tmp_path / "users.txt", tmp_path / "policy.toml"
    write_accounts(users, {name: Account.of(name, f"{name}s") for name in ("root", "guest")})
    policy.write_text(RULES)
    common = ("--no-multicast", "--set", f"policy.users={users}", "--set", f"policy.file={policy}")
    ready = start(
        *common, "--set", "lookup.port=0", "--set", "archive.workers=0", "--set", "archive.reserve=0", "node", "start",
        "--folder", str(tmp_path / "node"), "--name", HOSTILE[:40], "--json",
    ).fact()  # fmt: skip
    seen = ("--locator", ready["lookup"], "web", "--port", "0", "--admin", "--json")
    logins = {n: ("--set", f"client.user={n}", "--set", f"client.password={n}s") for n in ("root", "guest")}
    consoles = {name: start(*common, *login, *seen).fact()["url"] for name, login in logins.items()}
    config = fixtures.test_config()
    config = msgspec.structs.replace(
        config,
        lookup=msgspec.structs.replace(config.lookup, locators=(ready["lookup"],)),
        client=ClientSection(user="root", password="roots"),
    )
    metadata = b"<report><n>1</n><who>%s</who></report>" % HOSTILE.replace("<", "&lt;").encode()
    with PublisherAdapterLight(config, name=HOSTILE) as publisher:
        delegate = publisher.connect_to_delegate("node", HOSTILE[:40])
        uid = publisher.register_publisher(delegate, type_name="report", version="1.0", validate=False, persist=True)
        publisher.publish(uid, metadata, b"payload")
        publisher.flush(60.0)
        # When somebody who is no administrator opens the page; Expect a refusal, and nothing of the node
        guest = Page(browser, consoles["guest"])
        guest.page.get_by_role("status").get_by_text("guest may not administer").wait_for()
        assert HOSTILE not in guest.page.inner_text("main").replace(HOSTILE[:40], "")
        assert guest.page.locator("tbody tr").count() == 0
        guest.page.get_by_role("button", name="Shut the node down").click()
        guest.yes()
        guest.told("Not done: guest may not administer")
        # When an administrator does; Expect who is there, as text
        root = Page(browser, consoles["root"])
        page = root.page
        page.locator("section[aria-label=Connections] td").get_by_text(HOSTILE).first.wait_for()
        page.locator("section[aria-label=Sequences] td").get_by_text("report 1.0").first.wait_for()
        assert page.locator("img[src=x]").count() == 0
        # Expect looking on at a sequence to show what it publishes
        page.get_by_role("button", name=f"Watch {uid}").click()
        root.told(f"Watching {uid}")
        publisher.wait_for_subscribers(uid, 1, 20)
        publisher.publish(uid, metadata, b"seen")
        page.get_by_text("1 objects have come, the last 1 are shown").wait_for()
    # Expect types, users, settings to change, and what is none to be said
    page.get_by_label("Schema (XSD) of a new type").fill(XSD)
    page.get_by_role("button", name="Add it").click()
    root.yes()
    root.told("Type Report 1.0 is there.")
    page.get_by_role("button", name="Remove Report 1.0").click()
    root.yes()
    root.told("Type Report 1.0 is gone.")
    page.get_by_label("Schema (XSD) of a new type").fill("<no schema")
    page.get_by_role("button", name="Add it").click()
    root.yes()
    root.told("Not done: ")
    page.get_by_label("Name", exact=True).fill("carol")
    page.get_by_label("Password").fill("carols")
    page.get_by_role("button", name="Add, or change").click()
    root.yes()
    root.told("carol is a user.")
    # Expect one question at a time, of the node that it names, and the answer to be that question's
    for who in ("guest", "carol"):
        page.get_by_role("button", name=f"Remove {who}").wait_for()
    page.evaluate(CLICK_ALL, ["Remove guest", "Remove carol", "Remove guest"])
    page.get_by_text(f"{HOSTILE[:40]}: Remove user guest?").wait_for()
    root.yes()
    root.told("guest is removed.")
    assert set(read_accounts(users)) == {"root", "carol"}
    page.get_by_label("Value").fill("debug")
    page.get_by_role("button", name="Set it").click()
    root.yes()
    root.told("log.level is debug.")
    page.get_by_label("Log", exact=True).get_by_text("root has set log.level = debug").wait_for()
    page.get_by_label("Value").fill(HOSTILE)
    page.get_by_role("button", name="Set it").click()
    root.yes()
    root.told("Not done: ")
    # Expect it to fit narrow windows too
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)
        picture(page, f"node-{width}")
        assert page.evaluate(WIDER) == []
    # When it is shut down; Expect it to end in order
    page.get_by_role("button", name="Shut the node down").click()
    root.yes()
    root.told("It stops.")
    proxy = NodeProxy(ready["address"], config.security())
    eventually(lambda: not (tmp_path / "node" / "running.json").exists(), timeout=30.0)
    proxy.close()
    assert root.troubles == guest.troubles == []
    assert json.loads((tmp_path / "node" / "identity.json").read_text())["id"] == ready["id"]

"""Login to the console by name and password: who gets a session, for how long, and what it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from browsing import browsed, needs_chromium
from fastapi import WebSocket, WebSocketDisconnect

from jbi_pubsub.core.config import PolicySection, WebSection
from jbi_pubsub.policy.users import FAILURES_MOST, Account, read_accounts, write_accounts
from jbi_pubsub.web.gate import IDLE_SECONDS, SESSIONS_MOST, USER_SESSIONS_MOST
from jbi_pubsub.web.logins import FORM_MOST, LOGIN, LOGOUT
from jbi_pubsub.web.server import WebServer

from .test_server import ask, enter, router

FORM = "application/x-www-form-urlencoded"
PAGE = (Path(__file__).parent.parent.parent / "docs" / "console.md").read_text()
RULES = PAGE.partition("<!-- test: rules -->\n```toml\n")[2].partition("```")[0]


class Place:
    """A console's server, its files, and its time."""

    def __init__(self, config: Any, folder: Path) -> None:
        self.users, self.policy = folder / "users.txt", folder / "policy.toml"
        write_accounts(self.users, {name: Account.of(name, f"{name}s") for name in ("alice", "bob", "mallory")})
        self.policy.write_text(RULES)
        self.now = 0.0
        section = PolicySection(file=str(self.policy), users=str(self.users))
        self.server = WebServer(msgspec.structs.replace(config, web=WebSection(port=0), policy=section))
        self.server.gate._clock = lambda: self.now
        self.server.add(router())

    def log_in(self, user: str, password: str, **headers: str) -> tuple[int, str, Any]:
        body = urlencode({"user": user, "password": password})
        return ask(self.server, LOGIN, "POST", body, Content_Type=FORM, **headers)

    def cookie(self, user: str) -> str:
        status, _, headers = self.log_in(user, f"{user}s")
        assert (status, headers["Location"]) == (303, "/")
        return str(headers["Set-Cookie"].partition(";")[0])

    def stands(self, cookie: str) -> bool:
        return ask(self.server, "/", Cookie=cookie)[0] == 200


@pytest.fixture
def place(fixtures: Any, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        made = Place(fixtures.test_config(), tmp_path)
        stack.callback(made.server.stop)
        made.server.start()
        yield made


def test_a_name_and_its_password_make_a_session_that_logging_out_ends(place: Place) -> None:
    # Given a browser without a session; Expect it to be led to the form, and a program to be refused
    status, _, headers = ask(place.server, "/", Accept="text/html")
    assert (status, headers["Location"]) == (303, LOGIN)
    assert ask(place.server, "/")[0] == 401
    status, page, headers = ask(place.server, LOGIN)
    assert status == 200
    assert 'autocomplete="current-password"' in page
    assert "form-action 'self'" in headers["Content-Security-Policy"]
    # When somebody logs in; Expect a cookie that no script and no other site has
    status, _, headers = place.log_in("alice", "alices")
    assert (status, headers["Location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(headers["Set-Cookie"].split("; "))
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert place.stands(cookie)
    # When he logs out; Expect that session to have ended, and no other
    other = place.cookie("alice")
    assert ask(place.server, LOGOUT, Cookie=other)[0] == 404  # a link does not log out
    status, _, headers = ask(place.server, LOGOUT, "POST", Cookie=cookie)
    assert (status, headers["Location"]) == (303, LOGIN)
    assert not place.stands(cookie)
    assert place.stands(other)
    # Expect the printed address to be good as well, and its session to end by logging out
    token = enter(place.server)
    assert place.stands(token)
    ask(place.server, LOGOUT, "POST", Cookie=token)
    assert not place.stands(token)


def test_who_is_refused_is_told_so_and_counted(place: Place) -> None:
    # Expect a wrong password, a stranger, a user whom no rule lets connect, and nothing at all to be refused
    for user, password in (("alice", "wrong"), ("nobody", "alices"), ("mallory", "mallorys"), ("", "")):
        status, page, headers = place.log_in(user, password)
        assert status == 403
        assert "Not logged in." in page
        assert "Set-Cookie" not in headers
    page = place.log_in("<script>", "x")[1]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert ask(place.server, LOGIN, "POST", b"x" * (FORM_MOST + 1))[0] == 413
    # Expect pages of others to log nobody in
    assert place.log_in("alice", "alices", Origin="http://evil.example")[0] == 403
    assert place.log_in("alice", "alices", Host="evil.example")[0] == 403
    # When a password is guessed again and again; Expect the right one to be refused as well, for a while
    for _ in range(FAILURES_MOST):
        assert place.log_in("bob", "guess")[0] == 403
    assert place.log_in("bob", "bobs")[0] == 403


def test_sessions_of_a_user_are_bounded_and_end(place: Place) -> None:
    # When a user logs in from more browsers than he may have; Expect his oldest session to end, and nobody else's
    other = place.cookie("bob")
    cookies = [place.cookie("alice") for _ in range(USER_SESSIONS_MOST + 1)]
    assert [place.stands(cookie) for cookie in cookies] == [False] + [True] * USER_SESSIONS_MOST
    assert place.stands(other)
    assert USER_SESSIONS_MOST * 2 < SESSIONS_MOST
    # Expect a login to end after its time, though its browser was never silent
    place.now += IDLE_SECONDS - 1
    assert place.stands(other)
    place.now += 2
    assert not place.stands(other)


def test_a_session_ends_with_its_account_and_its_rights(place: Place, eventually: Callable[..., Any]) -> None:
    alice, bob = place.cookie("alice"), place.cookie("bob")
    gate = place.server.gate
    assert [gate.session(each).is_admin for each in (alice, bob, enter(place.server))] == [True, False, True]
    # Given a page of hers that is open
    served = []

    @place.server.app.websocket("/echo")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        with suppress(WebSocketDisconnect):
            while True:
                served.append(await socket.receive_text())
        served.append("ended")

    sync = pytest.importorskip("websockets.sync.client")
    address = f"ws://127.0.0.1:{place.server.port}/echo"
    with sync.connect(address, additional_headers={"Cookie": alice}) as page:
        page.send("hello")
        eventually(lambda: served == ["hello"])
        # When her password is changed; Expect her session to end, and the page's connection with its next word
        write_accounts(place.users, {**read_accounts(place.users), "alice": Account.of("alice", "another")})
        eventually(lambda: not place.stands(alice))
        page.send("more")
        eventually(lambda: served == ["hello", "ended"])
    # When the rules let somebody administer who could not; Expect a new login to be asked for, which has it
    place.policy.write_text(RULES.replace('user = "alice"', 'user = "bob"'))
    eventually(lambda: not place.stands(bob))
    assert gate.session(place.cookie("bob")).is_admin


@pytest.mark.processes
@needs_chromium
def test_a_user_logs_in_and_out_in_a_browser(
    start: Callable[..., Any], world: str, tmp_path: Path, federation: Any
) -> None:
    # Given a console with --admin, and a user whom no rule lets administer
    users, policy = tmp_path / "users.txt", tmp_path / "policy.toml"
    write_accounts(users, {name: Account.of(name, f"{name}s") for name in ("alice", "bob")})
    policy.write_text(RULES)
    where = ("--no-multicast", "--group", world, "--locator", federation.lookups[0].address)
    rules = ("--set", f"policy.users={users}", "--set", f"policy.file={policy}")
    facts = start(*where, *rules, "web", "--port", "0", "--admin", "--json").fact()
    with browsed(facts["url"].partition("/enter")[0]) as (page, troubles):
        for width, user, pages in ((1280, "bob", 0), (390, "alice", 1)):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.url == facts["login"]
            # When he types a wrong password, then the right one, by keyboard alone
            page.keyboard.type(user)
            page.keyboard.press("Tab")
            page.keyboard.type("wrong")
            page.keyboard.press("Enter")
            page.get_by_role("alert").get_by_text("Not logged in.").wait_for()
            page.get_by_label("User").fill(user)
            page.get_by_label("Password").fill(f"{user}s")
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Overview", level=1).wait_for()
            # Expect the pages that he may use, and his name at the way out
            assert page.locator("nav a", has_text="Administration").count() == pages
            page.goto(f"{facts['login'].removesuffix(LOGIN)}/administration")
            page.get_by_role("heading", name="Administration", level=1).wait_for()
            assert page.get_by_role("button", name="Cancel it").count() == pages
            if width < 800:
                page.get_by_role("button", name="Menu").click()
            page.get_by_role("button", name=f"Log out {user}").click()
            page.get_by_role("heading", name="jbi-pubsub console", level=1).wait_for()
        assert troubles == []

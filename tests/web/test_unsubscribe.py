"""Links of mails as people, their mail programs, scanners and others use them, over the console's server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import pytest

from jbi_pubsub.core.config import WebSection
from jbi_pubsub.core.errors import StorageError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.protocol.mail_links import link
from jbi_pubsub.web import unsubscribe as module
from jbi_pubsub.web.federation import Observer
from jbi_pubsub.web.server import WebServer
from jbi_pubsub.web.unsubscribe import (
    ADDRESS_BURST,
    ADDRESSES_MOST,
    BODY_MOST,
    BURST,
    MailLinks,
    RequestLimits,
    observed,
    router,
)

TYPE = "mil.af.rl.jbi.Intel_Imagery"
A, B = "a@example.org", "b@example.org"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PARTS = {"Content-Type": "multipart/form-data; boundary=x1"}
ONE_CLICK = b"List-Unsubscribe=One-Click"
IN_PARTS = b'--x1\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--x1--\r\n'
TOKEN = "A" * 43


@pytest.fixture
def serving(fixtures: Any) -> Iterator[Callable[[MailLinks], WebServer]]:
    """serving(links): the console's server with these."""
    before = set(threading.enumerate())
    with ExitStack() as stack:

        def start(links: MailLinks) -> WebServer:
            server = WebServer(msgspec.structs.replace(fixtures.test_config(), web=WebSection(port=0)))
            stack.callback(server.stop)
            server.add(router(links), session=False)
            server.start()
            return server

        yield start
    assert [t.name for t in threading.enumerate() if t not in before and "mail-link" in t.name] == []


def ask(server: WebServer, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str, Any]:
    """Status, text and headers, as a client gets them who has nothing but the link."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def post(server: WebServer, path: str, body: bytes = ONE_CLICK, kind: str = FORM["Content-Type"]) -> int:
    """The status."""
    return ask(server, "POST", path, body, **{"Content-Type": kind})[0]


class Asked(MailLinks):
    """Servers that answer as they are told, and note what they are asked."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__(lambda: self.refs, Security())
        self.asked: list[tuple[Any, str]] = []
        self.answers(*answers)

    def answers(self, *answers: Exception | None) -> None:
        """A server for each."""
        self.refs = [ServiceRef("", "", (f"127.0.0.1:{n}",)) for n in range(1, len(answers) + 1)]
        self.said = dict(zip((ref.endpoints for ref in self.refs), answers, strict=True))

    def answer(self, ref: ServiceRef, _security: Security, action: str, token: str, *, timeout: float) -> None:
        assert timeout > 0
        self.asked.append((action, token))
        said = self.said[ref.endpoints]
        if said is not None:
            raise said


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """asked(answer, ...): links with servers that answer so."""

    def make(*answers: Exception | None) -> Asked:
        made = Asked(*answers)
        monkeypatch.setattr(module, "follow_link", made.answer)
        return made

    return make


# -- over a real federation ---------------------------------------------------------------------------------------


@pytest.fixture
def mailed(federation: Any, figures: Any, serving: Any, eventually: Any) -> tuple[WebServer, Any, Any]:
    """A web server, and two delegates with a subscription for two recipients: (server, delegates, request)."""
    pads = [federation.pad(), federation.pad("bravo", "paris")]
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A, B))
    eventually(lambda: all([s["uid"] for s in pad.status()["subscriptions"]] == [uid] for pad in pads))
    request = pads[0].delegate.tables.subscriptions["mail", uid].request
    observer = Observer(federation.config, every=0.05)
    observer.start()
    federation.stack.callback(observer.stop)
    links = MailLinks(observed(observer), federation.config.security())
    eventually(lambda: len(observed(observer)()) == 2)
    return serving(links), pads, request


@pytest.mark.parametrize(("body", "kind"), [(ONE_CLICK, FORM), (IN_PARTS, PARTS)])
def test_one_click_unsubscribes_at_all_delegates_and_looking_does_not(
    mailed: Any, body: bytes, kind: dict[str, str]
) -> None:
    # Given a link as it stands in a mail
    server, pads, request = mailed
    path = link("https://x.org", "unsubscribe", request, A).removeprefix("https://x.org")
    # When scanners open it; Expect a page with a button, and nothing else to happen
    for method in ("GET", "HEAD", "GET"):
        status, page, headers = ask(server, method, path, **{"User-Agent": "scanner", "Cookie": "jbi-1=x"})
        assert (status, headers["Set-Cookie"]) == (200, None)
    assert '<form method="post">' in page
    assert request.uid in page
    assert [s["mail_suspended"] for pad in pads for s in pad.status()["subscriptions"]] == [{}, {}]
    # When his mail program posts what RFC 8058 says, without a session, from anywhere; Expect him to be out everywhere
    status, page, _ = ask(server, "POST", path, body, Host="jbi.example.org", Origin="https://mail.example", **kind)
    assert (status, "Unsubscribed" in page) == (200, True)
    gone = {A: "unsubscribed by the recipient"}
    assert [s["mail_suspended"] for pad in pads for s in pad.status()["subscriptions"]] == [gone, gone]
    # When he clicks again, and then the other one does; Expect calm answers, and the end of the subscription
    assert post(server, path) == 200
    assert post(server, link("https://x.org", "unsubscribe", request, B).removeprefix("https://x.org")) == 200
    assert [pad.status()["subscriptions"] for pad in pads] == [[], []]
    status, page, _ = ask(server, "POST", path, ONE_CLICK, **FORM)
    assert (status, "<h1>Ended</h1>" in page) == (410, True)


def test_a_reader_renews_by_his_link(mailed: Any) -> None:
    # Given a lease with a minute left
    server, pads, request = mailed
    for pad in pads:
        lease_id = pad.delegate.tables.subscriptions["mail", request.uid].lease_id
        pad.delegate.tables.leases.landlord._book[lease_id].expires = pad.delegate.tables.clock() + 60.0
    path = link("https://x.org", "renew", request, A).removeprefix("https://x.org")
    # When its page is opened; Expect a button; When that is pressed; Expect a whole lease at each delegate
    assert 'name="Renew" value="Yes"' in ask(server, "GET", path)[1]
    assert post(server, path) == 400, "a click for something else"
    assert [s["lease"] <= 60 for pad in pads for s in pad.delegate.mail.rows()] == [True, True]
    assert post(server, path, b"Renew=Yes") == 200
    assert [s["lease"] > 86_000 for pad in pads for s in pad.delegate.mail.rows()] == [True, True]


# -- what servers answer ------------------------------------------------------------------------------------------

UNKNOWN, BROKEN = UnknownUidError("not here"), StorageError("disk full")


ANSWERS: Final = (
    ((None,), 200, "Unsubscribed"),
    ((UNKNOWN, None), 200, "Unsubscribed"),
    ((None, BROKEN), 200, "If mail still arrives"),
    ((UNKNOWN, UNKNOWN), 410, "Ended"),
    ((UNKNOWN, BROKEN), 503, "Not now"),
    ((), 503, "Not now"),
)


def test_what_the_servers_answer_is_told(asked: Any, serving: Any) -> None:
    links = asked()
    server = serving(links)
    for answers, status, said in ANSWERS:
        links.answers(*answers)
        got, page, headers = ask(server, "POST", f"/unsubscribe?token={TOKEN}", ONE_CLICK, **FORM)
        assert (got, said in page) == (status, True)
        assert bool(headers["Retry-After"]) == (status == 503)


def test_a_server_that_does_not_answer_is_waited_for_in_vain_for_seconds_only(serving: Any) -> None:
    # Given a server that nobody listens at
    links = MailLinks(lambda: [ServiceRef("", "", ("127.0.0.1:9",))], Security())
    assert post(serving(links), f"/unsubscribe?token={TOKEN}") == 503


# -- hostile requests ---------------------------------------------------------------------------------------------


UNCONFIRMED: Final = (
    (b"", FORM["Content-Type"]),
    (b"List-Unsubscribe=Two-Clicks", FORM["Content-Type"]),
    (b"List-Unsubscribe=One-Click&List-Unsubscribe=x", FORM["Content-Type"]),
    (b"&".join([b"a=b"] * 500), FORM["Content-Type"]),
    (b"\xff" * 100, FORM["Content-Type"]),
    (b'{"List-Unsubscribe": "One-Click"}', "application/json"),
    (IN_PARTS.replace(b"One-Click", b"No"), PARTS["Content-Type"]),
    (ONE_CLICK, PARTS["Content-Type"]),
)


def test_a_post_that_does_not_say_so_changes_nothing(asked: Any, serving: Any) -> None:
    links = asked(None)
    server = serving(links)
    assert [post(server, f"/unsubscribe?token={TOKEN}", *each) for each in UNCONFIRMED] == [400] * len(UNCONFIRMED)
    assert post(server, f"/unsubscribe?token={TOKEN}", ONE_CLICK + b"&" * BODY_MOST) == 413
    assert links.asked == []


NO_TOKENS: Final = (
    "", "?token=", "?token=" + "A" * 42, "?token=" + "A" * 30_000, "?token=%00", "?token=..%2f..%2f", "?token=%ff%fe",
    "?token=%3Cscript%3Ealert(1)%3C/script%3E", f"?token={TOKEN}&token=x",
)  # fmt: skip


def test_what_is_no_link_is_a_page_that_repeats_nothing_of_it(asked: Any, serving: Any) -> None:
    links = asked(None)
    server = serving(links)
    for query in NO_TOKENS:
        for method in ("GET", "POST"):
            status, page, headers = ask(server, method, f"/unsubscribe{query}", ONE_CLICK, **FORM)
            assert (status, "script" in page) == (404, False)
            assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert links.asked == []


def test_a_flood_of_wrong_links_is_put_off_and_asks_a_bounded_number_of_times(asked: Any, serving: Any) -> None:
    # Given servers that know none of the links
    links = asked(UNKNOWN)
    server = serving(links)
    # When one address posts twice as many as it may; Expect some to be put off, and as many asked as were not
    answers = [post(server, f"/unsubscribe?token={TOKEN}") for _ in range(2 * ADDRESS_BURST)]
    assert set(answers) == {410, 429}
    assert len(links.asked) == answers.count(410) < 2 * ADDRESS_BURST
    # Expect looking to be free
    assert ask(server, "GET", f"/unsubscribe?token={TOKEN}")[0] == 200


def test_requests_under_way_are_bounded(
    asked: Any, serving: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a server that does not answer yet
    links, held = asked(None), threading.Event()
    answer = links.answer

    def hold(*arguments: Any, **options: Any) -> None:
        answer(*arguments, **options)
        assert held.wait(60.0)

    monkeypatch.setattr(module, "follow_link", hold)
    server, statuses = serving(links), []
    threads = [
        threading.Thread(target=lambda: statuses.append(post(server, f"/unsubscribe?token={TOKEN}"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(links.asked) == module.BUSY_MOST)
    # When one more comes; Expect it to be put off at once, the others to be answered, and then room again
    assert post(server, f"/unsubscribe?token={TOKEN}") == 503
    held.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 4
    assert post(server, f"/unsubscribe?token={TOKEN}") == 200


def test_limits_are_by_address_and_altogether_and_know_a_bounded_number_of_addresses() -> None:
    # Given one address that takes all it may
    limits = RequestLimits(0.0)
    assert [limits.take("192.0.2.1", 0.0) for _ in range(ADDRESS_BURST + 1)].count(False) == 1
    # Expect others to be let through, IPv6 by network, until all together are too many
    assert [limits.take(f"2001:db8::{n:x}", 0.0) for n in range(ADDRESS_BURST + 1)].count(False) == 1
    assert limits.take("2001:db8:0:1::1", 0.0)
    assert [limits.take(f"198.51.100.{n}", 0.0) for n in range(BURST)].count(True) == BURST - 2 * ADDRESS_BURST - 1
    # When time passes; Expect room, and when the clock goes back none to be taken away
    assert limits.take("203.0.113.1", 5.0)
    assert limits.take("203.0.113.2", -1e6)
    # When very many come; Expect the last to be known
    for n in range(2 * ADDRESSES_MOST):
        limits.take(f"10.0.{n >> 8}.{n & 255}", 5.0)
    assert len(limits._each) == ADDRESSES_MOST


@pytest.mark.processes
def test_the_console_takes_links_without_a_session(federation: Any, start: Any, eventually: Any) -> None:
    # Given `jbi web`, whose console asks for a session, and a subscription for two
    pad, subscriber = federation.pad(), federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A, B))
    eventually(lambda: [s["uid"] for s in pad.status()["subscriptions"]] == [uid])
    request = pad.delegate.tables.subscriptions["mail", uid].request
    flags = ("--no-multicast", "--locator", federation.lookups[0].address)
    url = start(*flags, "web", "--port", "0", "--json").fact()["url"]
    at = type("At", (), {"port": int(url.split(":")[2].split("/")[0])})()
    assert ask(at, "GET", "/")[0] == 401
    # When a link is opened and its button pressed; Expect its recipient to be out
    path = link("https://x.org", "unsubscribe", request, A).removeprefix("https://x.org")
    status, page, _ = ask(at, "GET", path)
    assert (status, "<button>Unsubscribe</button>" in page) == (200, True)
    eventually(lambda: post(at, path) == 200)
    assert pad.status()["subscriptions"][0]["mail_suspended"] == {A: "unsubscribed by the recipient"}

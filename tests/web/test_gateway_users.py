"""Users at the gateway: each is who his password says, for servers and rules as for itself."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.policy.users import FAILURES_MOST, Account, PasswordFile, write_accounts
from jbi_pubsub.web import common, gateway, guests, handlers
from jbi_pubsub.web.listing import OPERATIONS
from jbi_pubsub.web.operations import MULTIPART, Operation

TYPE = "/v1/types/report/1.0"
ANY = f"{TYPE}/objects?wait=20&validate=false"
REPORT = b"<report><n>1</n></report>"
RULES = """
[[access]]
user = ["alice", "bob"]
action = ["connect", "subscribe", "status"]
allow = true

[[access]]
user = "alice"
action = ["publish", "query", "persist"]
allow = true
"""


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


ALICE, BOB, MALLORY = basic("alice", "correct horse"), basic("bob", "staple"), basic("mallory", "wrong")


@pytest.fixture
def users(tmp_path: Path) -> str:
    """alice and bob, and mallory, whom no rule names."""
    file = tmp_path / "users.txt"
    said = {"alice": "correct horse", "bob": "staple", "mallory": "wrong"}
    write_accounts(file, {name: Account.of(name, password) for name, password in said.items()})
    return str(file)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.toml"
    file.write_text(RULES)
    return file


def called(it: Any, operation: Operation, **headers: str) -> Any:
    """An operation with some value for whatever it needs."""
    path = operation.path
    for each in operation.parameters:
        path = path.replace(f"{{{each.name}}}", "x")
    needed = [f"{p.name}=1" for p in operation.parameters if p.where == "query" and p.required]
    body = None
    if operation.body == MULTIPART:
        body, headers = REPORT, {**headers, "Content_Type": "application/xml"}
    elif operation.body is not None:
        body, headers = b"{}", {**headers, "Content_Type": "application/json"}
    return it.ask(operation.method, path + ("?" + "&".join(needed) if needed else ""), body, **headers)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_a_policy_that_allows_nothing_refuses_each_operation(denied: Any, operation: Operation) -> None:
    # Given a policy that allows nobody anything; When an operation is called by a user; Expect 403
    said = called(denied, operation, Authorization=ALICE)
    assert (said.status, said.json()["code"]) == (403, "access_denied"), said.body
    # When nobody says who he is; Expect to be asked
    said = called(denied, operation)
    assert (said.status, said.headers["WWW-Authenticate"]) == (401, 'Basic realm="jbi", charset="UTF-8"')


@pytest.fixture(scope="module")
def denied(fixtures: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway of a process whose policy allows nothing. It needs no server."""
    from jbi_pubsub.core.config import PolicySection
    from jbi_pubsub.core.node_sections import GatewaySection

    from .conftest import Reached

    folder = tmp_path_factory.mktemp("denied")
    (folder / "policy.toml").write_text('[[access]]\nuser = "nobody"\naction = "administer"\n')
    write_accounts(folder / "users.txt", {"alice": Account.of("alice", "correct horse")})
    section = PolicySection(file=str(folder / "policy.toml"), users=str(folder / "users.txt"))
    config = msgspec.structs.replace(fixtures.test_config(), gateway=GatewaySection(port=0), policy=section)
    made = gateway.Gateway(config)
    made.start()
    yield Reached(made, None, None, None)
    made.stop()


def test_each_user_acts_under_his_own_name(reached: Callable[..., Any], users: str, policy: Path) -> None:
    # Given a delegate and a gateway with users and rules
    it = reached(users=users, policy=str(policy))
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    # When alice publishes; Expect bob to get it, and the delegate to know them by their names
    xml = {"Content_Type": "application/xml"}
    said = it.ask("POST", f"{ANY}&persist=true", REPORT, Authorization=ALICE, **xml)
    assert said.status == 201, said.body
    assert stream.objects(1) == [REPORT.decode()]
    assert {each["user"] for each in it.delegate.clients()} == {"alice", "bob"}
    assert it.ask("GET", f"{TYPE}/count", Authorization=ALICE).json()["count"] == 1
    # When bob publishes or asks, or who may not even connect comes; Expect 403 of whoever decides it
    for path, body, who, action in (
        (ANY, REPORT, BOB, "publish"),
        (f"{TYPE}/count", None, BOB, "query"),
        ("/v1/types", None, MALLORY, "connect"),
        ("/v1/types/jbi.Event/1.0/subscribe", None, BOB, "subscribe"),
    ):
        said = it.ask("POST" if body else "GET", path, body, Authorization=who, **xml)
        assert (said.status, said.json()["facts"].get("action")) == (403, action), said.body
    stream.close()


def test_a_user_whose_right_to_publish_is_taken_is_told_so(
    reached: Callable[..., Any], users: str, policy: Path, eventually: Callable[..., Any]
) -> None:
    # Given alice, who publishes
    it = reached(archive=False, users=users, policy=str(policy))

    def publish() -> Any:
        return it.ask(
            "POST", f"{TYPE}/objects?validate=false", REPORT, Authorization=ALICE, Content_Type="application/xml"
        )

    assert publish().status == 202
    # When rules take the right from her; Expect what she is told without a registration
    policy.write_text(RULES.replace('"publish", ', ""))
    eventually(lambda: publish().status != 202)
    said = publish()
    assert (said.status, said.json()["code"]) == (403, "access_denied"), said.body
    assert (said.json()["facts"]["action"], said.json()["facts"]["published"]) == ("publish", 0)
    # When she has it again; Expect her to publish
    policy.write_text(RULES)
    eventually(lambda: publish().status == 202)


def test_an_id_of_a_stream_is_its_users_alone(reached: Callable[..., Any], users: str, policy: Path) -> None:
    # Given a stream of bob, who has had one object of two
    it = reached(users=users, policy=str(policy))
    xml = {"Content_Type": "application/xml"}
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    for _ in range(2):
        assert it.ask("POST", ANY, REPORT, Authorization=ALICE, **xml).status == 201
    _, _, last = stream.next()
    key = stream.opened[1]["subscription"]
    stream.close()
    # When alice comes with its id, expect a stream of her own, and nothing else of it
    hers = it.stream(f"{TYPE}/subscribe", Authorization=ALICE, Last_Event_ID=last)
    assert hers.opened[1]["subscription"] != key
    assert [hers.next()[1]["cause"]] == ["missed"]
    hers.close()
    for method, path in (("GET", "/next"), ("GET", "/event"), ("DELETE", "")):
        said = it.ask(method, f"/v1/subscriptions/{key}{path}", Authorization=ALICE)
        assert (said.status, said.json()["code"]) == (404, "unknown_uid")
    # and bob to go on
    again = it.stream(f"{TYPE}/subscribe", Authorization=BOB, Last_Event_ID=last)
    assert again.opened[1]["subscription"] == key
    assert again.objects(1) == [REPORT.decode()]
    again.close()


def test_what_is_not_a_login_is_401(reached: Callable[..., Any], users: str, policy: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    it = reached(archive=False, users=users, policy=str(policy), token=str(token))
    plain = base64.b64encode(b"alice").decode()
    for authorization in (
        "", basic("alice", "wrong"), basic("nobody", "x"), basic("alice", ""), f"Basic {plain}", "Basic ~~~", "Basic",
        "Bearer x", "Digest x", basic("alice", "correct horse")[:-4], basic("al\0ice", "x"), basic("alice", "x" * 2000),
        f"Basic {base64.b64encode(bytes(range(128, 256))).decode()}",
    ):  # fmt: skip
        said = it.ask("GET", "/v1/types", Authorization=authorization)
        assert (said.status, said.json()["code"]) == (401, "access_denied"), (authorization, said.body)
        assert said.headers["WWW-Authenticate"] == 'Basic realm="jbi", charset="UTF-8", Bearer'
    assert it.ask("GET", "/v1/types", Authorization=ALICE).status == 200
    # Expect the token to be the gateway's own right to be here, which no rule gives it
    assert it.ask("GET", "/v1/types", Authorization=f"Bearer {token.read_text().strip()}").status == 403


def test_guessing_is_bounded_by_who_guesses(reached: Callable[..., Any], users: str, policy: Path) -> None:
    it = reached(archive=False, users=users, policy=str(policy))
    assert it.ask("GET", "/v1/types", Authorization=ALICE).status == 200
    # When bob's password is guessed too often; Expect the right one to be refused from there as well, unseen
    for n in range(FAILURES_MOST):
        assert it.ask("GET", "/v1/types", Authorization=basic("bob", str(n))).status == 401
    assert it.ask("GET", "/v1/types", Authorization=BOB).status == 401
    # Expect who is in to stay in, and the delegate to have seen nothing of it
    assert it.ask("GET", "/v1/types", Authorization=ALICE).status == 200
    assert it.delegate.status()["access"]["refused"] == {}


def test_a_user_who_is_none_any_more_is_out_though_a_stream_is_open(
    reached: Callable[..., Any], users: str, policy: Path, eventually: Callable[..., Any]
) -> None:
    # Given a stream of bob's
    it = reached(archive=False, users=users, policy=str(policy))
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    # When his password is another
    write_accounts(Path(users), {"bob": Account.of("bob", "other"), "alice": Account.of("alice", "correct horse")})
    # Expect the stream to end, and the old one to be wrong, the new one right
    eventually(lambda: not it.gateway.guests._guests)
    stream.answer.read()  # to its end
    assert it.ask("GET", "/v1/types", Authorization=BOB).status == 401
    assert it.ask("GET", "/v1/types", Authorization=basic("bob", "other")).status == 200
    stream.close()


def test_a_directory_is_asked_again_about_who_goes_on(
    reached: Callable[..., Any],
    users: str,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    # Given accounts that say nothing by themselves when they change, as in a directory, and bob with a stream
    monkeypatch.setattr(PasswordFile, "holds", lambda *_: True)
    monkeypatch.setattr(guests, "CHECKED_SECONDS", 0.0)
    it = reached(archive=False, users=users, policy=str(policy))
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    # When nobody can say, expect him to stay
    with monkeypatch.context() as away:
        away.setattr(PasswordFile, "check", lambda *_: (_ for _ in ()).throw(WireError("no directory")))
        assert it.ask("GET", "/v1/types", Authorization=BOB).status == 200
    # When his password is another, expect the old one to be wrong, and what he had by it to end, and the new one right
    write_accounts(Path(users), {"bob": Account.of("bob", "other")})
    eventually(lambda: it.ask("GET", "/v1/types", Authorization=BOB).status == 401)
    stream.answer.read()  # to its end
    assert it.ask("GET", "/v1/types", Authorization=basic("bob", "other")).status == 200
    stream.close()


def test_by_the_common_api_a_user_is_who_http_says(reached: Callable[..., Any], users: str, policy: Path) -> None:
    it = reached(archive=False, users=users, policy=str(policy))
    space = 'xmlns="http://gdc4s.com/oim/gemini"'

    def post(path: str, who: str, **body: str) -> Any:
        at = f"/v1/capi/connections{path}"
        return it.ask("POST", at, msgspec.json.encode(body), Content_Type="application/json", Authorization=who)

    # Given connections of two users; Expect neither to be the other, nor to reach what is the other's
    mine = post("", ALICE, name="c").json()["connection"]
    for said in ("<user>bob</user>", "<user>alice</user><password>correct horse</password>"):
        refused = post(f"/{mine}/authenticate", ALICE, document=f"<credentials {space}>{said}</credentials>")
        assert (refused.status, refused.json()["code"]) == (403, "capi_permission_denied"), refused.body
    assert post(f"/{mine}/connect", BOB).json()["code"] == "capi_connection"
    assert post(f"/{mine}/connect", ALICE).status == 204
    yours = post("", BOB, name="c").json()["connection"]
    assert post(f"/{yours}/connect", BOB).status == 204
    for connection, who in ((mine, ALICE), (yours, BOB)):  # both subscribe, each as himself, in one process
        asked = {"kind": "subscriber", "type": "report", "version": "1.0"}
        made = post(f"/{connection}/sequences", who, **asked)
        assert made.status == 201, made.body
        at = f"/v1/capi/sequences/{made.json()['sequence']}/activate"
        assert it.ask("POST", at, Authorization=who).status == 204
    assert {each["user"] for each in it.delegate.clients()} == {"alice", "bob"}


def test_users_that_do_nothing_go_for_others_and_one_too_many_is_told(
    reached: Callable[..., Any], users: str, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "GUESTS_MOST", 1)
    it = reached(archive=False, users=users, policy=str(policy))
    assert it.ask("GET", "/v1/types", Authorization=ALICE).status == 200
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    said = it.ask("GET", "/v1/types", Authorization=ALICE)
    assert (said.status, said.json()["code"]) == (429, "back_pressure")
    stream.close()


def test_a_request_says_once_who_makes_it(reached: Callable[..., Any], users: str, policy: Path) -> None:
    it = reached(archive=False, users=users, policy=str(policy))
    for logins, status in (([ALICE], 200), ([ALICE, MALLORY], 400), ([ALICE, ALICE], 400)):
        connection = http.client.HTTPConnection("127.0.0.1", it.gateway.port, timeout=60)
        connection.putrequest("GET", "/v1/types")
        for each in logins:
            connection.putheader("Authorization", each)
        connection.endheaders()
        with contextlib.closing(connection):
            assert connection.getresponse().status == status


def test_a_user_has_one_place_however_he_writes_his_login(
    reached: Callable[..., Any], users: str, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "GUESTS_MOST", 2)
    it = reached(archive=False, users=users, policy=str(policy))
    # Given subscriptions of one user, whose login is written otherwise each time: they would be users' that are busy
    said = ALICE.partition(" ")[2]
    opened = [
        it.ask("POST", f"{TYPE}/subscriptions", Authorization=each)
        for each in (ALICE, f"basic {said}", f"BASIC  {said}", f"Basic {said} ")
    ]
    assert [each.status for each in opened] == [201] * 4, [each.body for each in opened]
    # When another user comes; Expect room, and what the first has opened to be his by any of them
    assert it.ask("GET", "/v1/types", Authorization=BOB).status == 200
    for each in opened:
        assert it.ask("DELETE", each.headers["Location"], Authorization=f"bAsIc {said}").status == 204


def test_a_user_who_may_not_connect_any_more_is_out_though_a_stream_is_open(
    reached: Callable[..., Any], users: str, policy: Path, eventually: Callable[..., Any]
) -> None:
    it = reached(archive=False, users=users, policy=str(policy))
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    # When rules let him connect no more; Expect his stream to end, and his place to be free
    policy.write_text(RULES.replace('["alice", "bob"]', '"alice"'))
    eventually(lambda: not it.gateway.guests._guests)
    stream.answer.read()  # to its end
    assert it.ask("GET", "/v1/types", Authorization=BOB).status == 403
    stream.close()


def test_who_is_out_does_not_wait_for_what_others_have_left(
    reached: Callable[..., Any],
    users: str,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    # Given a connection that alice has left, and whose end waits for a delegate
    it = reached(archive=False, users=users, policy=str(policy))
    began, release = threading.Event(), threading.Event()
    destroy = common.Common._destroyConnection

    def wait_and_destroy(*given: Any) -> None:
        began.set()
        release.wait(60.0)
        destroy(*given)

    monkeypatch.setattr(common.Common, "_destroyConnection", wait_and_destroy)
    monkeypatch.setattr(common, "IDLE_SECONDS", 0.0)
    said = it.ask("POST", "/v1/capi/connections", b'{"name":"c"}', Content_Type="application/json", Authorization=ALICE)
    assert said.status == 201, said.body
    assert began.wait(60.0)
    stream = it.stream(f"{TYPE}/subscribe", Authorization=BOB)
    # When bob's account is gone meanwhile; Expect him to be out all the same
    write_accounts(Path(users), {"alice": Account.of("alice", "correct horse")})
    try:
        eventually(lambda: ("bob", "staple") not in it.gateway.guests._guests)
    finally:
        release.set()
    stream.close()


def test_slow_bodies_of_a_user_keep_no_other_out(
    reached: Callable[..., Any], policy: Path, users: str, eventually: Callable[..., Any]
) -> None:
    # Given a user who begins 400 bodies, from two hosts
    it = reached(archive=False, policy=str(policy), users=users)
    head = f"POST {ANY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {ALICE}\r\nContent-Type: text/xml\r\n"
    address = "127.0.0.1", it.gateway.port
    with contextlib.ExitStack() as stack:
        for number in range(400):
            host = f"127.0.0.{2 + number % 2}"
            made = stack.enter_context(socket.create_connection(address, 20.0, source_address=(host, 0)))
            made.sendall(f"{head}Content-Length: 9\r\n\r\n<".encode())
        # Expect the user to have a share of the places, and others to be let in, from the same host as well
        eventually(lambda: len(it.gateway.connections) >= 192)
        assert [it.ask("GET", "/v1/types", Authorization=BOB).status for _ in range(20)] == [200] * 20
        eventually(lambda: {each.place.peer for each in list(it.gateway.connections._open.values())} <= {"user alice"})
        assert len(it.gateway.connections) <= 192


def test_types_that_a_user_may_not_have_are_not_named_to_him(
    reached: Callable[..., Any], users: str, policy: Path, eventually: Callable[..., Any]
) -> None:
    # Given two types with archived objects, of which bob may have neither published nor read one
    policy.write_text(
        '[[access]]\nuser = "alice"\n\n[[access]]\nuser = "bob"\naction = ["connect", "query"]\ntype = "report"\n'
        '\n[[access]]\naddress = "127.0.0.0/8"\nuser = ""\naction = ["connect", "peer"]\n'
    )
    it = reached(users=users, policy=str(policy))
    for name in ("report", "secret"):
        at = f"/v1/types/{name}/1.0/objects?wait=20&validate=false&persist=true"
        assert it.ask("POST", at, REPORT, Content_Type="application/xml", Authorization=ALICE).status == 201
    eventually(lambda: b"secret" in it.ask("GET", "/v1/types", Authorization=ALICE).body)
    eventually(lambda: b"report" in it.ask("GET", "/v1/types", Authorization=BOB).body)
    # Expect him to be told of what is his to have alone: by a list, a query of all, and of what is not there
    asked = [
        it.ask("GET", path, Authorization=BOB)
        for path in ("/v1/types", "/v1/types/*/*/query", "/v1/types/sekret/1.0/query", "/v1/types/*/*/count")
    ]
    assert [each["type"] for each in asked[0].json()["types"]] == ["report"]
    assert len(asked[1].json()["objects"]) == 1, asked[1].body
    assert asked[2].status in (403, 404)
    assert not any(b"secret" in each.body for each in asked)


def test_rules_that_change_end_the_subscriptions_of_who_has_no_name(
    reached: Callable[..., Any], policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a gateway without users, whose own rules let each address subscribe, and a stream and a subscription there
    monkeypatch.setattr(handlers, "ALIVE_SECONDS", 0.2)
    rules = '[[access]]\naddress = "127.0.0.1"\naction = ["connect", "subscribe"]\n'
    policy.write_text(rules)
    it = reached(archive=False, rules=str(policy))
    stream = it.stream(f"{TYPE}/subscribe")
    opened = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    assert it.ask("GET", f"{opened}?timeout=0").status == 200
    # When they let nobody subscribe; Expect the stream to end, and neither to go on
    policy.write_text(rules.replace(', "subscribe"', ""))
    stream.answer.read()  # to its end
    assert it.ask("GET", f"{opened}?timeout=0").status == 403
    connection = it.ask("POST", "/v1/capi/connections", b'{"name":"c"}', Content_Type="application/json").json()[
        "connection"
    ]
    assert it.ask("POST", f"/v1/capi/connections/{connection}/connect").status == 204
    for kind, status in (("publisher", 201), ("subscriber", 403)):
        body = msgspec.json.encode({"kind": kind, "type": "report", "version": "1.0"})
        asked = it.ask("POST", f"/v1/capi/connections/{connection}/sequences", body, Content_Type="application/json")
        assert asked.status == status, asked.body
    assert it.ask("GET", f"{TYPE}/subscribe", Last_Event_ID=f"{stream.opened[1]['subscription']}-0").status == 403
    stream.close()

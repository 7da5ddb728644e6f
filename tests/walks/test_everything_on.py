"""A deployment with everything on: certificates, rules, signed objects, mail that can be unsubscribed, the console.

Servers are processes of their own; publishers and subscribers live in this one, each with a certificate of its own.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from aiosmtpd.controller import Controller

from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight
from jbi_pubsub.cli.app import run
from jbi_pubsub.core.config import LeaseSection, PolicySection, TlsSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.services import fetch_status
from jbi_pubsub.web.federation import Observer

TYPE = "mil.af.rl.jbi.Intel_Imagery"
TRACKS = b"<tracks><track><lat>33.34</lat></track><track><lat>40.0</lat></track></tracks>"
WEST = "//track[lat<35]"
BASE = "https://127.0.0.1:8160"
SERVERS, PEOPLE = ("lookup", "alpha", "bravo", "scout"), ("camera", "anna", "bert", "otto", "eve", "desk")

RULES = f"""
[[access]]
user = ["lookup", "alpha", "bravo"]
action = ["connect", "peer"]
[[access]]
user = ["camera", "scout"]
action = ["connect", "publish"]
type = "{TYPE}"
[[access]]
user = "anna"
action = "subscribe"
[[access]]
user = ["bert", "otto"]
action = "subscribe"
type = "{TYPE}"
where = "ImageDescriptor/LocationCoord/lat < 35"
[[access]]
user = "otto"
action = "mail"
recipients = "example.org"
[[access]]
user = ["anna", "bert", "otto", "eve", "desk"]
action = "connect"
[[access]]
user = "desk"
action = ["status", "administer"]
"""
"""Eve may connect, and subscribe to nothing."""


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for all, as `jbi certs` makes them."""
    folder = tmp_path_factory.mktemp("issued") / "certs"
    assert run(["certs", "init", str(folder)]) == 0
    for name in (*SERVERS, *PEOPLE):
        address = ["--address", "127.0.0.1"] if name in (*SERVERS, "desk") else []
        assert run(["certs", "issue", name, "--folder", str(folder), *address]) == 0
    return folder


SUBSCRIBER = """
import json, sys, threading
import msgspec
from jbi_pubsub import Config, SubscriberAdapter

out = open(FILE, "a", buffering=1)

class Ear:
    def arrived(self, _uid, obj):
        platform = obj.platform
        out.write(json.dumps({"by": platform.verified, "of": platform.registration, "number": platform.sequence,
                              "metadata": obj.metadata.decode(), "payload": obj.payload.decode()}) + "\\n")
    def lost(self, _uid, notice):
        out.write(json.dumps({"cause": notice.cause, "count": notice.count}) + "\\n")

with SubscriberAdapter(msgspec.json.decode(CONFIG, type=Config), name=NAME) as adapter:
    for options in OPTIONS:
        uid = adapter.register_subscriber(**options, listener=None if "recipients" in options else Ear())
        print(json.dumps({"uid": uid}), flush=True)
    sys.stdin.readline()
"""


class Subscriber:
    """Somebody's process, which writes down what it is told."""

    def __init__(self, process: Any, file: Path) -> None:
        self.process, self._file = process, file
        self.uid: str = process.fact()["uid"]

    def _rows(self) -> list[dict[str, Any]]:
        lines = self._file.read_text().splitlines(keepends=True) if self._file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What came, in order."""
        return [row for row in self._rows() if "by" in row]

    @property
    def lost(self) -> dict[str, int]:
        """What was told as lost, by cause."""
        rows = [row for row in self._rows() if "cause" in row]
        return {cause: sum(r["count"] for r in rows if r["cause"] == cause) for cause in {r["cause"] for r in rows}}

    @property
    def texts(self) -> list[str]:
        """What came: who has signed it, and the latitude in its metadata."""
        return [f"{row['by']} {re.findall('<lat>(.*?)</lat>', row['metadata'])[0]}" for row in self.objects]

    def is_in_order(self) -> bool:
        """Of each registration later numbers alone: nothing twice."""
        last: dict[str, int] = {}
        for row in self.objects:
            if row["number"] <= last.get(row["of"], 0):
                return False
            last[row["of"]] = row["number"]
        return True


class Deployment:
    """Certificates and rules in a folder, and parties under them."""

    def __init__(self, folder: Path, config: Config, begin: Callable[..., Any], stack: ExitStack) -> None:
        self.folder, self._begin, self.stack = folder, begin, stack
        self.rules = folder / "policy.toml"
        self.rules.write_text(RULES)
        self.mail: dict[str, object] = {}
        lease = LeaseSection(publisher=4.0, subscriber=4.0, lookup=4.0)
        self._config = msgspec.structs.replace(config, policy=PolicySection(file=str(self.rules)), lease=lease)
        self.address = self.server("lookup", "lookup", "--ephemeral").fact()["address"]
        lookup = msgspec.structs.replace(self._config.lookup, locators=(self.address,))
        self._config = msgspec.structs.replace(self._config, lookup=lookup)

    def config(self, name: str) -> Config:
        """Of somebody."""
        tls = TlsSection(folder=str(self.folder / "certs" / name), sign=True, verify="require")
        return msgspec.structs.replace(self._config, tls=tls)

    def flags(self, name: str) -> list[str]:
        """The same for the command line."""
        config = self.config(name)
        more = {"policy.file": self.rules, "tls.sign": "true", "tls.verify": "require", **self.mail}
        more |= {"lease.publisher": 1, "lease.subscriber": 2, "lease.lookup": 1, "lookup.probe": 0.3}
        flags = ["--tls", config.tls.folder, "--no-multicast", "--group", config.lookup.groups[0]]
        for locator in config.lookup.locators:
            flags += ["--locator", locator]
        return [*flags, *(word for key, value in more.items() for word in ("--set", f"{key}={value}"))]

    def server(self, name: str, *arguments: str, port: str = "0") -> Any:
        """A process of that name's."""
        return self._begin(*self.flags(name), *arguments, "--port", port, "--json")

    def pad(self, name: str = "alpha", *, port: str = "0") -> tuple[Any, str]:
        """A delegate with a state, and its address."""
        process = self.server(name, "pad", "alpha", "rome", "--state", str(self.folder / f"{name}.db"), port=port)
        return process, process.fact()["address"]

    def camera(self) -> PublisherAdapterLight:
        """A publisher by delegates."""
        return self.stack.enter_context(PublisherAdapterLight(self.config("camera"), name="camera"))

    def scout(self) -> PublisherAdapter:
        """A peer publisher."""
        return self.stack.enter_context(PublisherAdapter(self.config("scout")))

    def subscriber(self, name: str, **options: Any) -> Subscriber:
        """One of the people, in a process of his own."""
        file, config = self.folder / f"{name}.jsonl", msgspec.json.encode(self.config(name))
        given = f"CONFIG = {config!r}\nNAME, FILE, OPTIONS = {name!r}, {str(file)!r}, [{options!r}]\n"
        return Subscriber(self._begin(script=given + SUBSCRIBER), file)

    def certs(self, *arguments: str) -> None:
        """`jbi certs`."""
        assert run(["certs", *arguments, "--folder", str(self.folder / "certs")]) == 0

    def status(self, address: str) -> dict[str, Any]:
        """What a server says to who may look."""
        return fetch_status(ServiceRef("", "status", (address,)), self.config("desk").security(), timeout=60.0)

    def shown(self, capsys: pytest.CaptureFixture[str], *command: str, codes: tuple[int, ...] = (0,)) -> Any:
        """What a command shows to who may look, as JSON."""
        capsys.readouterr()
        assert run([*self.flags("desk"), *command, "--json"]) in codes, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)


@pytest.fixture
def deployment(issued: Path, tmp_path: Path, fixtures: Any, start: Callable[..., Any]) -> Iterator[Deployment]:
    shutil.copytree(issued, tmp_path / "certs")
    for folder in (tmp_path / "certs").iterdir():
        folder.chmod(0o700)
    with ExitStack() as stack:
        yield Deployment(tmp_path, fixtures.test_config(), start, stack)


def is_even(status: dict[str, Any]) -> bool:
    """The account of a delegate without mail (`Delegate.status`)."""
    known = sum(n for cause, n in status["lost"].items() if cause not in ("missed", "sequence_gap"))
    accounted = status["suppressed"] + status["delivered"] + known + status["queued"] + status["in_flight"]
    return bool(status["matched"] == accounted)


def mail_is_even(row: dict[str, Any]) -> bool:
    """The account of an e-mail subscription (docs/mail.md)."""
    left = sum(a not in row["mail_suspended"] for a in row["recipients"])
    accounted = row["mailed"] + sum(row["lost"].values()) + row["mail_waiting"] * left
    return bool(row["matched"] * len(row["recipients"]) == accounted)


@pytest.mark.processes
def test_each_gets_what_he_may_over_restarts_and_a_second_delegate(
    deployment: Deployment, figures: Any, eventually: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a delegate, a publisher there, a peer publisher, and three who subscribe: one of them may not
    process, address = deployment.pad()
    camera, scout = deployment.camera(), deployment.scout()
    at = camera.connect_to_delegate("alpha", "rome")
    registration = camera.register_publisher(at, figures.schema, figures.figure_1)
    own = scout.register_publisher(figures.schema, figures.metadata(publisher="999th"))
    people = {name: deployment.subscriber(name, type_name=TYPE) for name in ("anna", "eve")}
    people["bert"] = deployment.subscriber("bert", type_name=TYPE, payload_filter=WEST)
    assert camera.wait_for_subscribers(registration, 2, 20.0) >= 2
    assert scout.wait_for_subscribers(own, 2, 20.0) >= 2
    told: dict[str, list[str]] = {"anna": [], "bert": []}

    def publish_and_see() -> None:
        for lat in ("33.3", "40.1"):
            camera.publish(registration, figures.metadata(lat=lat), TRACKS)
            scout.publish(own, figures.metadata(lat=lat, publisher="999th"), TRACKS)
        camera.flush(30.0)
        told["anna"] += ["camera 33.3", "camera 40.1", "scout 33.3", "scout 40.1"]
        told["bert"] += ["camera 33.3", "scout 33.3"]
        for name, texts in told.items():
            eventually(lambda n=name, t=texts: len(people[n].objects) >= len(t), what=lambda n=name: people[n].texts)
            assert sorted(people[name].texts) == sorted(texts)
            assert people[name].is_in_order()
        # Expect the filter's cut for one, the whole payload for the other, and all accounts to be even
        assert {row["payload"] for row in people["anna"].objects} == {TRACKS.decode()}
        assert all("33.34" in r["payload"] and "40.0" not in r["payload"] for r in people["bert"].objects)
        eventually(lambda: is_even(deployment.status(address)), what=lambda: deployment.status(address))
        eventually(lambda: is_even(scout.status()), what=scout.status)

    publish_and_see()
    assert deployment.status(address)["bad_signature"] == 0
    # When the delegate is restarted in order, and is killed and started again
    for how in (signal.SIGTERM, signal.SIGKILL):
        process.signal(how)
        assert process.wait() == (0 if how is signal.SIGTERM else -9)
        process, again = deployment.pad(port=address.rpartition(":")[2])
        assert again == address
        publish_and_see()
    # When there is a second one, and the first is killed
    second, other = deployment.pad("bravo")
    eventually(lambda: other in str(deployment.shown(capsys, "services")))
    process.signal(signal.SIGKILL)
    process.wait()
    address = other
    publish_and_see()
    # Expect who may not to have got nothing, and to know it
    assert people["eve"].objects == []
    assert "refused" in people["eve"].lost
    assert sum(people["anna"].lost.values()) == sum(people["bert"].lost.values()) == 0
    # Expect who may look to see all of it
    for command in (("status",), ("top", "--once", "--every", "0.1")):
        told = deployment.shown(capsys, *command, codes=(0, 1))  # 1: the one that was killed is listed yet
        assert other in str(told), command
    observer = Observer(deployment.config("desk"), every=0.1)
    observer.start()
    try:
        eventually(lambda: sum(bool(s.facts) for s in observer.snapshot().servers) >= 3, what=observer.snapshot)
        assert observer.snapshot().problem == ""
    finally:
        observer.stop()
    assert second.returncode is None


@pytest.mark.processes
def test_rules_and_certificates_change_under_way_and_nobody_else_notices(
    deployment: Deployment, figures: Any, eventually: Any
) -> None:
    # Given a publisher, one who gets all, and one who gets the south
    _, address = deployment.pad()
    camera = deployment.camera()
    registration = camera.register_publisher(
        camera.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    people = {name: deployment.subscriber(name, type_name=TYPE, payload_filter=WEST) for name in ("anna", "bert")}
    assert camera.wait_for_subscribers(registration, 2, 20.0) == 2

    def publish(*lats: str) -> None:
        for lat in lats:
            camera.publish(registration, figures.metadata(lat=lat), TRACKS)
        camera.flush(60.0)

    def has(name: str, *lats: str) -> None:
        texts = [f"camera {lat}" for lat in lats]
        eventually(lambda: people[name].texts == texts, what=lambda: (people[name].texts, people[name].lost))

    publish("33.1", "40.1")
    has("anna", "33.1", "40.1")
    has("bert", "33.1")
    # When the publisher's certificate, and the delegate's, are renewed; Expect everything to go on
    before = deployment.status(address)["tls"]
    deployment.certs("renew", "camera", "alpha", "--days", "30")
    eventually(lambda: deployment.status(address)["tls"] != before)
    publish("33.2", "40.2")
    has("anna", "33.1", "40.1", "33.2", "40.2")
    has("bert", "33.1", "33.2")
    # When the rules give bert the north instead
    rule = narrowed_by(deployment.status(address))
    deployment.rules.write_text("# the north\n" + RULES.replace("lat < 35", "lat > 35"))
    eventually(lambda: narrowed_by(deployment.status(address)) != rule)
    publish("33.3", "40.3")
    has("anna", "33.1", "40.1", "33.2", "40.2", "33.3", "40.3")
    has("bert", "33.1", "33.2", "40.3")
    # When anna's certificate is revoked; Expect her to get nothing any more, and him all as before
    deployment.certs("revoke", "anna")
    eventually(lambda: len(deployment.status(address)["sessions"]) == 1)
    publish("33.4", "40.4")
    has("bert", "33.1", "33.2", "40.3", "40.4")
    has("anna", "33.1", "40.1", "33.2", "40.2", "33.3", "40.3")
    status = deployment.status(address)
    assert is_even(status), status
    assert status["bad_signature"] == 0
    assert all(person.is_in_order() for person in people.values())
    # When the publisher's is revoked; Expect its registration to end, and no object of it to come
    deployment.certs("revoke", "camera")
    eventually(lambda: deployment.status(address)["registrations"] == [])
    assert [row["name"] for row in deployment.status(address)["sessions"]] == ["bert"]
    assert sum(people["bert"].lost.values()) == 0


def narrowed_by(status: dict[str, Any]) -> list[str]:
    """The rules that narrow what stands at a delegate."""
    return sorted(row["narrowed_by"] for row in status["subscriptions"])


class AnyPort(Controller):  # type: ignore[misc]  # not annotated
    """A mail server on a free port."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


class Post:
    """A mail server's mind: what it has taken."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, str]] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802  # aiosmtpd's
        self.mails.append((envelope.rcpt_tos[0], envelope.content.decode()))
        return "250 OK"

    def to(self, recipient: str) -> list[str]:
        """The latitudes in his mails; the same mail again, as after a kill, counts once."""
        mine = {re.findall(r"Message-ID: (.*)", text)[0]: text for to, text in self.mails if to == recipient}
        return [re.findall(r"<lat>(.*?)</lat>", text)[0] for text in mine.values()]

    def token(self, recipient: str) -> str:
        """Of the link in his last mail."""
        text = [text for to, text in self.mails if to == recipient][-1]
        return str(re.findall(r"unsubscribe\?token=([\w-]+)", text.replace("\r\n ", ""))[0])


@pytest.mark.processes
def test_mail_of_the_south_until_a_click_a_kill_and_a_revoked_certificate(
    deployment: Deployment, figures: Any, eventually: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given somebody's e-mail subscription for two, narrowed by a rule and with a filter, and the console
    post = Post()
    controller = AnyPort(post, hostname="127.0.0.1", port=0)
    controller.start()
    deployment.stack.callback(controller.stop)
    deployment.mail = {
        "mail.host": "127.0.0.1", "mail.port": controller.port, "mail.unsubscribe": BASE, "mail.retry_seconds": 0.1
    }  # fmt: skip
    process, address = deployment.pad()
    camera = deployment.camera()
    registration = camera.register_publisher(
        camera.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    recipients = ["a@example.org", "b@example.org"]
    otto = deployment.subscriber("otto", type_name=TYPE, recipients=recipients, payload_filter=WEST)
    web = deployment.server("desk", "web").fact()["url"]
    camera.wait_for_subscribers(registration, 1, 20.0)

    def publish(*lats: str) -> None:
        for lat in lats:
            camera.publish(registration, figures.metadata(lat=lat), TRACKS)
        camera.flush(60.0)

    def row() -> dict[str, Any]:
        [found] = deployment.status(address)["subscriptions"]
        assert mail_is_even(found), found
        return dict(found)

    publish("33.1", "40.1")
    eventually(lambda: len(post.mails) == 2, what=lambda: (post.mails, row()))
    assert all("40.0" not in text for _, text in post.mails)
    # When one of them clicks; Expect the other one alone to get what comes then, after a kill as well
    authority = deployment.folder / "certs" / "desk" / "ca.pem"
    eventually(lambda: click(web, post.token(recipients[0]), authority) == 200)  # 503: it has yet to find the delegate
    eventually(lambda: recipients[0] in row()["mail_suspended"])
    otto.process.say("end")
    otto.process.wait()
    publish("33.2", "40.2")
    eventually(lambda: post.to(recipients[1]) == ["33.1", "33.2"], what=lambda: post.mails)
    eventually(lambda: row()["mail_waiting"] == 0)
    process.signal(signal.SIGKILL)
    process.wait()
    process, _ = deployment.pad(port=address.rpartition(":")[2])
    publish("33.3", "40.3")
    eventually(lambda: post.to(recipients[1])[-1] == "33.3", what=lambda: post.mails)
    assert post.to(recipients[0]) == ["33.1"]
    eventually(lambda: row()["mail_waiting"] == 0)
    assert row()["mail_suspended"] == {recipients[0]: "unsubscribed by the recipient"}
    assert row()["narrowed_by"]
    assert recipients[1] in str(deployment.shown(capsys, "subscriptions"))
    # When its owner's certificate is revoked while the delegate is away; Expect no further mail
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    deployment.certs("revoke", "otto")
    deployment.pad(port=address.rpartition(":")[2])
    eventually(lambda: deployment.status(address)["subscriptions"] == [])
    publish("33.4")
    assert post.to(recipients[1]) == ["33.1", "33.2", "33.3"]
    assert deployment.status(address)["mail"]["queued"] == 0


def click(web: str, token: str, authority: Path) -> int:
    """The answer to what mail programs do (RFC 8058)."""
    connection = http.client.HTTPSConnection(
        urlsplit(web).netloc, timeout=10.0, context=ssl.create_default_context(cafile=str(authority))
    )
    try:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", f"/unsubscribe?token={token}", "List-Unsubscribe=One-Click", kind)
        return connection.getresponse().status
    finally:
        connection.close()

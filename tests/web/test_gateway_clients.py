"""Clients of the gateway in other languages, and those that are made of its document alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jbi_pubsub import __version__
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.web.listing import OPERATIONS
from jbi_pubsub.web.operations import OperationTable

TOP = Path(__file__).parents[2]
CLIENTS = TOP / "examples" / "clients"
JAVASCRIPT = TOP / "clients" / "javascript"
CONFORMANCE = TOP / "tests" / "capi" / "conformance.py"


def test_the_document_is_that_of_the_operations() -> None:
    kept = json.loads((TOP / "docs" / "openapi.json").read_text())
    assert kept == OperationTable(OPERATIONS).document(__version__), "jbi gateway --document > docs/openapi.json"


@pytest.mark.row("G-143")
def test_each_class_of_error_has_its_code_and_a_code_its_class() -> None:
    from jbi_pubsub.web.problem import codes, error_of, problem, status_of

    kinds, waiting = set[type[JbiError]](), [JbiError]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        waiting += kind.__subclasses__()
    ours = {kind for kind in kinds if kind.__module__.startswith(("jbi_pubsub.core.errors", "jbi_pubsub.capi"))}
    told = {code: status for code, status, _ in codes()}
    assert {kind.code for kind in ours} == set(told)
    for kind in ours:
        said = problem(kind("what", hint="how", number=1))
        assert type(error_of(said)) is kind
        assert (said.status, said.detail, said.hint, said.facts) == (status_of(kind), "what", "how", {"number": 1})
        assert told[kind.code] == said.status


@pytest.fixture
def node(start: Callable[..., Any], world: str, tmp_path: Path) -> str:
    """Lookup service, delegate with an archive, and gateway as processes: where it is."""
    locator = start("lookup", "--port", "0", "--json").fact()["address"]
    at = ("--locator", locator, "--set", "archive.reserve=0")
    start(
        *at, "pad", "alpha", "rome", "--archive", f"{tmp_path}/archive", "--types", f"{tmp_path}/types", "--json"
    ).fact()
    url = start(*at, "gateway", "--port", "0", "--json").fact()["url"]
    os.environ["JBI_LOOKUP_LOCATORS"] = locator
    return str(url)


@pytest.fixture(autouse=True)
def _environment() -> Any:
    yield
    os.environ.pop("JBI_LOOKUP_LOCATORS", None)


@pytest.mark.row("G-11", "G-26")
@pytest.mark.processes
def test_stubs_of_the_document_alone_publish_subscribe_and_query(node: str, tmp_path: Path) -> None:
    # Given a program that has nothing but the standard library and the document
    program = f"""
import sys, time
sys.path.insert(0, {str(CLIENTS)!r})
from api import Api
assert not any(name.startswith("jbi_pubsub") for name in sys.modules)
api = Api({node!r})
events = api.subscribe(type="report", version="1.0", predicate="//n>1")
assert next(events)[0] == "open"
objects = [(b"<report><n>%d</n></report>" % n, b"payload") for n in (1, 2)]
ids = api.publishObjects(type="report", version="1.0", validate=False, persist=True, wait=20, objects=objects)["ids"]
kind, found, _ = next(events)
assert (kind, found["id"]) == ("object", ids[1]), found
answer = api.queryObjects(type="report", version="1.0", order="newest")
assert [each["id"] for each in answer["objects"]] == ids[::-1], answer
assert api.getPayload(object=ids[0]) == b"payload"
assert api.countObjects(type="report", version="1.0")["count"] == 2
alone = b"<report><n>3</n></report>"
(other,) = api.publishObjects(type="report", version="1.0", validate=False, wait=20, body=alone)["ids"]
kind, found, _ = next(events)
assert (kind, found["id"], found["metadata"]) == ("object", other, "<report><n>3</n></report>"), found
until = time.monotonic() + 20  # what lookup services say is used for a second
while {{"type": "report", "version": "1.0"}} not in api.listTypes()["types"]:
    assert time.monotonic() < until
    time.sleep(0.05)
try:
    api.subscribe(type="report", version="1.0", predicate="///")
except api.error("predicate") as exc:
    assert exc.problem["status"] == 422 and exc.problem["facts"]["argument"] == "predicate"
else:
    raise AssertionError("a bad predicate was taken")
print("done")
"""
    # When / Expect
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", ""), done.stderr


@pytest.mark.row("G-11", "G-138")
@pytest.mark.processes
def test_a_javascript_client_publishes_subscribes_and_queries(node: str) -> None:
    if (javascript := shutil.which("node")) is None:
        pytest.skip("there is no Node.js here")
    client = [javascript, str(JAVASCRIPT / "client.mjs")]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*client, *arguments], capture_output=True, text=True, timeout=60)

    arguments = ["subscribe", node, "report", "1.0", "//n>1", "1"]
    with subprocess.Popen([*client, *arguments], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["kind"] == "open"
        for n in (1, 2):
            said = run("archive", node, "report", "1.0", f"<report><n>{n}</n></report>", "pay")
            assert said.returncode == 0, said.stderr
        found = json.loads(following.stdout.readline())
        assert (found["kind"], found["metadata"], found["payload_base64"]) == (
            "object",
            "<report><n>2</n></report>",
            "cGF5",
        )
        assert following.wait() == 0
    asked = run("query", node, "report", "1.0")
    assert asked.returncode == 0, asked.stderr
    lines = asked.stdout.splitlines()
    assert [json.loads(line)["metadata"] for line in lines] == [f"<report><n>{n}</n></report>" for n in (1, 2)]
    refused = run("query", node, "report", "1.0", "///")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert refused.stderr.startswith("predicate: ")
    assert not refused.stderr.endswith(". \n")
    # And what can't be: too few words, and nobody there
    assert [run("publish", node, *few).returncode for few in ((), ("report",), ("report", "1.0"))] == [2, 2, 2]
    away = run("query", "http://127.0.0.1:1", "report", "1.0")
    assert away.returncode == 1
    assert away.stderr.startswith("no answer from http://127.0.0.1:1 (is the gateway running?): ")


@pytest.mark.processes
def test_a_javascript_client_queries_all_pages(node: str) -> None:
    if (javascript := shutil.which("node")) is None:
        pytest.skip("there is no Node.js here")
    # Given more objects than a page has
    program = f"""
import sys
sys.path.insert(0, {str(CLIENTS)!r})
from api import Api
objects = [(b"<report><n>%d</n></report>" % n, b"") for n in range(250)]
Api({node!r}).publishObjects(type="report", version="1.0", validate=False, persist=True, wait=20, objects=objects)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    # When / Expect
    client = [javascript, str(JAVASCRIPT / "client.mjs")]
    asked = subprocess.run([*client, "query", node, "report", "1.0"], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    found = [json.loads(line)["metadata"] for line in asked.stdout.splitlines()]
    assert found == [f"<report><n>{n}</n></report>" for n in range(250)]


class ProxyHandler(BaseHTTPRequestHandler):
    """A proxy whose gateway is away."""

    heard: ClassVar[list[str]] = []

    def do_GET(self) -> None:  # the base's names
        self.heard.append(self.headers["Authorization"])
        self.send_response(502)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>Bad Gateway</html>")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.processes
def test_a_javascript_client_says_who_its_user_is_and_that_a_proxy_has_answered() -> None:
    if (javascript := shutil.which("node")) is None:
        pytest.skip("there is no Node.js here")
    with HTTPServer(("127.0.0.1", 0), ProxyHandler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}"
        done = subprocess.run(
            [javascript, str(JAVASCRIPT / "client.mjs"), "query", url, "report", "1.0"],
            capture_output=True, text=True, timeout=60,
            env={**os.environ, "JBI_CLIENT_USER": "zoë", "JBI_CLIENT_PASSWORD": "a:b"},
        )  # fmt: skip
        proxy.shutdown()
    assert (done.returncode, done.stderr) == (1, f"status 502 Bad Gateway from {url}, but not from a gateway\n")
    assert [base64.b64decode(each.removeprefix("Basic ")).decode() for each in ProxyHandler.heard] == ["zoë:a:b"]


@pytest.mark.processes
def test_a_javascript_client_goes_on_when_the_gateway_restarts(
    node: str, start: Callable[..., Any], tmp_path: Path
) -> None:
    if (javascript := shutil.which("node")) is None:
        pytest.skip("there is no Node.js here")
    # Given one that subscribes by a gateway of its own
    at = ("--locator", os.environ["JBI_LOOKUP_LOCATORS"])
    gateway = start(*at, "gateway", "--port", "0", "--json")
    url = gateway.fact()["url"]
    client = [javascript, str(JAVASCRIPT / "client.mjs")]
    following = [*client, "subscribe", url, "report", "1.0", "", "1"]
    with subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None
        assert json.loads(reading.stdout.readline())["kind"] == "open"
        # When that is killed, and is back some time later
        gateway.end(kill=True)
        with pytest.raises(subprocess.TimeoutExpired):
            reading.wait(2.0)
        start(*at, "gateway", "--port", url.rpartition(":")[2], "--json").fact()
        # Expect it to have said so, to be there again, and to get what is published
        said = [json.loads(reading.stdout.readline())]
        while said[-1]["kind"] == "again":
            said.append(json.loads(reading.stdout.readline()))
        assert len(said) > 1
        assert said[-1]["kind"] == "open"
        lost = json.loads(reading.stdout.readline())
        assert (lost["kind"], lost["cause"], lost["count"]) == ("lost", "missed", 0)
        words = ("publish", node, "report", "1.0", "<report><n>1</n></report>")
        subprocess.run([*client, *words], capture_output=True, timeout=60, check=True)
        assert [json.loads(line)["kind"] for line in reading.stdout] == ["object"]
        assert reading.wait(60.0) == 0


@pytest.mark.processes
def test_the_example_of_the_javascript_package_runs_as_it_is_packed(node: str, tmp_path: Path) -> None:
    npm, javascript = shutil.which("npm"), shutil.which("node")
    if npm is None or javascript is None:
        pytest.skip("npm, which packs the JavaScript client, is not here")
    # Given the package as `npm pack` makes it, unpacked where a program looks for packages
    packed = subprocess.run(
        [npm, "pack", "--json", "--offline", "--pack-destination", str(tmp_path)],
        cwd=JAVASCRIPT, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "HOME": str(tmp_path), "npm_config_update_notifier": "false"},
    )  # fmt: skip
    (told,) = json.loads(packed.stdout)
    names = {each["path"] for each in told["files"]}
    assert names == {"README.md", "client.mjs", "index.d.mts", "index.mjs", "package.json"}
    place = tmp_path / "node_modules" / told["name"]
    place.mkdir(parents=True)
    with tarfile.open(tmp_path / told["filename"]) as archive:
        for name in names:
            (place / name).write_bytes(archive.extractfile(f"package/{name}").read())  # type: ignore[union-attr]
    # When its README's example runs
    example = (JAVASCRIPT / "README.md").read_text().partition("```javascript\n")[2].partition("```")[0]
    (tmp_path / "example.mjs").write_text(example)
    done = subprocess.run(
        [javascript, "example.mjs", node], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    # Expect
    assert (done.returncode, done.stdout, done.stderr) == (0, "<report><n>2</n></report>\n", "")


@pytest.mark.row("G-25")
@pytest.mark.processes
def test_the_sample_client_publishes_subscribes_and_queries(node: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(CLIENTS / "sample.py"), *arguments], capture_output=True, text=True, timeout=60
        )

    arguments = ["subscribe", "report", "1.0", "--predicate", "//n>1", "--count", "1"]
    sample = [sys.executable, str(CLIENTS / "sample.py")]
    with subprocess.Popen([*sample, *arguments], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "subscribed\n"
        ids = []
        for n in (1, 2):
            said = run(
                "--node", "alpha", "rome", "publish", "report", "1.0", f"<report><n>{n}</n></report>", "--persist"
            )
            assert said.returncode == 0, said.stderr
            ids.append(said.stdout.strip())
        assert following.stdout.readline() == f"{ids[1]} '<report><n>2</n></report>' 0\n"
        assert following.wait() == 0
    for how in ((), ("--distributed", "5000")):
        lines = run("query", "report", "1.0", *how).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ids
    for wrong in (("one", "<report/>"), ("1.0", "<report/>", "--payload", "/nowhere")):
        refused = run("publish", "report", *wrong)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), refused.stderr


@pytest.mark.row("G-26")
@pytest.mark.processes
def test_the_conformance_script_runs_over_http_unchanged(node: str) -> None:
    # Given the script, and a stub that is made of the document
    environment = {**os.environ, "GATEWAY": node, "PYTHONPATH": str(TOP / "tests" / "oracles")}
    # When
    done = subprocess.run(
        [sys.executable, str(CONFORMANCE), "capi_http.connection.ConnectionManager"],
        capture_output=True, text=True, timeout=110, env=environment,
    )  # fmt: skip
    # Expect
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 25
    assert all(line.startswith("ok ") for line in lines)

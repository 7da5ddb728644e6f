"""`jbi dissect`: a capture of a real exchange for people and programs, and faults in a line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode, packed
from jbi_pubsub.network.emulator import NetworkEmulator
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.message import MessageForm, NodeMessage, blocks
from jbi_pubsub.trust.seal import DatagramSeal, shared_key

from .capture_files import pcap, udp
from .emulated import nodes, own

PAIR = """
[segment.pair]
loss = 0.2
[segment.pair.member]
alpha = { group = "239.192.1.1:47001" }
bravo = { group = "239.192.1.2:47001" }
"""


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """said(argument, ...) is exit code, output and errors of `jbi dissect`."""

    def command(*arguments: object) -> tuple[int, str, str]:
        code = run(["dissect", *map(str, arguments)])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A publication of two blocks, and rubbish."""
    message = NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, bytes(150), bytes(16), expiration=5_000)
    data = [
        packed(each._replace(number=number, footer=each.footer and each.footer._replace(epoch=2, serial=number)))
        for number, each in enumerate(blocks(message, MessageForm(block=100)), 1)
    ]
    path = tmp_path / "nodes.pcap"
    path.write_bytes(pcap(map(udp, [*data, b"JN rubbish", b"of others"])))
    return path


@pytest.mark.row("G-188")
def test_a_real_exchange_has_nothing_malformed_and_its_loss_is_told(
    said: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    # Given all that a node has heard over a network that loses a fifth
    heard: list[bytes] = []
    receive = UdpLink.receive

    def recording(self: UdpLink, sock: Any) -> list[bytes]:
        found = receive(self, sock)
        if self.status()["group"] == group:
            heard.extend(found)
        return found

    topology = own(PAIR)
    group = topology.segment["pair"].member["bravo"].group.partition(":")[0]
    monkeypatch.setattr(UdpLink, "receive", recording)
    with NetworkEmulator(topology, seed=2), nodes(topology) as both:
        alpha, bravo = both["alpha"], both["bravo"]
        eventually(lambda: alpha.network.peers() and bravo.network.peers())
        for number in range(200):
            alpha.say(b"%d" % number + bytes(2_000))
        eventually(lambda: len(bravo.heard) == 200)
    (tmp_path / "real.pcap").write_bytes(pcap(map(udp, heard)))

    # When it is dissected, expect nothing malformed, all messages, and that loss
    code, out, err = said(tmp_path / "real.pcap", "--statistics", "--json")
    assert (code, err) == (0, "")
    counts = json.loads(out)["statistics"]
    assert counts["malformed"] == {}
    assert counts["kinds"]["publication"]["messages"] == 200
    assert {"announcement", "request"} <= set(counts["kinds"])
    assert counts["repairs"] > 20
    sender = max(counts["senders"], key=lambda each: each["datagrams"])
    assert 0.1 <= sender["loss"] <= 0.3


def test_each_datagram_is_a_line(said: Callable[..., tuple[int, str, str]], capture: Path) -> None:
    code, out, err = said(capture)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split(maxsplit=2)[2] == (
        "127.0.0.1:47001 > 239.192.1.1:47001  138 B  publication reliable 2/2, number 2 of 00000000, "
        "serial 2 of 00000000/2/0, 5 s left, message of 150 B complete"
    )
    assert lines[2].endswith("MALFORMED: shorter than a header")
    assert "datagrams\t3 (336 B) in 0.2 s" in lines
    assert "publication\t2\t326\t0\t1" in lines

    # Those of a kind alone, so many at most, malformed ones alone
    for flags, shown in ((("--kind", "query"), 0), (("-n", "1"), 1), (("--malformed",), 1)):
        _, out, _ = said(capture, *flags, "--json")
        *datagrams, last = map(json.loads, out.splitlines())
        assert (len(datagrams), last["statistics"]["datagrams"]) == (shown, 3)


def test_bytes_are_explained(said: Callable[..., tuple[int, str, str]], capture: Path) -> None:
    code, out, _ = said(capture, "--explain", "2")
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert rows[:3] == [
        ["offset", "bytes", "field", "value"], ["0", "4a4e", "magic", "'JN'"], ["2", "01", "version", "1"]
    ]  # fmt: skip
    assert ["8", "00000002", "block", "2"] in rows
    _, out, _ = said(capture, "--explain", "2", "--json")
    found = json.loads(out)
    assert found["bytes"][0]["field"] == "magic"
    assert found["datagrams"][0]["message"] == {"size": 150}
    code, _, err = said(capture, "--explain", "4")
    assert (code, err.count("\n")) == (2, 1)


def test_it_reads_what_comes_from_a_pipe(
    said: Callable[..., tuple[int, str, str]], capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(capture.read_bytes())))
    _, out, _ = said("-", "--json")
    assert len(out.splitlines()) == 4


def test_faults_are_a_line(said: Callable[..., tuple[int, str, str]], tmp_path: Path, capture: Path) -> None:
    (tmp_path / "text").write_text("no capture")
    for file, why in ((tmp_path / "text", "a capture"), (tmp_path / "none", "No such file"), (tmp_path, "directory")):
        code, out, err = said(file)
        assert (code, out) == (2, "")
        assert why in err
    # What is cut off is told, with what came before
    capture.write_bytes(capture.read_bytes()[:-5])
    code, out, _ = said(capture)
    assert code == 0
    assert "capture\tit ends within a packet" in out.splitlines()


def test_a_key_opens_what_is_sealed(said: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    # Given a sealed datagram, and the file with the secret of its network
    secret = tmp_path / "network.key"
    secret.write_text("a" * 64)
    secret.chmod(0o600)
    [block] = blocks(NodeMessage(DatagramKind.QUERY, DatagramMode.UNRELIABLE, b"\x01"), MessageForm())
    data = packed(block._replace(number=1))
    (tmp_path / "sealed.pcap").write_bytes(pcap([udp(DatagramSeal(shared_key("a" * 64), bytes(16)).seal(data))]))
    # Expect its body with that, and the header without, or with another
    body = [json.loads(said(tmp_path / "sealed.pcap", "--key", secret, "--json")[1].splitlines()[0])["message"]["body"]]
    assert body == [1]
    assert "message" not in json.loads(said(tmp_path / "sealed.pcap", "--json")[1].splitlines()[0])
    secret.write_text("b" * 64)
    assert "sealed with another key" in said(tmp_path / "sealed.pcap", "--key", secret)[1]
    secret.chmod(0o644)
    assert said(tmp_path / "sealed.pcap", "--key", secret)[0] == 2
    # Expect none to be made where there is none
    assert said(tmp_path / "sealed.pcap", "--key", tmp_path / "none")[0] == 2
    assert not (tmp_path / "none").exists()

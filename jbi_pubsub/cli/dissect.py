"""`jbi dissect`: what nodes have said to each other, from a capture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from jbi_pubsub.core.errors import ConfigurationError

from .options import FILE, JsonArguments, argument, command, flag, option, repeated
from .show import Column, as_json, cut, printable, show_facts, show_table, sized

if TYPE_CHECKING:
    from jbi_pubsub.network.captures import Capture
    from jbi_pubsub.network.dissection import Dissector, ExplainedField

BODY_MOST: Final = 300
"""Characters of a body in a line for people."""
KINDS: Final = (
    *("request", "sequence", "publication", "assistance", "offer", "accepted", "query", "result", "announcement"),
    *("stream", "key"),
)


class _Dissect(JsonArguments):
    file: Path = argument(type=FILE)
    kinds: tuple[str, ...] = repeated("Only that kind; repeatable.", "--kind", type=click.Choice(KINDS))
    malformed: bool = flag("Only malformed ones.")
    count: int | None = option("Show at most that many; all are counted.", "-n", "--limit", type=click.IntRange(0))
    key: Path | None = option("File with the secret of the network, to decrypt.", type=FILE)
    statistics: bool = flag("Only counts.")
    explain: int | None = option("Explain the bytes of that packet.", metavar="NUMBER", type=click.IntRange(1))


@command(None, _Dissect)
def dissect(given: _Dissect) -> None:
    """Read a capture (pcap, pcapng; - for stdin) of the datagrams between nodes, and count them.

    Each datagram is a line: its fields, and the body of each message that it completes, assembled and decompressed.
    Without the network's key only the header of encrypted ones is readable. Packet numbers are those of the capture.

    \b
    tcpdump -i lo -w nodes.pcap udp
    jbi dissect nodes.pcap
    jbi dissect nodes.pcap --kind request --kind announcement
    jbi dissect nodes.pcap --statistics
    jbi dissect nodes.pcap --key network.key
    jbi dissect nodes.pcap --explain 12
    tcpdump -i lo -w - udp | jbi dissect - --json
    """
    with _opened(given.file) as file:
        capture = _capture(given.file, file)
        if given.explain is not None:
            _explain(given, capture)
        else:
            _dissect(given, capture)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Raises ConfigurationError."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as exc:
        raise ConfigurationError(f"capture {path}: {exc.strerror}", hint="tcpdump -w FILE makes one") from exc
    with file:
        yield file


def _capture(path: Path, file: BinaryIO) -> Capture:
    """Raises ConfigurationError, which names the file."""
    from jbi_pubsub.network.captures import Capture  # here: `jbi --help` starts faster without

    try:
        return Capture(file)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{path}: {exc.message}", hint=exc.hint) from exc


def _dissector(given: _Dissect) -> Dissector:
    """Raises ConfigurationError, StorageError."""
    from jbi_pubsub.network.dissection import Dissector

    if given.key is None:
        return Dissector()
    if not given.key.is_file():
        raise ConfigurationError(f"{given.key}: there is no such file", hint="Name the file of [network.NAME] key")
    from jbi_pubsub.network.sealing import opener_of
    from jbi_pubsub.subscriber.owner import user_secret

    return Dissector(opener=opener_of(user_secret(str(given.key), "the key of a network", "--key")))


def _dissect(given: _Dissect, capture: Capture) -> None:
    dissector, shown, begun = _dissector(given), 0, 0.0
    for captured in capture:
        for fields in dissector.add(captured):
            begun = begun or captured.at
            is_wanted = ("malformed" in fields or not given.malformed) and (
                not given.kinds or fields.get("kind") in given.kinds
            )
            if not given.statistics and is_wanted and (given.count is None or shown < given.count):
                shown += 1
                given.tell(fields, _line(fields, captured.at - begun))
    packets = {name: count for name, count in capture.counts.items() if count}
    counts = {"statistics": dissector.statistics() | {"packets": packets, "trouble": capture.trouble}}
    given.tell(counts, "") if given.as_json else _show(counts["statistics"], is_alone=given.statistics)


def _line(fields: dict[str, Any], seconds: float) -> str:
    """A datagram for people."""
    line = f"{fields['packet']:6} {seconds:11.6f}  {fields['from']} > {fields['to']}  {sized(fields['size'])}"
    if "kind" in fields:
        line += f"  {fields['kind']} {fields['mode']} {fields['block']}/{fields['total']}"
        line += f", number {fields['number']} of {fields['sender']}"
        if footer := fields.get("footer"):
            log = f"{fields['origin'][:8]}/{footer['epoch']}/{footer['stream']}"
            line += f", serial {footer['serial']} of {log}" if footer["serial"] else ""
            line += f", {footer['expiration'] / 1000:g} s left"
        line += f", {fields['seal']}" if "seal" in fields else ""
        hops = [f"hops {fields['hops']}"] if fields["hops"] else []
        line += "".join(f", {each}" for each in (*hops, *fields["flags"]))
    if "malformed" in fields:
        return f"{line}  MALFORMED: {printable(fields['malformed'])}"
    message = fields.get("message")
    if message is not None and fields["total"] > 1:
        line += f", message of {sized(message['size'])} complete"
    if message is not None and "body" in message:
        line += f"\n{'':20}{cut(printable(as_json(message['body'])), BODY_MOST)}"
    return line


def _show(counts: dict[str, Any], *, is_alone: bool) -> None:
    if not is_alone:
        click.echo()
    malformed = ", ".join(f"{count} {printable(why)}" for why, count in counts["malformed"].items())
    others = [f"{count} {printable(why)}" for why, count in counts["packets"].items() if why != "packets"]
    others.append(f"{counts['other']} of others")
    facts = [
        ("packets", f"{counts['packets'].get('packets', 0)} ({', '.join(others)})"),
        ("datagrams", f"{counts['datagrams']} ({sized(counts['bytes'])}) in {counts['seconds']:g} s"),
        ("repairs", f"{counts['repairs']} ({counts['repair_share']:.1%})"),
        ("sealed", str(counts["sealed"])),
        ("malformed", malformed or "none"),
        ("incomplete", str(counts["incomplete"])),
    ]
    if counts["trouble"]:
        facts.append(("capture", counts["trouble"]))
    show_facts(facts, title="capture")
    click.echo()
    names = ("datagrams", "bytes", "repairs", "messages")
    columns = [Column("kind"), *(Column(name, right=True) for name in names)]
    show_table(columns, [(kind, *(each[name] for name in names)) for kind, each in counts["kinds"].items()])
    click.echo()
    heads = ("sender", "start", "to", "datagrams", "lost", "loss", "doubled")
    columns = [Column(head, right=head not in ("sender", "to")) for head in heads]
    show_table(columns, [tuple(each[head] for head in heads) for each in counts["senders"]])


def _explain(given: _Dissect, capture: Capture) -> None:
    """Show the bytes of a packet, field by field. Raises ConfigurationError."""
    from jbi_pubsub.network.dissection import explained

    dissector = _dissector(given)
    for captured in capture:
        found = list(dissector.add(captured))  # those before it as well: its message may need them
        if captured.number == given.explain and found:
            _show_explained(given, explained(captured.data), found)
            return
    raise ConfigurationError(
        f"packet {given.explain} of the capture is not a datagram between nodes", hint="`jbi dissect FILE` shows those"
    )


def _show_explained(given: _Dissect, rows: list[ExplainedField], found: list[dict[str, Any]]) -> None:
    if given.as_json:
        given.tell({"bytes": [row._asdict() for row in rows], "datagrams": found}, "")
        return
    columns = [Column("offset", right=True), Column("bytes", long=True), Column("field"), Column("value", long=True)]
    show_table(columns, rows)
    for fields in found:
        click.echo(f"\n{_line(fields, 0.0)}")

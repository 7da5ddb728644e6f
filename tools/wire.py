"""Formats of the wire: calls that servers export, and the values that go to another process.

    python tools/wire.py    # writes tools/wire.txt anew

A test compares that file with the code. Programs of two versions that have the same numbers understand each other, as
docs/upgrade.md promises. So a format that changes needs a new number, unless each version understands the other one.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterable, Iterator
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import ErrorReport
from jbi_pubsub.core.info_object import Head, LossNotice
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.wire.ref import PROTOCOL
from jbi_pubsub.core.wire.stream_socket import Hello
from jbi_pubsub.hla.rti import SERVICES
from jbi_pubsub.lookup.item import EventDiagnostic, ServiceEvent
from jbi_pubsub.network.bodies import NodeAnnouncement, RequestBody
from jbi_pubsub.network.datagram import VERSION
from jbi_pubsub.node.bodies import NodeBody, PersistenceBody
from jbi_pubsub.node.streams import StreamBody
from jbi_pubsub.policy.space import LqmReport, PolicyNews
from jbi_pubsub.protocol.deliveries import Heard
from jbi_pubsub.protocol.replies import QueryEnd, Taken

FILE: Final = Path(__file__).with_suffix(".txt")
PACKAGE: Final = FILE.parent.parent / "jbi_pubsub"
STREAMED: Final = (ErrorReport, EventDiagnostic, GrantedQos, Head, Heard, Hello, LossNotice, LqmReport, PolicyNews,
                   QueryEnd, ServiceEvent, Taken)  # fmt: skip
"""Values that go over the wire outside calls."""
BETWEEN_NODES: Final = (NodeAnnouncement, NodeBody, PersistenceBody, RequestBody, StreamBody)
TOLD: Final = """formats of the wire have changed:
{changes}
If programs of the version before understand the new ones, and the other way round, as with a new call, or a field that
is left out where it has its default (omit_defaults): write the file anew, python tools/wire.py. Otherwise first raise
PROTOCOL in core/wire/ref.py, or VERSION in network/datagram.py, and say so in CHANGELOG.md: once for a release."""


def calls() -> Iterator[tuple[str, list[Any]]]:
    """Exported calls with the names of their arguments, and the types of these and of the answer."""
    for file in sorted(Path(each) for each in glob(f"{PACKAGE}/**/*.py", recursive=True)):  # noqa: PTH207  # through links
        if "    @exported\n" not in file.read_text():
            continue
        module = import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
        for name, holder in inspect.getmembers(module, inspect.isclass):
            for method, function in vars(holder).items():
                if holder.__module__ == module.__name__ and getattr(function, "__exported__", False):
                    hints = typing.get_type_hints(function, include_extras=True)
                    hints.pop("caller", None)
                    said = ", ".join(f"{argument}: {_told(type_)}" for argument, type_ in hints.items())
                    yield f"{name}.{method} ({said})", list(hints.values())


def formats() -> list[str]:
    """All of them, a line each."""
    exported = list(calls())
    types = [*STREAMED, *(type_ for _, types in exported for type_ in types)]
    services = [
        f"{name} ({', '.join(check.__name__.strip('_') for check in each.checks)}), {each.required} required"
        for name, each in SERVICES.items()
    ]
    return [
        f"# protocol {PROTOCOL}: calls", *sorted(line for line, _ in exported),
        "# services of an RTI", *sorted(services), "# values", *_values(types),
        f"# datagrams {VERSION}", *_values(BETWEEN_NODES),
    ]  # fmt: skip


def _told(type_: Any) -> str:
    return json.dumps(_plain(msgspec.json.schema_components([type_], ref_template="{name}")[0][0]), sort_keys=True)


def _values(types: Iterable[Any]) -> list[str]:
    _, found = msgspec.json.schema_components(types, ref_template="{name}")
    plain = {name: _plain(each) for name, each in found.items()}
    return sorted(f"{name} {json.dumps(each, sort_keys=True)}" for name, each in plain.items() if each)


def _plain(schema: Any) -> Any:
    """Without texts for readers, and without fields that may come and go: those with defaults of what is not strict."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    fields = schema.get("properties", {})
    if fields and schema.get("additionalProperties", True):
        return {name: _plain(fields[name]) for name in schema["required"]}
    plain = {name: _plain(each) for name, each in schema.items() if name not in ("description", "properties", "title")}
    return plain | ({"properties": {name: _plain(each) for name, each in fields.items()}} if fields else {})


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in formats()))

"""A client of the Common API, to be read and changed. From the command line:

    python sample.py publish   report 1.0 '<report><n>1</n></report>' --payload picture.png
    python sample.py subscribe report 1.0 --predicate '//n>0' --count 3
    python sample.py query     report 1.0 --predicate '//n>0'                # the archive of the node
    python sample.py query     report 1.0 --distributed 5000                 # all archives, within 5 s

It goes to any node that jbi.toml or JBI_* lead to; `--node NAME LOCATION` names one. Each object is a line: its id, its
metadata, the bytes of its payload. Exit codes: 0 done, 1 the platform refused (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from jbi_pubsub.capi import CapiException, Connection, ConnectionManager, InfoObject, TimeoutException

NAMESPACE = "http://gdc4s.com/oim/gemini"
TURN = 500
"""ms that a call waits at a time: so Ctrl-C is heard."""


def main() -> int:
    """Do what the command line says."""
    arguments = parsed()
    try:
        with connected(arguments.node) as connection:
            arguments.run(connection, arguments)
    except CapiException as exc:
        print(exc, file=sys.stderr)  # what is wrong, and how to mend it
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


@contextmanager
def connected(node: list[str] | None) -> Iterator[Connection]:
    """A connection, from connect() to destroyConnection(), which hands over what was published."""
    descriptor = ""  # any node
    if node is not None:
        name, location = map(escape, node)
        descriptor = (
            f'<connectionDescriptor xmlns="{NAMESPACE}"><name>{name}</name><location>{location}</location>'
            "</connectionDescriptor>"
        )
    manager = ConnectionManager()
    connection = manager.createConnection("sample", descriptor)
    try:
        connection.connect()
        yield connection
    finally:
        manager.destroyConnection(connection)


def publish(connection: Connection, arguments: argparse.Namespace) -> None:
    """One object. A type without a schema is published if nothing is validated."""
    sequence = connection.createPublisherSequence(arguments.type, arguments.version)
    sequence.setValidationAttribute(True, arguments.validate)  # well-formed in any case
    if arguments.persist:
        sequence.setPersistenceAttribute(True)
    sequence.activateSequence()
    payload = Path(arguments.payload) if arguments.payload else None  # it is read when it is published
    io = connection.createInfoObject(arguments.type, arguments.version, payload, arguments.metadata)
    print(sequence.publishInfoObject(io))
    connection.destroySequence(sequence)  # waits until the node has it


def subscribe(connection: Connection, arguments: argparse.Namespace) -> None:
    """Objects as they come, until there were `--count`."""
    sequence = connection.createSubscriberSequence(arguments.type, arguments.version)
    if arguments.predicate:
        sequence.setSequencePredicate(predicate(arguments.predicate))
    sequence.activateSequence()
    print("subscribed", flush=True)  # from now on nothing is missed
    left = arguments.count
    while left != 0:
        try:
            show(sequence.getNext(TURN))
        except TimeoutException:
            continue  # none yet
        left -= 1


def query(connection: Connection, arguments: argparse.Namespace) -> None:
    """Objects that an archive, or all of them, have."""
    sequence = connection.createQuerySequence(arguments.type, arguments.version)
    if arguments.predicate:
        sequence.setSequencePredicate(predicate(arguments.predicate))
    sequence.activateSequence()
    if arguments.distributed:
        sequence.executeDistributedQuery(arguments.distributed)
    else:
        sequence.executeQuery()
    while found := sequence.getNext(100, 60_000):  # [] is the end
        for io in found:
            show(io)


def predicate(expression: str) -> str:
    """As the API takes it."""
    return (
        "<predicate><predicateName/><predicateType>XPath</predicateType>"
        f"<predicateInstance>{escape(expression)}</predicateInstance></predicate>"
    )


def show(io: InfoObject) -> None:
    """As one line of harmless characters."""
    print(io.getInfoObjectID(), ascii(io.getMetadata()), len(io.getPayload()), flush=True)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", nargs=2, metavar=("NAME", "LOCATION"), help="instead of any node")
    commands = parser.add_subparsers(required=True)
    for run in (publish, subscribe, query):
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("type")
        command.add_argument("version", help="MAJOR.MINOR")
        if run is publish:
            command.add_argument("metadata", help="an XML document")
            command.add_argument("--payload", metavar="FILE")
            command.add_argument("--validate", action="store_true", help="by the schema of the type's repository")
            command.add_argument("--persist", action="store_true", help="have it archived")
        else:
            command.add_argument("--predicate", default="", help="XPath")
        if run is subscribe:
            command.add_argument("--count", type=int, default=-1, help="end after so many objects")
        if run is query:
            command.add_argument("--distributed", type=int, metavar="MS", help="ask all archives, for so long")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

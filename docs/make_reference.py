"""Prints a page of the reference, made from the code: `python docs/make_reference.py errors > docs/errors.md`.

`make reference` does it for errors, losses, metrics and configuration; commands are made when the site is built. What
people have to say about errors and losses stands here: an error or a cause without a word is a KeyError.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click
import msgspec

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core import errors, info_object
from jbi_pubsub.core.config import ArchiveSection, LookupSection, MetricsSection, PolicySection, QosSection
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.bridge.plugin import described
from jbi_pubsub.hla.bridge.process import opened
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus
from jbi_pubsub.web.remedies import REMEDIES

FEDERATIONS: Final = Path(__file__).parent.parent / "examples" / "data" / "hla"
IMAGERY: Final = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"

ERRORS: Final = """\
# Errors

This page lists all errors of the library, with their usual causes and remedies. Each error is a class of
`jbi_pubsub.core.errors`, below `jbi_pubsub.JbiError`, and also a subclass of a builtin exception. It has a `code`, a
`message` (the problem and its place), a `hint` (the remedy), and `facts` (the same as plain values). An error that crosses
the network has the same class at the other end. The `jbi` command prints message and hint in one line. Its exit code is 1,
or 2 for wrong usage or configuration.

```python
from jbi_pubsub import JbiError, SubscriberAdapter

with SubscriberAdapter() as subscriber:
    try:
        subscriber.register_subscriber(type_name="Intel_Imagery", predicate="//lat >")
    except JbiError as error:
        assert error.code == "predicate"
        print(error.message, error.hint, error.facts, sep="\\n")
```
"""

CURES: Final = {
    "error": (
        "A newer version sent an error whose code this version does not know.",
        "Read its message; update.",
    ),
    "configuration": (
        "A misspelt key, a value of the wrong type or out of range, a port beyond loopback without TLS, an invalid certificate file, a missing optional library.",
        "The message names the key and its origin; `jbi config` shows all values and origins.",
    ),
    "argument": (
        "A text instead of a number, `None` for a required value, a listener that is not callable.",
        "Look at the facts `call` and `argument`, and at the [API](api.md).",
    ),
    "adapter_state": (
        "A call after `close` or in a forked child, or a second SubscriberAdapter of the same name in a process.",
        "Use one SubscriberAdapter per name and process, with any number of subscriptions. Make adapters after a fork.",
    ),
    "qos_denied": (
        "A request with `require` for a deadline, rate or importance that no policy grants.",
        "The facts name the field and the policy; `jbi policy explain` shows the others. Require less, or ask the operator.",
    ),
    "access_denied": (
        "The access policy of the other side denies the action, or an item in a lookup service belongs to another client.",
        "Ask the operator of that server; its log and `status` show the refusals.",
    ),
    "policy": (
        "A policy file that can't be read, an unknown key, a rule that contradicts itself or another rule.",
        "The message names line and column. A running process keeps the previous policy.",
    ),
    "signature": (
        "An object, key or certificate without the required signature, or with an invalid one.",
        "The message says which. Check the clock, the certificate's dates, and `[tls] sign` and `verify` at both ends.",
    ),
    "port_in_use": (
        "Another process listens there (often a second `jbi lookup`), the address does not belong to this host, or the port is below 1024.",
        "`--port 0` takes a free port; `ss -ltnp` shows the process that uses it.",
    ),
    "storage": (
        "The disk is full, or a state file is damaged, of another version, or in use by another process.",
        "Free some space: waiting data are then written automatically. A damaged file is left unchanged: move it away or restore a copy.",
    ),
    "oversize": (
        "A payload above 1 GiB, or above 64 MiB where it must be in memory; metadata above 1 MiB; predicates that cost too much together; an answer that is too large.",
        "The message names the limit. Send a reference instead of a large payload; write cheaper predicates ([XPath](xpath.md)).",
    ),
    "schema": (
        "An invalid schema, a missing part of it, a schema without any mark of its invariants, or a marks file with a path that does not exist.",
        "`jbi codegen SCHEMA` gives the same message without a server; `jbi codegen marks SCHEMA` drafts marks ([own schema](own-schema.md)).",
    ),
    "type_conflict": (
        "Another publisher uses another schema for this type and version, or the schema file has changed meanwhile.",
        "Use a new version: `register_publisher(version=...)`. Comments and white space do not change a schema, the order of `xmlns` declarations does.",
    ),
    "metadata": (
        "A document that is not well-formed, or not valid by its schema.",
        "The fact `path` names the element. `validate=False` of `register_publisher` disables validation.",
    ),
    "invariant": (
        "The invariant elements of an object differ from the registered ones.",
        "Register again with the other values, or mark the element as variant.",
    ),
    "predicate": (
        "Wrong syntax, an unknown function, an unbound prefix, an expression that may cost too much.",
        "The fact `position` names the place. Bind prefixes with `namespaces=`; see [XPath](xpath.md).",
    ),
    "address": (
        "A list of addresses, a name without an address, or an empty text.",
        "Give one e-mail address at a time.",
    ),
    "unknown_uid": (
        "An id of another adapter, or of something that was cancelled, disconnected or closed.",
        "Use the id that the call named in the message returned.",
    ),
    "delegate_not_found": (
        "No delegate has this name and location; it has not started yet, or is listed and does not answer.",
        "The message lists the existing delegates. `jbi services --type jbi.PublisherAdapterDelegate` lists them, too; `jbi pad NAME LOCATION` starts one.",
    ),
    "lookup_not_found": (
        "No lookup service runs, it has another address or group, or mDNS does not reach this host.",
        "`jbi lookup` starts one; `--locator HOST:PORT`, or `[lookup] locators`, gives its address.",
    ),
    "lease": ("It is never raised itself; it is the base of the next two.", "See the next two."),
    "lease_denied": (
        "A negative duration, or a server at its limit of registrations, sessions or subscriptions.",
        "The message names the limit; raise it ([configuration](configuration.md)) or start another server.",
    ),
    "unknown_lease": (
        "The lease has expired, was cancelled, or was replaced: the process was stopped or disconnected for longer than its term.",
        "The adapters register again automatically. Renew your own leases at half the term.",
    ),
    "entry": (
        "A template with a value that its field can't have, or an entry with too many fields.",
        "The message names the field and its type ([codegen](codegen.md)).",
    ),
    "incompatible_entry": (
        "The two sides have entries that were generated from different schemas.",
        "Generate them from the same schema; the facts contain both fingerprints.",
    ),
    "study": (
        "Java 17 or PyArrow is missing, or the result folder has other content.",
        "The hint says which; see [studies](spark.md).",
    ),
    "wire": (
        "The other side has ended, is disconnected or refuses the connection (TLS, another protocol number), or a delegate does not accept a registration again.",
        "Adapters try again automatically. Look at the log of the other end, and at [TLS](configuration.md#tls-between-hosts).",
    ),
    "protocol": (
        "The other side is not jbi-pubsub, has another version, or sends invalid data.",
        "If the protocol numbers differ, the message names both: [upgrade](upgrade.md) the older side. Otherwise find out which program listens on that port.",
    ),
    "wire_timeout": (
        "The other side is stopped or overloaded, or the link is too slow for the call's timeout.",
        "Run `jbi status HOST:PORT`. For slow links use longer timeouts, and see [poor links](poor-links.md).",
    ),
    "back_pressure": (
        "The publisher's queue stayed full: the delegate is slow or gone, or a subscription with policy `block` is full.",
        "The object was not published. Publish less, or wait longer (`timeout=`, `[queue] publish_seconds`).",
    ),
    "demo": (
        "A process of the demo did not start, or a count is wrong.",
        "The message says which; run `jbi -v demo`.",
    ),
    "child": (
        "A schema or stylesheet needs more time or memory than its limit.",
        "The fact `cause` says which. Make it smaller, or open it beforehand (`jbi codegen`).",
    ),
}
"""By code: what usually causes it, and what to do."""

LOSSES: Final = """\
# Losses

This page lists the causes of losses. An object that matched a subscription and was not delivered is counted under exactly
one cause: in the subscription (`subscriber.losses(uid)`), in the server's `status`, and in the metric `jbi_lost_total`.
The subscriber's process alone finds `bad_signature`, `invalid`, `late`, `listener_failed`, `delegate_dead` and
`other_archive`: the subscription counts them, and at the server these objects are delivered.

The subscription is told before its next object; when a delegate or peer publisher has died (`delegate_dead`), before the
next object of each registration that continues elsewhere, and of the others some seconds later. A `SubscriptionListener`
gets the call `lost(subscription, notice)` with a `LossNotice(subscription, cause, count, detail)`. A count of 0 means an
unknown number; `detail` says whether it is perhaps none. Losses of a subscription by e-mail alone are told while its
subscriber's process lives, every 2/5 of `[lease] subscriber` (24 s). [Guarantees](guarantees.md) says which losses are
possible.

| cause | meaning | remedy |
|---|---|---|
"""

METRICS: Final = """\
# Metrics

This page lists the Prometheus metrics of the servers. `jbi lookup --metrics-port 9100` and
`jbi pad NAME LOCATION --metrics-port 9101` serve them at `/metrics`, and so does `[metrics] port`, also for RTIs and
bridges between federations:

```toml
[metrics]
host = "127.0.0.1"
port = 9101
```

They listen on loopback unless `[metrics] host` says otherwise. `Host` must be an address, `localhost`, this host's name or
one of `[metrics] names`. With a [policy](access.md) the client's address needs the right `status`. Values are read at
the time of the request, and nothing is counted twice. Counters keep the counts of clients that have left.

Watch these first:

- `rate(jbi_lost_total[5m])` by cause
- `jbi_queued_bytes`, compared with `[pad] max_queued_bytes`
- `jbi_mails_waiting`, `jbi_lookup_store_fault`
- `jbi_faults_total`: a fault in our code; please report it
- at nodes with networks: `jbi_network_neighbours` (0: it hears no node), `jbi_peer_loss`, `jbi_networks_twin`

A node shows `jbi_networks_...`, `jbi_network_...` and `jbi_peer_...` only if it has [networks](network.md), and of other
nodes the 100 with the highest loss.
"""

POLICIES: Final = """\
[[link]]
name = "satcom"
rate = "10 Mbps"
"""
"""With these a delegate shows what it has of quality of service."""

NETWORKS: Final = NetworksStatus(
    links=[NetworkStatus(name="lab", faults={"cause": 1})],
    peers=[PeerStatus(name="bravo", network="lab")],
    faults={"cause": 1},
)
"""Networks of a node of which a delegate shows what it has."""

FAULTS: Final = ("jbi_faults_total", "counter", "where", "Steps of threads that failed unexpectedly")
"""Shown by each server as soon as there is one."""
ACCESS: Final = ("jbi_access_refused_total", "counter", "action", "Refused by the access policy, by action")
"""Shown by a lookup service or a delegate with rules that has refused something."""

COMMANDS: Final = """\
Options of `jbi` itself precede the command: `jbi --locator host:4160 services`. Exit codes: 0 done, 1 failed (one line on
stderr), 2 wrong usage or configuration, 130 interrupted. `jbi completion bash` completes commands and options.
"""


def errors_page() -> str:
    """The errors, one section each, in the order of the module."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.JbiError)]
    return ERRORS + "".join(f"\n{_error(kind)}" for kind in kinds)


def _error(kind: type[errors.JbiError]) -> str:
    cause, cure = CURES[kind.code]
    above = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    said = (
        " ".join(inspect.getdoc(kind).split("\n\n")[0].split())
        if kind is not errors.JbiError
        else "Base of all errors."
    )
    return f"## {kind.code}\n\n`{kind.__name__}` ({above}). {said}\n\n*Usually:* {cause}\n\n*What to do:* {cure}\n"


def losses_page() -> str:
    """The causes of losses with their meanings, which stand below each in the source."""
    tree = ast.parse(inspect.getsource(info_object.Cause)).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and isinstance(following, ast.Expr):
            cause = ast.literal_eval(statement.value)
            meaning = " ".join(str(ast.literal_eval(following.value)).split())
            rows.append(f"| {cause} | {meaning} | {REMEDIES[cause]} |\n")
    assert len(rows) == len(info_object.Cause)
    return LOSSES + "".join(rows)


def metrics_page() -> str:
    """What a lookup service and a delegate with a registration and a subscription show."""
    lookup, pad = shown()
    rti, bridge = shown_of_federations()
    head = "\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    tables = {
        "Lookup services": [*lookup, ACCESS, FAULTS],
        "Delegates": [*pad, ACCESS, FAULTS],
        "RTIs": [*rti, FAULTS],
        "Bridges between federations": [*bridge, FAULTS],
    }
    text = METRICS
    for title, rows in tables.items():
        text += f"\n## {title}\n" + head + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return text + "\nPeer publishers count the same in `status()`, and have no metrics port.\n"


def shown() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The metrics of both servers, read over HTTP: name, kind, labels, meaning."""
    alone = LookupSection(port=0, multicast=False, locators=(), groups=("metrics",))
    policies = Path(tempfile.mkdtemp(), "policy.toml")
    policies.write_text(POLICIES)
    config = Config(
        lookup=alone,
        metrics=MetricsSection(port=0),
        policy=PolicySection(file=str(policies)),
        qos=QosSection(mode="on"),
        archive=ArchiveSection(folder=str(policies.parent / "archive"), reserve=0.0),
    )
    server = LookupServer(config, Registrar(groups=alone.groups))
    server.start()
    config = msgspec.structs.replace(config, lookup=msgspec.structs.replace(alone, locators=(server.address,)))
    pad = DisseminationServer(config, TypeRepository(), characteristics=("alpha", "rome"))
    pad.show_networks(lambda: NETWORKS)
    pad.start()
    try:
        with SubscriberAdapter(config) as subscriber, PublisherAdapterLight(config) as publisher:
            figure = IMAGERY / "fig1.xml"
            delegate = publisher.connect_to_delegate("alpha", "rome")
            registration = publisher.register_publisher(delegate, IMAGERY / "Intel_Imagery.xsd", figure, persist=True)
            subscription = subscriber.register_subscriber()
            subscriber.wait_matched(subscription)
            publisher.publish(registration, figure)
            subscriber.receive(subscription)
            while not any(sample.name == "qos_delay_seconds" for sample in pad.samples()):
                time.sleep(0.1)  # until it was added up
            return list(_scraped(server.metrics.port)), list(_scraped(pad.metrics.port))
    finally:
        pad.stop(0.5)
        server.stop()
        shutil.rmtree(policies.parent)


def shown_of_federations() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The metrics of an RTI, and of a bridge between two federations."""
    alone = LookupSection(port=0, multicast=False, locators=(), groups=("metrics",))
    lookup = LookupServer(Config(lookup=alone), Registrar(groups=alone.groups))
    lookup.start()
    found = msgspec.structs.replace(alone, locators=(lookup.address,))
    config = Config(lookup=found, metrics=MetricsSection(port=0))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(lookup.stop)
        model = Module("air.xml", (FEDERATIONS / "air.xml").read_bytes())
        rti = RtiServer(config)
        stack.callback(rti.stop)
        rti.start()
        for name in ("Air", "Sea"):
            rti.create(name, [model])
        path = Path(folder, "bridge.toml")
        sides = "".join(f'[side.{name.lower()}]\nkind = "hla"\nfederation = "{name}"\n' for name in ("Air", "Sea"))
        path.write_text(sides)
        bridge = opened(described(path, tomllib.loads(sides)), config)
        stack.callback(bridge.close)
        bridge.start()
        with RTIAmbassador(config) as federate:
            federate.connect(FederateAmbassador())
            federate.join_federation_execution("Air", "gone")
            federate.register_federation_synchronization_point("ready", b"")
            while not any(sample.name == "hla_bridge_events" for sample in bridge.samples()):
                time.sleep(0.1)
            federate._joined().close()  # as one that dies: what is counted then
        while not any(sample.name == "hla_resigned" for sample in rti.samples()):
            time.sleep(0.1)
        return list(_scraped(rti.metrics.port)), list(_scraped(bridge.metrics.port))


def _scraped(port: int) -> Iterator[tuple[str, ...]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for help_, kind, name, rest in re.findall(
        r"^# HELP \S+ (.*)\n# TYPE \S+ (\S+)\n([a-zA-Z_]+)(.*)$", text, re.MULTILINE
    ):
        if name == FAULTS[0]:
            continue  # of whatever else runs in this process
        labels = ", ".join(re.findall(r'[{,](\w+)="', rest))
        yield name, kind, labels, help_


def commands_page() -> str:
    """Every command with its options, as click knows them."""
    from jbi_pubsub.cli.app import jbi  # all of it: only who makes this page needs that

    return COMMANDS + "".join(_command(jbi, click.Context(jbi, info_name="jbi", **jbi.context_settings), 1))


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"\n{'#' * max(2, level)} {context.command_path}\n\n"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            yield "```text\n" + "\n".join(lines[1:]) + "\n```\n\n"
        else:
            yield _escaped(paragraph) + "\n\n"
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [record for record in records if record and record[1] and not record[0].endswith("--help")]
    if rows:
        yield "| option | meaning |\n|---|---|\n"
        yield from (
            f"| `{option.replace('|', chr(92) + '|')}` | {_escaped(said).replace('|', chr(92) + '|')} |\n"
            for option, said in rows
        )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            if not child.hidden:
                yield from _command(child, click.Context(child, info_name=name, parent=context), 2 + (level > 1))


def _escaped(text: str) -> str:
    """Text in which what is no code is taken as it is written."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part[:1] == "`" else re.sub(r"([\[\]<>*_])", r"\\\1", part) for part in parts)


ROOMS: Final = (
    "core", "trust", "lookup", "protocol", "network", "archive", "policy", "qos", "pad", "pad.model", "pad.matching",
    "pad.egress", "pad.mail", "pad.past", "pad.ingress", "pad.delegate", "pad.server", "codegen", "spark", "publisher",
    "subscriber", "aio", "domains", "capi", "web", "bridge", "node", "hla", "cli", "examples",
)  # fmt: skip
"""From the ground floor up."""


def rooms_table() -> str:
    """CONTRIBUTING's table of rooms: the first sentence of each."""
    rows = ["| room | what |", "|---|---|"]
    for name in ROOMS:
        said = inspect.getdoc(importlib.import_module(f"jbi_pubsub.{name}")) or ""
        top = name.partition(".")[0] in ("lookup", "codegen", "pad", "spark", "examples")
        rows.append(
            f"| `{'' if top else 'jbi_pubsub/'}{name.replace('.', '/')}` | {said.partition(chr(10))[0].rstrip('.')} |"
        )
    return "\n".join(rows) + "\n"


STATES: Final = {
    "lookup.client.states": ("LINK", "WATCH"),
    "publisher.states": ("CONNECTION", "REMOTE_REGISTRATION"),
    "subscriber.remote": ("REMOTE_SUBSCRIPTION",),
    "pad.egress.catch_up": ("CATCH_UP",),
    "pad.past.queries": ("QUERY",),
    "pad.mail.letters": ("MAIL_LETTER",),
    "node.volunteers": ("VOLUNTEER",),
    "domains.application": ("APPLICATION_STATES",),
}
"""Module -> its state tables."""

STATES_HEAD: Final = """# States

This page lists the state machines of the product, for those who change it or read its logs. Each has one table in the
code: state, event, following state. An event that the table does not have raises an error. `make reference` makes this page
from the tables; tests run random sequences of events through them.
"""


def states_page() -> str:
    """The state tables, a section each: the diagram in Mermaid's language, and all rows."""
    parts = [STATES_HEAD]
    for module, names in STATES.items():
        for name in names:
            table = getattr(importlib.import_module(f"jbi_pubsub.{module}"), name)
            rows = [f"| {state.name} | {event.name.lower()} | {to.name} |" for state, event, to in table.rows()]
            said = [
                f"In `{module}`; it begins as {table.initial.name}.",
                "",
                "```text",
                table.diagram().rstrip(),
                "```",
                "",
            ]
            parts.append(
                "\n".join([f"## {table.name}", "", *said, "| state | event | then |", "|---|---|---|", *rows, ""])
            )
    return "\n".join(parts)


PAGES: Final = {
    "errors": errors_page, "losses": losses_page, "metrics": metrics_page, "commands": commands_page,
    "rooms": rooms_table, "states": states_page,
}  # fmt: skip

if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")

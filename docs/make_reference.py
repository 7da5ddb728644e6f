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

FEDERATIONS: Final = Path(__file__).parent.parent / "examples" / "data" / "hla"
IMAGERY: Final = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"

ERRORS: Final = """\
# Errors

Each error is a class of `jbi_pubsub.core.errors`, below `jbi_pubsub.JbiError`. It has a `code`, a `message` that says what
is wrong and where, a `hint` how to mend it, and `facts`, the same as plain values. Who does not know the family catches
the builtin beside it. Errors cross the wire and are the same class at the other end. The `jbi` command shows message
and hint in one line, and ends with exit code 1, or 2 for wrong usage or configuration.

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
    "error": ("An error of a newer version whose code this one does not know.", "Read its message; update."),
    "configuration": (
        "A key that is misspelt, a value of the wrong kind or out of bounds, a port beyond loopback without TLS, a certificate file that is no good, a missing optional library.",
        "The message names the key, and where it was set; `jbi config` shows what counts and where it comes from.",
    ),
    "argument": (
        "A text where a number is wanted, `None` where something is needed, a listener that can't be called.",
        "Look at the facts `call` and `argument`, and at the [API](api.md).",
    ),
    "adapter_state": (
        "A call after `close`, in a forked child, or a second SubscriberAdapter of one name in a process.",
        "One SubscriberAdapter of a name in a process, with as many subscriptions as you like; make adapters after a fork.",
    ),
    "qos_denied": (
        "A wish with `require` for a deadline, rate or importance that no policy grants.",
        "The facts name the field and the policy; `jbi policy explain` says the rest. Require less, or ask the operator.",
    ),
    "access_denied": (
        "The other side's access policy does not let you do that, or an item in a lookup service is somebody else's.",
        "Ask whoever runs that server; its log and its `status` say who was refused what.",
    ),
    "policy": (
        "A policy file that can't be read, an unknown key, a rule that contradicts itself or another.",
        "The message names line and column. While a process runs, the policy of before stays in force.",
    ),
    "signature": (
        "An object, key or certificate of which a signature is wanted and none is there, or it does not hold.",
        "The message says which. Look at the clock, the certificate's dates, and `[tls] sign` and `verify` at both ends.",
    ),
    "port_in_use": (
        "Another process listens there (often a second `jbi lookup`), the address is none of this host, the port is below 1024.",
        "`--port 0` takes a free one; `ss -ltnp` shows who has it.",
    ),
    "storage": (
        "The disk is full, a state file is damaged, of another version, or in use by another process.",
        "Make room: what waits is written by itself. A damaged file is left as it is: move it away or bring back a copy.",
    ),
    "oversize": (
        "A payload above 1 GiB, or above 64 MiB where it is to be in memory, metadata above 1 MiB, too many subscriptions' worth of predicates, an answer too large.",
        "The message names the bound. Send a reference in place of a large payload; write cheaper predicates ([XPath](xpath.md)).",
    ),
    "schema": (
        "A schema that is not valid, whose parts are not at hand, or without any mark of what is invariant; a marks file with a path that names nothing.",
        "`jbi codegen SCHEMA` says the same without a server; `jbi codegen marks SCHEMA` drafts marks ([own schema](own-schema.md)).",
    ),
    "type_conflict": (
        "Somebody publishes this type and version with another schema, or the schema file has changed meanwhile.",
        "A new version: `register_publisher(version=...)`. Comments and white space do not make a schema another one.",
    ),
    "metadata": (
        "A document that is not well-formed, or not valid by its schema.",
        "The fact `path` names the element. `validate=False` of `register_publisher` leaves validation out.",
    ),
    "invariant": (
        "An object whose invariant elements differ from those that were registered.",
        "Register a second time with the other values, or mark the element as variant.",
    ),
    "predicate": (
        "Bad syntax, an unknown function, a prefix that is not bound, an expression that may cost too much.",
        "The fact `position` says where. Bind prefixes with `namespaces=`; see [XPath](xpath.md).",
    ),
    "address": (
        "A list, a name without an address, or nothing where one e-mail address is wanted.",
        "One address each.",
    ),
    "unknown_uid": (
        "An id of another adapter, or of something that was cancelled, disconnected or closed.",
        "Use what the call returned that the message names.",
    ),
    "delegate_not_found": (
        "No delegate has these two strings, it is not up yet, or is listed and does not answer.",
        "The message lists those there are. `jbi services --type jbi.PublisherAdapterDelegate`; `jbi pad NAME LOCATION`.",
    ),
    "lookup_not_found": (
        "No lookup service runs, it is at another address or of another group, or mDNS does not reach you.",
        "`jbi lookup` starts one; `--locator HOST:PORT`, or `[lookup] locators`, says where it is.",
    ),
    "lease": ("Never raised itself: the family of the next two.", "See there."),
    "lease_denied": (
        "A negative duration, or a server that has no room for more: registrations, sessions, subscriptions.",
        "The message names the bound; raise it ([configuration](configuration.md)) or start another server.",
    ),
    "unknown_lease": (
        "The lease has run out, was cancelled, or was replaced: a process was stopped or cut off for longer than its term.",
        "The adapters register again by themselves. Of your own leases: renew at half the term.",
    ),
    "entry": (
        "A template with a value that its field can't have, or an entry with too many fields.",
        "The message names the field and its type ([codegen](codegen.md)).",
    ),
    "incompatible_entry": (
        "Both sides have generated entries from schemas that differ.",
        "Generate them from the same schema; the facts hold both fingerprints.",
    ),
    "study": (
        "No Java 17, no PyArrow, a result folder that holds something else.",
        "The hint says which; [Spark](spark.md).",
    ),
    "wire": (
        "The other side is gone, was cut off, refuses you (TLS, another protocol number), or a delegate does not take a registration back.",
        "Adapters try again by themselves. Look at the other end's log; [TLS says](configuration.md#tls-between-hosts).",
    ),
    "protocol": (
        "The other side is no jbi-pubsub at all, of another version, or sends what no version does.",
        "The message names both protocol numbers when they differ: [upgrade](upgrade.md) the older one. Else look at what listens on that port.",
    ),
    "wire_timeout": (
        "The other side is stopped, overloaded, or behind a link that is too slow for the call's time.",
        "`jbi status HOST:PORT`; for slow links longer times, and [poor links](poor-links.md).",
    ),
    "back_pressure": (
        "The publisher's queue stayed full: the delegate is slow or gone, or a subscription with policy `block` is full.",
        "Publish less, or wait for longer (`timeout=`, `[queue] publish_seconds`); the object was not published.",
    ),
    "demo": (
        "A process of the demo did not start, or a count came out wrong.",
        "The message says which; `jbi -v demo`.",
    ),
    "child": (
        "A schema or stylesheet that takes more than the time or memory it is given.",
        "The fact `cause` says which. Make it smaller, or open it yourself beforehand (`jbi codegen`).",
    ),
}
"""By code: what usually causes it, and what to do."""

LOSSES: Final = """\
# Losses

An object that matched and did not reach its subscriber is counted under exactly one cause. It is counted in the
subscription (`subscriber.losses(uid)`), in the server's `status`, and in the metric `jbi_lost_total`. The subscription is
told, before its next object: a `SubscriptionListener` by `lost(subscription, notice)`, with a
`LossNotice(subscription, cause, count, detail)`. A count of 0 means that nobody knows how many; `detail`
says then whether perhaps none. What is lost of a subscription by mail alone is told as long as its subscriber's process
lives, each 2/5 of `[lease] subscriber` (24 s). What happens when is in
[guarantees](guarantees.md).

| cause | when | what to do |
|---|---|---|
"""

REMEDIES: Final = {
    "queue_overflow": "Take faster, raise `bound`, narrow the predicate, or set policy `block` where publishers may wait.",
    "bad_signature": "Find out who published it: it is not signed by its publisher's key. `[tls] verify` says what is done.",
    "block_timeout": "The same; `[queue] block_seconds` is how long publishers wait.",
    "subscriber_dead": "A longer `[lease] subscriber` outlasts longer outages.",
    "delegate_dead": "Nothing: it subscribes again by itself. What the delegate held is gone.",
    "cancelled": "Nothing: you asked for it.",
    "sequence_gap": "Look for a publisher or relay that drops objects.",
    "late": "Nothing; it happens when a publisher has changed its delegate while the old one was cut off.",
    "missed": "A larger `[pad] keep_seconds` and `keep_bytes`.",
    "deadline": "A longer deadline, more importance, or fewer objects: a narrower predicate, a smaller shape.",
    "replaced": "Nothing; newest per key was asked for. Leave `replace` out to get each.",
    "rate": "A higher `max_rate`, or a narrower predicate.",
    "expired": "A longer `expiration`; a `[[keep]]` rule with `until_durables`, or a longer `age`.",
    "invalid": "Publishers that look at what they publish: `validate` and `well_formed` as [client] has them.",
    "other_archive": "Nothing brings it back; look into the copies that there are. What this archive has comes again.",
    "listener_failed": (
        "Look for the exception in the log, and mend the listener. A durable one that acknowledges explicitly gets "
        "the object again the next time."
    ),
    "filtered": "Somebody wants it so: look into the bridge's file (`jbi bridge check FILE` says what it does with a type).",
    "oversize": "Cut the payload with a filter, or have it delivered to a queue instead of by mail; of what a filter "
    "can't be applied to: `unfiltered`, to have it whole ([filters](matching.md#payload-filters)).",
    "mail_refused": "Read the server's answer in `jbi subscriptions`; correct the address.",
    "mail_unreachable": "Look at `[mail]` host and port; more `retries` outlast longer outages.",
    "mail_suspended": "Correct the address, cancel the subscription and make it again.",
    "refused": "Read the reason in the notice's `detail`; it is asked for again every minute.",
    "storage": "Make room on the delegate's disk; for large payloads on the subscriber's too (`[link] spool_folder`, `spool_bytes`).",
    "shutdown": "A longer `jbi pad --drain`.",
}
"""By cause."""

METRICS: Final = """\
# Metrics

`jbi lookup --metrics-port 9100` and `jbi pad NAME LOCATION --metrics-port 9101` (or `[metrics] port`, which is for RTIs
and bridges between federations as well) serve Prometheus metrics at `/metrics`, on loopback unless `[metrics] host` says
otherwise. `Host` must be an address, `localhost`, this host's name or of `[metrics] names`; with a [policy](access.md)
whoever asks needs `status`, by his address. Everything is read when it is asked for; nothing is counted twice. Counters go on counting when whom they
counted for has left.

```toml
[metrics]
host = "127.0.0.1"
port = 9101
```

To watch first: `rate(jbi_lost_total[5m])` by cause, `jbi_queued_bytes` against `[pad] max_queued_bytes`,
`jbi_mails_waiting`, `jbi_faults_total` (a fault in our code: report it), `jbi_lookup_store_fault`; of nodes with networks
`jbi_network_neighbours` (0: nobody is heard), `jbi_peer_loss`, `jbi_networks_twin`. A node shows `jbi_networks_...`,
`jbi_network_...` and `jbi_peer_...` only if it has [networks](network.md), and of other nodes the 100 of which most is lost.
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

COMMANDS: Final = """\
Options of `jbi` itself stand before the command: `jbi --locator host:4160 services`. Exit codes: 0 done, 1 a run that
went wrong (one line on stderr), 2 wrong usage or configuration, 130 interrupted. `jbi completion bash` completes
commands and options.
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
        "Lookup services": [*lookup, FAULTS],
        "Delegates": [*pad, FAULTS],
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

What has states has a table in one place: the state, the event, the state that follows. What a table does not have can't
happen: it raises. This page is made from the tables by `make reference`; tests lead random lives through them.
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

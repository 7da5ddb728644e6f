"""`jbi subscribe`, and how objects are shown."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, LookupNotFoundError
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.spool import COPIED_BYTES
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE
from jbi_pubsub.protocol.requests import DIGEST_ATTRIBUTE, View
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SubscriptionsProxy
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid
from jbi_pubsub.subscriber.subscription import matching_log

from .community import community
from .options import (
    COUNT,
    EXISTING_FILE,
    FOLDER,
    MARKS,
    PREDICATE,
    SCHEMA,
    TIMEOUT,
    Arguments,
    JsonArguments,
    command,
    flag,
    option,
    repeated,
)
from .settings import looking, try_folder
from .show import as_json as json_text
from .show import console, counted, printable, show_losses
from .wishes import WISH, granted_shown, wish_of

GRANTED_SECONDS: Final = 3.0
"""For the first delegate to answer to a wish."""
MATCHED_SECONDS: Final = 1.0
"""For those who have something to answer, and for each delegate to say whether we are let in."""
DELEGATES_ASKED: Final = 16

TEMPLATE: Final = option("Metadata document; its invariant values must be equal.", type=EXISTING_FILE)
TYPE_NAME: Final = option("Information object type; the last part of its name is enough.", "--type", default="")
VERSION: Final = option("Version of the type; default: all.", default="")
SINCE: Final = option("Published at that time or later: 2h (ago), 2026-11-01T00:00Z.", metavar="TIME")
UNTIL: Final = option("Published at that time or earlier.", metavar="TIME")


class Predicates(Arguments):
    """Expressions over metadata and payloads, of objects that come and of those that are kept."""

    predicate: str = PREDICATE
    language: str = option(
        "Language of the predicate: xpath, or tcl (the trader's) for structured events.", shown="xpath"
    )
    combined: bool = flag("Evaluate the predicate on og:metadata, the platform's data with the metadata.")
    payload_filter: str = option("XPath over an XML payload.", "--filter", default="")
    unfiltered: Any = option(
        "With --filter: for XML that can't be filtered; default withhold, and tell it as lost.",
        type=click.Choice(["withhold", "deliver"]),
    )
    namespaces: tuple[str, ...] = repeated("Prefix in the XPaths; repeatable.", "--namespace", metavar="PREFIX=URI")

    @property
    def view(self) -> View:
        """The predicate's view of an object."""
        return "combined" if self.combined else "metadata"

    def terms(self) -> dict[str, Any]:
        """Terms of a subscription."""
        return {
            "predicate": self.predicate, "language": self.language, "view": self.view,
            "payload_filter": self.payload_filter, "unfiltered": self.unfiltered,
            "namespaces": namespaces_of(self.namespaces),
        }  # fmt: skip


class _SubscribeTemplate(Arguments):
    template: Path | None = TEMPLATE
    schema: Path | None = SCHEMA
    marks: Path | None = MARKS
    type_name: str = TYPE_NAME


class _Subscribe(Predicates, _SubscribeTemplate, JsonArguments):
    recipients: tuple[str, ...] = repeated("Deliver by e-mail; repeatable.", "--email", metavar="ADDRESS")
    digest: float | None = option(
        "With --email: gather objects in one mail.", type=click.FloatRange(0), metavar="SECONDS"
    )
    policy: Any = option(
        "Action when the queue is full.", "--queue-policy", type=click.Choice(["drop_oldest", "drop_newest", "block"])
    )
    bound: int | None = option("Capacity of the queue.", type=click.IntRange(1))
    start: str | None = option(
        "Begin of the subscription: now, all, last, a time (2h, 2026-11-01T00:00Z), a place.",
        "--start",
        metavar="WHERE",
    )
    durable: str | None = option(
        "Name of a durable subscription; the next time it continues at its position.", metavar="NAME"
    )
    count: int | None = COUNT
    timeout: float | None = TIMEOUT
    out: Path | None = option("Folder for metadata and payloads.", type=FOLDER, callback=try_folder)
    wishes: tuple[str, ...] = WISH


@command(None, _Subscribe)
def subscribe(given: _Subscribe) -> int:
    """Subscribe and show what arrives, or have it sent by e-mail.

    An e-mail subscription continues after the end of this command, until it is cancelled with `jbi subscriptions
    cancel` or its lease expires ([lease] mail). Exit code 1: fewer objects than --count came within --timeout.

    \b
    jbi subscribe --type mil.af.rl.jbi.Intel_Imagery
    jbi subscribe --type Intel_Imagery --predicate "//lat > 33" --count 5
    jbi subscribe --combined --predicate "//og:PayloadLength > 1000000 and //lat > 33"
    jbi subscribe --type Intel_Imagery --start 2h
    jbi subscribe --type Intel_Imagery --durable fusion-1 --timeout 10
    jbi subscribe --template examples/data/intel_imagery/fig3-template.xml \\
        --schema examples/data/intel_imagery/Intel_Imagery.xsd --filter "//descriptor[type='A10A']"
    jbi subscribe --type alert --namespace c=urn:oasis:names:tc:emergency:cap:1.2 \\
        --predicate "/c:alert/c:status = 'Actual'" --email ops@example.org --digest 3600
    """
    for_here = {"--count": given.count, "--timeout": given.timeout, "--out": given.out}
    useless = [name for name, value in for_here.items() if value is not None]
    if given.recipients and useless:
        raise ConfigurationError(
            f"{useless[0]} is not for --email", hint="It is for objects that are shown here; mail goes on without us"
        )
    config = given.settings.load_within(given.timeout)
    wish = wish_of(given.wishes)
    with _matches_told() as told, SubscriberAdapter(config) as adapter:
        with looking(config):
            uid = _subscribed(adapter, given, wish)
        if wish is not None:
            _tell_granted(adapter, uid, wish)
        if given.recipients:
            matched = _mailing(adapter, uid, config)
            facts = {"subscription": uid, "delegates": matched, "lease": config.lease.mail}
            text = f"e-mail subscription {uid} at {counted(matched, 'delegate')}, lease {config.lease.mail:g} s"
            given.tell(facts, text)
            return 0
        if not given.as_json and sys.stdout.isatty():
            console().print(f"[dim]subscription {uid}; Ctrl-C ends[/dim]")
        if not adapter.wait_matched(uid, 1, MATCHED_SECONDS):
            _check_let_in(adapter, uid, config)
        told.tell_refusals()
        seen = show_objects(
            adapter, uid, count=given.count, timeout=given.timeout, as_json=given.as_json, out=given.out
        )
        if not seen and (why := adapter.refusal(uid)) is not None:
            raise why
        matching = adapter.matching(uid)
    is_told = not seen and (matching.impossible or not matching.registrations)
    return enough(seen, given.count, str(matching) if is_told else "")


def _subscribed(adapter: SubscriberAdapter, given: _Subscribe, wish: Wish | None) -> SubscriptionUid:
    return adapter.register_subscriber(
        given.template,
        schema=given.schema,
        marks=given.marks,
        type_name=given.type_name,
        recipients=given.recipients,
        policy=given.policy,
        bound=given.bound,
        attributes={DIGEST_ATTRIBUTE: f"{given.digest:g}"} if given.digest else {},
        qos=wish,
        start=given.start,
        durable=given.durable,
        **given.terms(),
    )


def enough(seen: int, count: int | None, why: str = "") -> int:
    """The exit code: 1 for fewer than were asked for, which is told, with what may be the reason."""
    if count is None or seen >= count:
        return 0
    click.echo(printable(f"jbi: {seen} of {counted(count, 'object')} came in time{why and f': {why}'}"), err=True)
    return 1


def _mailing(adapter: SubscriberAdapter, uid: SubscriptionUid, config: Config) -> int:
    """The number of delegates that send its mail. Raises LookupNotFoundError where there is none: nobody would remember
    the subscription when this command has ended; AccessDeniedError."""
    if not (matched := adapter.wait_matched(uid, 1, 3.0)):
        _check_let_in(adapter, uid, config)
        adapter.cancel_subscription(uid)
        hint = "Start one (`jbi pad NAME LOCATION`), and subscribe again; `jbi services` shows those that are there"
        raise LookupNotFoundError("no delegate has the e-mail subscription, so that nothing would be sent", hint=hint)
    return matched


def _check_let_in(adapter: SubscriberAdapter, uid: SubscriptionUid, config: Config) -> None:
    """Raises what a subscription is refused with. Where nothing matches nobody is asked: so who may not even connect
    would wait for what never comes. Raises AccessDeniedError when that is so at each delegate that is listed."""
    if (refused := adapter.refusal(uid)) is not None:
        raise refused
    with community(config) as joined:
        items = joined.lookup(ServiceTemplate(types=(PAD_TYPE,)), DELEGATES_ASKED)
    why: AccessDeniedError | None = None
    for item in items:
        at = ServiceRef("", SUBSCRIPTIONS, item.proxy.endpoints)
        try:
            with closing(SubscriptionsProxy(at, config.security(), timeout=MATCHED_SECONDS)) as proxy:
                proxy.close_session(proxy.open("jbi", MATCHED_SECONDS).uid)
        except AccessDeniedError as exc:
            why = exc
        except JbiError:
            return  # who is away now may let us in later
        else:
            return
    if why is not None:
        raise why


def _tell_granted(adapter: SubscriberAdapter, uid: SubscriptionUid, wish: Wish) -> None:
    """On stderr, as soon as the first has answered. Raises QosDeniedError."""
    adapter.wait_matched(uid, 1, GRANTED_SECONDS)
    for line in granted_shown(wish, adapter.qos(uid).items()):
        click.echo(printable(line), err=True)


class _MatchHandler(logging.Handler):
    """Tells what a subscription matches on stderr, and by whom it is refused once it is known that it is active
    elsewhere: who is refused everywhere has an error that says so."""

    def __init__(self) -> None:
        super().__init__()
        self._refusals: list[str] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(record.getMessage())
        if self._refusals is not None and getattr(record, "cause", "") == Cause.REFUSED:
            self._refusals.append(line)
        else:
            click.echo(line, err=True)

    def tell_refusals(self) -> None:
        """Those so far, and from now on each at once."""
        lines, self._refusals = self._refusals or [], None
        for line in lines:
            click.echo(line, err=True)


@contextmanager
def _matches_told() -> Iterator[_MatchHandler]:
    """Tell what the subscription matches, now and until something does, on stderr."""
    said, was = _MatchHandler(), (matching_log.level, matching_log.propagate)
    matching_log.addHandler(said)
    matching_log.setLevel(logging.INFO)
    matching_log.propagate = False
    try:
        yield said
        said.tell_refusals()
    finally:
        matching_log.removeHandler(said)
        matching_log.setLevel(was[0])
        matching_log.propagate = was[1]


def show_objects(
    adapter: SubscriberAdapter,
    uid: SubscriptionUid,
    *,
    count: int | None,
    timeout: float | None,
    as_json: bool,
    out: Path | None = None,
    is_wanted: Callable[[InfoObject], bool] = lambda _: True,
) -> int:
    """Show what comes and is wanted, until it is enough, and return how much that was."""
    seen = 0
    while count is None or seen < count:
        obj = adapter.receive(uid, timeout if timeout is not None else 3600.0)
        if obj is None:
            if timeout is not None:
                break
            continue
        if not is_wanted(obj):
            continue
        seen += 1
        if out is not None:
            write_object(out, obj)
        show_object(obj, as_json=as_json)
    show_losses(adapter.losses(uid))
    return seen


def show_object(obj: InfoObject, *, as_json: bool) -> None:
    """A line for each, at once: who reads them may wait for it."""
    click.echo(json_text(facts_of(obj)) if as_json else line_of(obj))
    sys.stdout.flush()


def facts_of(obj: InfoObject) -> dict[str, object]:
    """An object as plain data, without its payload."""
    return {
        "object": obj.object_id,
        "type": obj.type.name,
        "version": obj.type.version,
        "registration": obj.platform.registration,
        "sequence": obj.platform.sequence,
        "published": obj.platform.published,
        **({"position": obj.platform.position, "place": obj.platform.place} if obj.platform.position else {}),
        "metadata": obj.metadata.decode("utf-8", errors="replace"),
        "payload_length": obj.payload_size,
        "payload_published_length": obj.platform.payload_length,
        "payload_is_selection": obj.is_selection,
        "signed_by": obj.platform.verified,
    }


def line_of(obj: InfoObject) -> str:
    """An object as a line for people."""
    at = time.strftime("%H:%M:%S", time.localtime(obj.platform.published))
    cut = f" of {obj.platform.payload_length}" if obj.payload_size != obj.platform.payload_length else ""
    signed = f"  signed by {obj.platform.verified}" if obj.platform.verified else ""
    return printable(
        f"{at}  {obj.type.name}  #{obj.platform.sequence}  metadata {len(obj.metadata)} B"
        f"  payload {obj.payload_size}{cut} B  {obj.object_id}{signed}"
    )


def write_object(folder: Path, obj: InfoObject) -> None:
    """Metadata and payload as files named by the object's id; a peer publisher may say any, also one that is a path."""
    folder.mkdir(parents=True, exist_ok=True)  # again: it may have been taken away
    name = re.sub(r"[^0-9A-Za-z._-]", "_", obj.object_id)[:200]
    (folder / f"{name}.metadata.xml").write_bytes(obj.metadata)
    with obj.payload_file as payload, (folder / f"{name}.payload").open("wb") as out:
        shutil.copyfileobj(payload, out, COPIED_BYTES)


def namespaces_of(pairs: Iterable[str]) -> dict[str, str]:
    """Namespaces that --namespace gives. Raises ConfigurationError."""
    split = [pair.partition("=") for pair in pairs]
    bad = [prefix for prefix, equals, uri in split if not (prefix and equals and uri)]
    if bad:
        raise ConfigurationError(f"--namespace {bad[0]}: no PREFIX=URI")
    return {prefix: uri for prefix, _, uri in split}

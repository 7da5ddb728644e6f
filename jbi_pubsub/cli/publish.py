"""`jbi publish`: an application for the command line."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, JbiError
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.publisher import PublisherAdapterLight
from jbi_pubsub.publisher.publication import RegistrationUid

from .options import EXISTING_FILE, MARKS, Arguments, JsonArguments, command, flag, option, repeated
from .settings import looking
from .show import counted, telling
from .wishes import WISH, wish_of

if TYPE_CHECKING:
    from jbi_pubsub.publisher import PublisherAdapter

FLUSH_SECONDS: Final = 10.0
FLUSH_RATE: Final = 500.0
"""Time that the delegate may take for what was published, and bytes a second in addition as long as it is connected:
a link of 7,200 bit/s carries more."""
SUBSCRIBERS_SECONDS: Final = 10.0
"""Seconds for subscriptions to match what is published."""


class _PublishFiles(Arguments):
    schema: Path | None = option("XML Schema of the metadata; default: the type repository's.", type=EXISTING_FILE)
    marks: Path | None = MARKS
    invariants: Path | None = option("Invariant metadata; default: the first metadata file.", type=EXISTING_FILE)
    metadata: tuple[Path, ...] = repeated("Metadata; repeatable.", type=EXISTING_FILE, required=True)
    payload: tuple[Path, ...] = repeated("Payload, one for each --metadata, or for all.", type=EXISTING_FILE)
    delegate: tuple[str, str] | None = option(
        "Name and location of the delegate; '' is a wildcard.", nargs=2, metavar="NAME LOCATION"
    )
    peer: bool = flag("Publish peer to peer, without a delegate.")
    type_name: str = option("Type name, if the schema does not give it.", "--type", default="")
    type_version: str = option("Version of the type; default 1.0.", "--version", default="")
    untyped: bool = flag("Publish any well-formed metadata, for a type without a schema.")

    def check(self) -> None:
        """Raises ConfigurationError, MetadataError before anybody is looked for."""
        if bool(self.delegate) == self.peer:
            raise ConfigurationError("give either --delegate NAME LOCATION (or --node NAME) or --peer")
        if self.schema is None and not self.type_name:
            raise ConfigurationError(
                "the type of the metadata is not known",
                hint="Give --schema FILE, or --type NAME of the type repository",
            )
        if self.untyped and (self.schema is not None or self.invariants is not None):
            raise ConfigurationError("--untyped goes with neither --schema nor --invariants")
        if len(self.payload) not in (0, 1, len(self.metadata)):
            raise ConfigurationError(
                f"{len(self.payload)} payloads for {len(self.metadata)} metadata", hint="Give none, one, or one each"
            )
        invariants = [("--invariants", self.invariants)] if self.invariants else []
        for what, path in (*(("--metadata", path) for path in self.metadata), *invariants):
            if path.is_file():  # a pipe is read once
                parse_metadata(path.read_bytes(), what=f"{what} {path}")

    def files(self) -> list[tuple[Path, Path | None]]:
        """Metadata, each with its payload."""
        payloads = self.payload or (None,)
        return list(zip(self.metadata, payloads if len(payloads) > 1 else payloads * len(self.metadata), strict=True))


class _Publish(_PublishFiles, JsonArguments):
    expiration: float | None = option(
        "Drop objects that wait longer; 0: never.", type=click.FloatRange(0), metavar="SECONDS"
    )
    persist: bool | None = option(
        "Archive the objects; default: by the delegate's rules.",
        "--persist/--no-persist",
        default=None,
    )
    count: int = option("Number of rounds.", type=click.IntRange(1), shown=1)
    interval: float = option("Seconds between two rounds.", type=click.FloatRange(0), default=0.0)
    subscribers: int = option(
        f"Wait up to {SUBSCRIBERS_SECONDS:g} s until that many subscriptions match.", type=click.IntRange(0), default=0
    )
    wishes: tuple[str, ...] = WISH


@command(None, _Publish)
def publish(given: _Publish) -> int:
    """Publish information objects from files. Exit code 1: fewer --subscribers than expected, or refused.

    With files of the source distribution:

    \b
    jbi publish --delegate alpha rome --schema examples/data/intel_imagery/Intel_Imagery.xsd \\
        --metadata examples/data/intel_imagery/fig1.xml --payload examples/data/intel_imagery/image.png
    jbi publish --peer --schema examples/data/cap/cap12.xsd --marks examples/data/cap/marks.json \\
        --metadata examples/data/cap/canada.xml --count 10 --interval 1
    jbi publish --delegate alpha rome --type mil.af.rl.jbi.Intel_Imagery \\
        --metadata examples/data/intel_imagery/fig1.xml           # with the schema of the type repository
    jbi --node tent-3 publish --type mil.af.rl.jbi.Intel_Imagery \\
        --metadata examples/data/intel_imagery/fig1.xml           # at a node
    """
    given.check()
    files, wish, config = given.files(), wish_of(given.wishes), given.settings.load()
    ids: list[str] = []
    refusals: list[JbiError] = []

    def refused(_object_id: str, why: JbiError) -> None:
        refusals.append(why)

    with _peer(config) if given.peer else PublisherAdapterLight(config, refused=refused) as adapter:
        registration = _registered(adapter, given, wish, config)
        wanted = given.subscribers
        matched = adapter.wait_for_subscribers(registration, wanted, SUBSCRIBERS_SECONDS) if wanted else 0
        with telling("publishing", hidden=given.count == 1) as tell:
            for number in range(1, given.count + 1):
                ids += [adapter.publish(registration, metadata, payload) for metadata, payload in files]
                time.sleep(given.interval)
                tell("publishing", number, given.count)
        size = given.count * sum(path.stat().st_size for pair in files for path in pair if path)
        left = _flush(adapter, FLUSH_SECONDS + size / FLUSH_RATE, max(FLUSH_SECONDS, config.lookup.timeout))
    about = {"registration": registration, "published": ids, "undelivered": left}
    published = counted(len(ids) - len(refusals), "object")
    given.show(
        {**about, "refused": len(refusals)} if refusals else about,
        lambda: click.echo(f"published {published} under {registration}"),
    )
    if refusals:
        why = refusals[0]
        raise type(why)(f"the delegate refused {len(refusals)} of {len(ids)}: {why.message}", hint=why.hint)
    if matched < given.subscribers:
        came = f"jbi: {matched} of {given.subscribers} subscriptions were there when it was published"
        click.echo(f"{came}; see `jbi status --subscriptions` for what others ask for", err=True)
    return int(matched < given.subscribers)


def _flush(adapter: PublisherAdapter | PublisherAdapterLight, seconds: float, silent: float) -> int:
    """Wait until what was published has gone; how many objects are left. A delegate that is not connected after
    `silent` seconds is waited for no longer. Raises BackPressureError."""
    if not isinstance(adapter, PublisherAdapterLight):
        return adapter.flush(seconds)  # subscribers that have gone are not waited for
    deadline = time.monotonic() + seconds
    while True:
        try:
            adapter.flush(min(silent, max(0.0, deadline - time.monotonic())))
        except BackPressureError:
            connected = any(each["connected"] for each in adapter.status()["delegates"].values())
            if not connected or time.monotonic() >= deadline:
                raise
        else:
            return 0


def _peer(config: Config) -> PublisherAdapter:
    from jbi_pubsub.publisher import PublisherAdapter  # here: it has a delegate inside, which the others do without

    return PublisherAdapter(config)


def _registered(
    adapter: PublisherAdapter | PublisherAdapterLight, given: _Publish, wish: Wish | None, config: Config
) -> RegistrationUid:
    """The registration to publish under."""
    first = None if given.untyped else given.invariants or given.metadata[0]
    terms: dict[str, Any] = {
        "marks": given.marks, "type_name": given.type_name, "version": given.type_version or None,
        "validate": False if given.untyped else None, "qos": wish, "persist": given.persist,
        "expiration": given.expiration,
    }  # fmt: skip
    if not isinstance(adapter, PublisherAdapterLight):
        with looking(config):
            return adapter.register_publisher(given.schema, first, **terms)
    name, location = given.delegate or ("", "")
    with looking(config, f"a lookup service and delegate ({name or '*'}, {location or '*'})"):
        at = adapter.connect_to_delegate(name or None, location or None)
    return adapter.register_publisher(at, given.schema, first, **terms)

"""Types that are published now, as the lookup services know them: what a subscription can match, and why it does not.

Rules:
- Nothing here decides what is delivered: a name that nobody publishes today may be published tomorrow.
- A type may be called by its local name (`alert` for `{urn:oasis:names:tc:emergency:cap:1.2}alert`) as long as one type
  alone has it.
- The schema of a type comes from whoever publishes it, and counts only if all who publish it name the same one: a
  stranger must not narrow a subscription with a schema of its own making.
"""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from jbi_pubsub.codegen.opening import OPENER
from jbi_pubsub.codegen.repository import InformationType
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.near import NAME_MOST
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import RegistrarProxy
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE, local_name
from jbi_pubsub.protocol.entries import InformationType as Described
from jbi_pubsub.protocol.repositories import held_elsewhere
from jbi_pubsub.protocol.services import fetch_schema

log = logging.getLogger("jbi_pubsub.subscriber")

ASK_SECONDS: Final = 2.0
"""For one lookup service or delegate to answer: a subscription must not hang because one of them does."""
FRESH_SECONDS: Final = 1.0
"""Time that an answer is used again: an application may subscribe a thousand times in a row."""
NAMES_SHOWN: Final = 5
"""Types that a message lists; nobody reads more."""
TYPES_KEPT: Final = 32
"""Types whose schema is kept open: an application has a few."""
ASKED: Final = 3
"""Publishers that are asked for a schema, before it is done without."""

T = TypeVar("T")


class Matching(msgspec.Struct, frozen=True):
    """State of a subscription: how many registrations match it now, and when none does, `why` as far as known."""

    registrations: int
    why: str = ""
    impossible: tuple[str, ...] = ()
    """Why no object of these registrations can match, as their schemas say; a line for each condition."""
    others: tuple[str, ...] = ()
    """Types that the last part of a name, by which the subscription was made, may mean as well."""

    def __str__(self) -> str:
        if not self.registrations:
            return f"none so far: {self.why}" if self.why else "none so far"
        said = f"matches {self.registrations} registration{'s' if self.registrations > 1 else ''} now"
        also = (f"its type's name may mean {_listed(self.others)} as well; name one in full",) if self.others else ()
        return "; ".join((said, *also, *self.impossible))


class PublishedTypes:
    """Asks the lookup services. Safe for several threads. What does not answer in time counts as not there."""

    def __init__(self, community: JoinManager, config: Config) -> None:
        self._community = community
        self._security = config.security()
        self._lock = threading.Lock()
        self._answers: dict[object, tuple[float, object]] = {}
        self._types: dict[str, InformationType] = {}
        """By the digests of their schemas."""
        self._cache = config.type_cache()

    def await_service(self, timeout: float) -> None:
        """Wait until a lookup service answers. Raises LookupNotFoundError when none does within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._community.connected():
            if time.monotonic() >= deadline or self._community.refused() is not None:
                self._community.lookup(ServiceTemplate(), 1, timeout=0.0, waited=timeout)
                return
            time.sleep(0.005)  # sessions make progress on their own threads

    def meant(self, called: str, own: str = "") -> Described:
        """Template of the type that is called so: the type of that name, or the only one with that local
        name, or of several that which a schema names itself (`own`); if none is published, whatever will have that
        local name."""
        if self.is_published(called):
            return Described(name=called)
        having = with_local_name(called, self.names())
        if own in having:
            return Described(name=own)
        if len(having) == 1:
            return Described(name=having[0])
        return Described(local=called) if not having and local_name(called) == called else Described(name=called)

    def opened(self, name: str, version: str) -> InformationType | None:
        """The type as all publish it who do; None when their schemas differ, or none of them gives it. `version` "" is
        any."""
        wanted = Described(name=name, version=version or None)
        digests, versions = self._values(wanted, "schema"), self._values(wanted, "version")
        if len(digests) != 1 or len(versions) != 1 or not digests[0]:  # "": published without a schema
            return None
        if (known := self._types.get(digests[0])) is None:
            asked = self._found(wanted, ASKED)
            known = next(filter(None, (self._fetched(item, name, versions[0], digests[0]) for item in asked)), None)
        if known is not None:
            self._types = dict([*self._types.items(), (digests[0], known)][-TYPES_KEPT:])
        return known

    def by(self, bundle: SchemaBundle) -> InformationType:
        """The type that a schema stands for. Raises SchemaError."""
        return InformationType(OPENER.open(bundle, cache_dir=self._cache), bundle)

    def registered(self, type_: TypeName) -> InformationType | None:
        """The type as the type repositories of delegates have it; None when none has, or they are not of one mind."""
        try:
            held = held_elsewhere(self._community, self._security, ("type", type_))
            if held is None:
                return None
            opened = self.by(held.bundle)
        except JbiError as exc:
            log.warning("the type repositories give no schema of %s: %s", type_, exc)
            return None
        return opened if opened.type == type_ and opened.digest == held.descriptor.digest else None

    def _fetched(self, item: ServiceItem, name: str, version: str, digest: str) -> InformationType | None:
        try:
            bundle = fetch_schema(item.proxy, self._security, name, version, timeout=ASK_SECONDS)
            opened = self.by(bundle)
        except JbiError as exc:
            log.warning("%s gives no schema of %s: %s", ", ".join(item.proxy.endpoints), name, exc)
            return None
        return opened if opened.digest == digest and opened.type == TypeName(name, version) else None

    def names(self) -> Sequence[str]:
        """Names of all types."""
        return self._values(Described(), "name")

    def types(self, timeout: float) -> list[TypeName]:
        """Types and versions, as soon as a lookup service answers. Raises as `await_service`."""
        self.await_service(timeout)
        return sorted(TypeName(name, version) for name in self.names() for version in self.versions(name))

    def versions(self, name: str) -> Sequence[str]:
        """Versions of one type."""
        return self._values(Described(name=name), "version")

    def why_none(self, entries: Sequence[EntryRep], *, is_whole: bool, digest: str = "") -> str:
        """Why nothing matches a template, as far as the type it names says (`is_whole`: in full; `digest`: of the
        schema that the template was made with, "" for none); "": what does was registered just now."""
        asked = type_asked(entries)
        name, version, names = asked.name or asked.local or "", asked.version or "", self.names()
        if not names:
            return "nothing is published now"
        if not name:
            return "no registration has the values of the template"
        having = [] if is_whole else with_local_name(name, names)
        if asked.local and having:
            return f"{_listed(having)} is published, but without the values of the template"
        if name in names:
            versions = self.versions(name)
            if version and version not in versions:
                return f"{name} is published in version {_listed(versions)}, not {version}"
            if len(entries) == 1:
                return ""
            if digest and digest not in self._values(Described(name=name, version=version or None), "schema"):
                return f"{name} is published with another schema than that of the template, and without its values"
            return f"{name} is published, but without the values of the template"
        if having:
            return f"{name} may be one of several types: {_listed(having)}; name one in full"
        return f"nobody publishes {name}; there are {_listed(nearest(name, names))}"

    def others(self, called: str, meant: str | None) -> tuple[str, ...]:
        """Types that may be meant as well by the last part of a name: those that have it, without the one that was
        `meant`, or all, if there are several and whatever has it was meant (None)."""
        having = with_local_name(called, self.names())
        return tuple(name for name in having if name != meant) if meant or len(having) > 1 else ()

    def is_published(self, name: str) -> bool:
        """Whether somebody publishes the type of that name now."""
        return bool(self._found(Described(name=name), 1))

    def _found(self, wanted: Described, limit: int) -> Sequence[ServiceItem]:
        template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=(wanted.rep(),))
        return self._once((wanted, limit), lambda: self._asked(lambda proxy: proxy.lookup(template, limit).items))

    def _values(self, wanted: Described, field: str) -> Sequence[str]:
        template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=(wanted.rep(),))
        values = self._once((wanted, field), lambda: self._asked(lambda proxy: proxy.field_values(template, 0, field)))
        return sorted({value for value in values if value is not None})

    def _asked(self, ask: Callable[[RegistrarProxy], Iterable[T]]) -> list[T]:
        """Answers of all lookup services that give one."""
        found: list[T] = []
        for session in self._community.sessions():
            if not session.connected:
                continue
            proxy = RegistrarProxy(session.ref, self._security, timeout=ASK_SECONDS)
            try:
                found += ask(proxy)
            except JbiError as exc:
                log.debug("lookup service %s does not say what is published: %s", session.ref.endpoints, exc)
            finally:
                proxy.close()
        return found

    def _once(self, question: object, ask: Callable[[], list[T]]) -> list[T]:
        now = time.monotonic()
        with self._lock:
            self._answers = {key: kept for key, kept in self._answers.items() if now - kept[0] < FRESH_SECONDS}
            known = self._answers.get(question)
        if known is None:
            known = (now, ask())
            with self._lock:
                self._answers[question] = known
        return known[1]  # type: ignore[return-value]  # a question has answers of one type


def type_asked(entries: Sequence[EntryRep]) -> Described:
    """Type of a template; all fields None when it names none."""
    rep = next((rep for rep in entries if rep.cls.name == Described.entry_name), None)
    return Described() if rep is None else Described.from_rep(rep)


def with_local_name(name: str, names: Iterable[str]) -> list[str]:
    """The types that `name` may stand for."""
    return [known for known in names if local_name(known) == name]


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """The names in order of likeness, letter case and namespace apart; of long ones their beginnings are compared."""

    def likeness(known: str) -> float:
        pairs = ((name, known), (local_name(name), local_name(known)))
        begins = ((a[:NAME_MOST].casefold(), b[:NAME_MOST].casefold()) for a, b in pairs)
        return max(difflib.SequenceMatcher(None, a, b).ratio() for a, b in begins)

    return sorted(names, key=likeness, reverse=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more

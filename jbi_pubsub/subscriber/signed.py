"""Signatures of what arrives, which is looked at before anybody has it: [tls] verify (docs/signatures.md).

A subscriber takes nobody's word for a key: whoever gives it, the id of the registration is made from it, and a
certificate answers for it. For what a delegate says of a payload that it has cut, that certificate has to be the one of
the connection.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import EntryError, JbiError, SignatureError, WireError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.signing import SigningKey, Verifier, cut_bytes, object_bytes, payload_digest_of, shaped_bytes
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import SigningKeyEntry
from jbi_pubsub.protocol.services import SubscriptionsProxy
from jbi_pubsub.trust.settings import verifier_of

from .first_level import Screening

log = logging.getLogger("jbi_pubsub.subscriber")

ASK_SECONDS: Final = 2.0
"""For a delegate to say what a registration signs with: what came with it waits so long, once for each registration."""

PAUSE: Final = 0.2
"""Seconds between two tries to ask."""
AWAY_SECONDS: Final = 10.0
"""After a try that failed, for which what else comes of that delegate waits for no second one."""
ASK_AGAIN: Final = 1.0
"""Seconds after which a delegate that gave no good key is asked again."""
ASKED_MOST: Final = 1_000
KEYS_MOST: Final = 4
"""Keys of one item that are looked at: it has one, and a hostile one may have thousands, at 0.4 ms each."""

ORIGINAL: Final = 32
"""Bytes of a seal that are the digest of the payload as published; its signature follows."""


class DeliverySignatures:
    """The check of one subscriber, for all its sessions. Any thread."""

    @classmethod
    def of(cls, config: Config) -> DeliverySignatures | None:
        """The check that [tls] verify asks for; None: none. Raises ConfigurationError."""
        verifier = verifier_of(config)
        return None if verifier is None else cls(verifier, require=config.tls.verify == "require")

    def __init__(self, verifier: Verifier, *, require: bool) -> None:
        self.verifier = verifier
        self.require = require
        self._lock = threading.Lock()
        self.signed = 0
        """Deliveries whose signature holds; `bad_signature`: that have none, or does not."""
        self.bad_signature = 0

    def count(self, signed: int, bad: int, why: str) -> None:
        """Count what was looked at. The log is told of the first bad one, then whenever their number has doubled."""
        with self._lock:
            before, after = self.bad_signature, self.bad_signature + bad
            self.signed += signed
            self.bad_signature = after
        if before.bit_length() != after.bit_length() and not self.require:  # else it is told as a loss
            log.warning("%d objects without a valid signature: %s", after, why)


class SessionSignatures:
    """The same for what one delegate or peer publisher delivers. One thread at a time."""

    def __init__(
        self,
        check: DeliverySignatures,
        ref: ServiceRef,
        proxy: SubscriptionsProxy,
        item: Callable[[str], ServiceItem | None],
    ) -> None:
        """`item(uid)`: what the lookup services say of a registration."""
        self._check = check
        self._verifier = check.verifier
        self._ref = ref
        self._proxy = proxy
        self._item = item
        self._seen: dict[int, str | SignatureError] = {}
        """Signer of an object, by its identity, or why it is not known: one may be for several subscriptions."""

        self._asked: Cache[str, float] = Cache(ASKED_MOST)
        """When no good key was found (monotonic seconds)."""
        self._away_until = 0.0

    def begin(self) -> None:
        """Other objects than before."""
        self._seen.clear()

    def look(self, objects: Sequence[InfoObject], wanted: Sequence[bytes], *, takes_shapes: bool = False) -> Screening:
        """Objects for one subscription, each with the name of who signed it. `wanted`: digests of the payload filters
        that it has, or had moments ago; `takes_shapes`: it has asked for payloads to be shaped."""
        good: list[InfoObject] = []
        bad, why = 0, ""
        for obj in objects:
            try:
                name = self._signer_of(obj)
                if obj.platform.seal:
                    self._check_cut(obj, wanted, takes_shapes=takes_shapes)
            except SignatureError as exc:
                bad, why = bad + 1, why or f"object {obj.object_id}: {exc.message}"
                if not self._check.require:
                    good.append(obj)
            else:
                platform = msgspec.structs.replace(obj.platform, verified=name)
                good.append(msgspec.structs.replace(obj, platform=platform))
        self._check.count(len(objects) - bad, bad, why)
        return Screening(good, bad if self._check.require else 0, f"{why}; from {', '.join(self._ref.endpoints)}")

    def _signer_of(self, obj: InfoObject) -> str:
        seen = self._seen.get(id(obj))
        if seen is None:
            try:
                seen = self._find_signer(obj)
            except SignatureError as exc:
                seen = exc
            self._seen[id(obj)] = seen
        if isinstance(seen, SignatureError):
            raise seen
        return seen

    def _find_signer(self, obj: InfoObject) -> str:
        platform = obj.platform
        if not platform.signature:
            raise SignatureError("it is not signed")
        payload = platform.seal[:ORIGINAL] if platform.seal else payload_digest_of(obj)
        message = object_bytes(obj, payload)
        return self._verifier.check(platform.registration, message, platform.signature, self._keys)

    def _check_cut(self, obj: InfoObject, wanted: Sequence[bytes], *, takes_shapes: bool) -> None:
        """Raises SignatureError unless the delegate that we are connected with says that it has cut the payload by the
        filter of the subscription, or shaped it for one that has asked for that."""
        original, signature = obj.platform.seal[:ORIGINAL], obj.platform.seal[ORIGINAL:]
        left = payload_digest_of(obj)
        said = [cut_bytes(obj.object_id, by, original, left) for by in wanted]
        if takes_shapes:  # a filter leaves a payload as it is that is no XML
            said += [shaped_bytes(obj.object_id, by, original, left) for by in (*wanted, b"")]
        why = SignatureError("its payload was cut or shaped, and nobody has asked for that")
        for message in said:
            try:
                self._verifier.check(self._ref.service_id, message, signature, self._keys, self._ref.certificate)
            except SignatureError as exc:
                why = exc
            else:
                return
        raise why

    def _keys(self, holder: str) -> Iterator[SigningKey]:
        """Keys that are said to be its: by the lookup services, then by who has delivered. Not by others who deliver:
        what they say is for what they deliver."""
        now = time.monotonic()
        if now - self._asked.get(holder, -ASK_AGAIN) < ASK_AGAIN:
            return
        yield from self._said(holder)
        self._asked[holder] = now

    def _said(self, holder: str) -> Iterator[SigningKey]:
        item = self._item(holder)
        said = (rep for rep in (item.entries if item is not None else ()) if rep.cls.name == SigningKeyEntry.entry_name)
        for rep in itertools.islice(said, KEYS_MOST):
            try:
                yield SigningKeyEntry.from_rep(rep).signing_key()
            except EntryError as exc:
                log.debug("registration %s: %s", holder, exc)
        end, is_patient = time.monotonic() + ASK_SECONDS, time.monotonic() >= self._away_until
        while (left := end - time.monotonic()) > 0:
            try:
                key = self._proxy.signing_key(holder, left)
            except JbiError as exc:
                log.debug("%s does not say what %s signs with: %s", ", ".join(self._ref.endpoints), holder, exc)
                if not (is_patient and isinstance(exc, WireError)):
                    return
                self._away_until = time.monotonic() + AWAY_SECONDS
                time.sleep(min(PAUSE, left))  # its connection may have ended with its certificate of before
            else:
                self._away_until = 0.0
                if key is not None:
                    yield key
                return

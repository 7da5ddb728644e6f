"""Channels of a policy manager to the local managers that follow it: over each goes what that one is to have by now."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from jbi_pubsub.core.errors import OversizeError, PolicyError, ProtocolError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.wire.deflate import Allowance
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.places import share_of
from jbi_pubsub.core.wire.stream_socket import StreamSocket, Tokens, listen, refuse, welcome
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate

from .proxy import ALIVE, NEWS, Joining
from .space import MEMBERS_MOST, InformationSpaceManager, LqmReport

log = logging.getLogger("jbi_pubsub.policy")

REPORT_BYTES: Final = 256 << 10
"""Bytes of a report at most."""
OPEN_SECONDS: Final = 10.0
"""For the data connection of who has joined."""
TELL_SECONDS: Final = 60.0
"""Between two lines of the log about what is wrong at one local manager."""
TICK_SECONDS: Final = 1.0
"""Between two divisions of links, and two signs of life."""
DELEGATE_TYPE: Final = "jbi.PublisherAdapterDelegate"
GONE_SECONDS: Final = 30.0
"""Seconds after which one that is away, and in no lookup service, is gone: its share of links is free."""


HandOver = Callable[[socket.socket], Callable[[], None]]
"""Takes a connection from its endpoint; what it returns closes it."""


class LocalManagerChannel:
    """Channel to one local manager."""

    def __init__(self, managers: LocalManagerChannels, lqm: str, caller: Caller, version: int, hub: SenderHub) -> None:
        """`version`: of the rules of access that let `caller` follow."""
        self.lqm = lqm
        self.caller = caller
        self.peer = caller.peer
        self.version = version
        self.opened = time.monotonic()
        self.is_beating = False
        """A sign of life is due."""
        self.tell_again = -math.inf
        """When the log is told again what is wrong there."""
        self._managers = managers
        self._sender = HubSender(hub, take=self._take, acked=self._acked)

    def wake(self) -> None:
        """Have it take what there is."""
        self._sender.ready()

    def attach(self, sock: socket.socket, position: int, line: StreamSocket, close: Callable[[], None]) -> None:
        """Use that connection, which `close` closes."""

        def ended() -> None:
            self._managers.lost(self)
            close()

        self._sender.attach(sock, position, ended=ended, compression=line.compression)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._sender.connected

    def stop(self) -> None:
        """End it."""
        self._sender.stop()

    def _take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:  # noqa: ARG002  # one item at most
        item = self._managers.news(self)
        if item is None and not self.is_beating:
            return []
        self.is_beating = False
        return [(NEWS, item)] if item is not None else [(ALIVE,)]

    def _acked(self, count: int, note: bytes) -> None:  # noqa: ARG002  # the note says all
        if not note:
            return
        if len(note) > REPORT_BYTES:
            raise ProtocolError(f"report of {len(note)} bytes, {REPORT_BYTES} at most")
        self._managers.heard(self, decoded(decoder_of(LqmReport), note, "report of a local manager"))


class LocalManagerChannels:
    """All of them. The lock of the space covers them, too."""

    def __init__(
        self,
        space: InformationSpaceManager,
        lock: threading.Lock,
        community: JoinManager,
        compressed: Allowance,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when somebody may have to be told something."""
        self._space = space
        self._lock = lock
        self._community = community
        self._delegates = community.watch(ServiceTemplate(types=(DELEGATE_TYPE,)))
        self._beaten = -math.inf
        """When signs of life were sent last."""
        self._compressed = compressed
        self._changed = changed
        self._channels: dict[str, LocalManagerChannel] = {}
        self._tokens = Tokens()
        self.hub: Final = SenderHub(name="policy-hub")

    def wake(self, *, beat: bool) -> None:
        """Have all take what there is; `beat`: a sign of life is due."""
        with self._lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.is_beating |= beat
            channel.wake()

    def begin_beat(self) -> bool:
        """Whether signs of life are due: then these are them."""
        is_due = time.monotonic() >= self._beaten + TICK_SECONDS
        self._beaten = time.monotonic() if is_due else self._beaten
        return is_due

    def drop_gone(self) -> None:
        """End what has never come, and what is away for so long, and in no lookup service, that it is gone."""
        now = time.monotonic()
        with self._lock:
            for lqm, channel in list(self._channels.items()):
                if not channel.connected and now - channel.opened > OPEN_SECONDS:
                    self._space.lost(lqm, now)
            since = {lqm: member.away_since for lqm, member in self._space.members.items()}
        for lqm, at in since.items():
            is_away = at is not None and now - at > GONE_SECONDS
            if is_away and self._community.connected() and self._delegates.item(lqm) is None:
                log.warning("local manager %s is gone: its shares of links are free", lqm[:8])
                self.leave(lqm)

    def ask_again(self, version: int, may_follow: Callable[[Caller], bool]) -> None:
        """End those who may not follow any more, if the rules of access have changed: they are away, with what they
        have."""
        with self._lock:
            channels = [each for each in self._channels.values() if each.version != version]
        for channel in channels:
            channel.version = version  # first: who was ended is not asked about again
            if not may_follow(channel.caller):
                log.warning("local manager %s may not follow any more", channel.lqm[:8])
                channel.stop()

    def join(self, who: Joining, caller: Caller, version: int) -> str:
        """See PolicyProxy; `caller` is whose local manager it is, as the rules of access of that version let it."""
        peer = caller.peer
        with self._lock:
            self._check_whose(who.lqm, peer)
            channels = [each.lqm for each in self._channels.values() if each.peer == peer]
            if who.lqm not in channels and len(channels) >= share_of(MEMBERS_MOST):
                raise OversizeError(f"{share_of(MEMBERS_MOST)} local managers of one party follow, the limit")
            self._space.join(who.lqm, who.component, who.standing, who.rates, time.monotonic())
            if self._space.is_away(who.before) and self._is_of(who.before, peer):
                self._space.gone(who.before)  # it is here again, under another id
                self._channels.pop(who.before, None)
            before = self._channels.get(who.lqm)
            self._channels[who.lqm] = channel = LocalManagerChannel(self, who.lqm, caller, version, self.hub)
        if before is not None:
            before.stop()
        log.info("%s follows", who.component)
        return self._tokens.issue(channel)

    def _is_of(self, lqm: str, peer: str) -> bool:
        """Whether an id is free, or that of a local manager of this party. Called under the lock."""
        channel = self._channels.get(lqm)
        return channel is None or channel.peer == peer

    def _check_whose(self, lqm: str, peer: str) -> None:
        """Raises PolicyError for the id of another party's that is here: lookup services tell ids to everybody."""
        if not self._space.is_away(lqm) and not self._is_of(lqm, peer):
            raise PolicyError(f"local manager {lqm[:8]} is another party's, and follows", hint="Use your own id")

    def leave(self, lqm: str, peer: str = "") -> None:
        """See PolicyProxy; `peer` as in `join`, "" for ourselves."""
        with self._lock:
            if peer:
                self._check_whose(lqm, peer)
            self._space.gone(lqm)
            channel = self._channels.pop(lqm, None)
        if channel is not None:
            channel.stop()
        self._changed()

    def lost(self, channel: LocalManagerChannel) -> None:
        """Its connection is over."""
        with self._lock:
            if self._channels.get(channel.lqm) is channel:
                self._space.lost(channel.lqm, time.monotonic())

    def heard(self, channel: LocalManagerChannel, report: LqmReport) -> None:
        """Take a report of a local manager."""
        with self._lock:
            if self._channels.get(channel.lqm) is not channel:
                return
            is_due = self._space.heard(channel.lqm, report, time.monotonic())
        if report.fault and time.monotonic() >= channel.tell_again:
            channel.tell_again = time.monotonic() + TELL_SECONDS
            log.error("a local manager does not follow: %s", report.fault)
        if is_due:
            self._changed()

    def news(self, channel: LocalManagerChannel) -> bytes | None:
        """News to be sent to one, if there is something; nothing over a connection that another one came instead of."""
        lqm = channel.lqm
        with self._lock:
            is_old = self._channels.get(lqm) is not channel
            if is_old or lqm not in self._space.members or self._space.waits_for_room(lqm):
                return None
            news = self._space.news(lqm)
        return None if news is None else msgspec.msgpack.encode(news)

    def serve(self, sock: socket.socket, caller: Caller, hand_over: HandOver) -> None:
        """Serve a data connection, by the token that `join` has given."""
        line = StreamSocket(sock)
        hello = listen(line)
        channel: LocalManagerChannel | None = self._tokens.redeem(hello.token)
        if channel is None:
            refuse(line, "unknown or used token")
            return
        caller.place.kept = True
        welcome(line, 0, self._compressed.grant(hello.compression))
        channel.attach(sock, hello.position, line, hand_over(sock))
        self._changed()

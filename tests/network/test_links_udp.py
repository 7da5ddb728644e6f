"""Links of UDP over real sockets: trains, groups that do not hear each other, peers, and interfaces in trouble."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.links import trains, udp, waiting
from jbi_pubsub.network.links.trains import TRAIN_MOST, UdpSocket
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.links.waiting import LinkWaiter
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.side import SideTerms

from .linked import Driven, Spaces, driven, free_port, new_group


def on_lo(group: str, port: int, **given: Any) -> UdpLink:
    return UdpLink(group, port, interfaces=["lo"], **given)


@pytest.fixture
def pair() -> Iterator[Driven]:
    """Two links of a group."""
    group, port = new_group(), free_port()
    with driven(on_lo(group, port), on_lo(group, port)) as made:
        yield made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many datagrams each call to the system has sent."""
    sent: list[int] = []
    put = UdpSocket._put
    monkeypatch.setattr(UdpSocket, "_put", lambda self, run, to: (sent.append(len(run)), put(self, run, to)))
    return sent


def fail(monkeypatch: pytest.MonkeyPatch, number: int, *, least: int = 1) -> dict[str, bool]:
    """Calls that send so many datagrams or more raise that error as long as `is_on`."""
    switch = {"is_on": True}
    put = UdpSocket._put

    def failing(self: UdpSocket, run: Any, to: Any) -> None:
        if switch["is_on"] and len(run) >= least:
            raise OSError(number, errno.errorcode[number])
        put(self, run, to)

    monkeypatch.setattr(UdpSocket, "_put", failing)
    return switch


def test_datagrams_of_one_size_go_as_a_train_and_come_apart(pair: Driven, calls: list[int]) -> None:
    # Given datagrams of one size, a shorter one, others of a third size, and a long one
    sizes = [1_400] * 50 + [10] + [700] * 3 + [60_000] * 2
    said = [b"%04d" % number + bytes(size - 4) for number, size in enumerate(sizes)]

    # When they are sent, expect all of them as they were, in order, in few calls
    pair.send(0, said)
    pair.until(lambda: len(pair.came[1]) == len(said))
    assert pair.came[1] == said
    assert calls == [TRAIN_MOST, 7, 3, 1, 1]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_where_no_trains_go_each_goes_alone(
    pair: Driven, monkeypatch: pytest.MonkeyPatch, calls: list[int], number: int
) -> None:
    # Given a device that takes no trains
    fail(monkeypatch, number, least=2)
    said = [b"%04d" % at for at in range(100)]

    # Expect all of them nevertheless
    pair.send(0, said)
    pair.until(lambda: len(pair.came[1]) == len(said))
    assert pair.came[1] == said
    assert pair.links[0].status()["faults"] == {}


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOBUFS])
def test_a_busy_interface_is_waited_for_and_gets_nothing_twice(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    # Given a link with a group and a peer, of which the group's socket is busy
    group, port, peer_port = new_group(), free_port(), free_port()
    peer = UdpLink("", peer_port, peers=[("127.0.0.1", port)])
    with driven(on_lo(group, port, peers=[("127.0.0.1", peer_port)]), on_lo(group, port), peer) as net:
        put = UdpSocket._put
        busy = [True]

        def busy_put(self: UdpSocket, run: Any, to: Any) -> None:
            if busy[0] and self.index:
                raise OSError(number, "busy")
            put(self, run, to)

        monkeypatch.setattr(UdpSocket, "_put", busy_put)
        said = [b"%04d" % at for at in range(10)]

        # When something is sent, expect none to be taken, though the peer has it; when it is not busy any more, all
        assert net.links[0].send(said) == 0
        net.until(lambda: len(net.came[2]) == 10)
        busy[0] = False
        assert net.links[0].send([*said, b"more"]) == 11
        net.until(lambda: len(net.came[1]) == 11)

        # Expect both to have all of them, once
        net.until(lambda: len(net.came[2]) == 11)
        assert net.came[1] == net.came[2] == [*said, b"more"]


def test_a_socket_that_is_busy_for_long_counts_as_down(pair: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trains, "BUSY_MOST", 0.02)
    fail(monkeypatch, errno.EAGAIN)
    assert pair.links[0].send([b"one"]) == 0
    pair.until(lambda: pair.links[0].send([b"one"]) == 1)
    assert pair.links[0].status()["faults"]["EAGAIN"]


@pytest.mark.parametrize("number", [errno.ENETDOWN, errno.ENODEV, errno.EPERM, errno.ENETUNREACH])
def test_an_interface_that_is_down_is_joined_again(
    pair: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    # Given an interface that goes down
    monkeypatch.setattr(udp, "REJOIN_SECONDS", 0.02)
    pair.links[0].sockets()
    switch = fail(monkeypatch, number)

    # When something is sent for a while, expect it to be lost, the interface to be joined anew, and that told once
    before = pair.links[0].sockets()
    assert pair.links[0].send([b"lost", b"lost too"]) == 2
    pair.links[0]._look_at = 0.0  # type: ignore[attr-defined]  # the second is over
    assert pair.links[0].sockets() is not before
    for _ in range(3):
        assert pair.links[0].send([b"lost"]) == 1
        pair.links[0]._look_at = 0.0  # type: ignore[attr-defined]  # as above
        pair.step()
    assert len([each for each in caplog.records if "joined again" in each.message]) == 1
    assert pair.links[0].status()["faults"] == {errno.errorcode[number]: 4}
    assert pair.links[0].status()["trouble"]["lo"]

    # When it is up, expect what is sent to come, both ways
    switch["is_on"] = False
    pair.send(0, [b"there"])
    pair.send(1, [b"back"])
    pair.until(lambda: b"there" in pair.came[1] and b"back" in pair.came[0])
    assert b"lost" not in pair.came[1]
    assert pair.links[0].status()["trouble"] == {}


@pytest.mark.row("G-165", "G-65")
def test_two_groups_at_one_port_do_not_hear_each_other() -> None:
    # Given links of two groups at one port, and a link of peers there
    port = free_port()
    one, other = new_group(), new_group()
    with driven(on_lo(one, port), on_lo(one, port), on_lo(other, port), on_lo(other, port)) as net:
        # When each says something
        for at in (0, 2):
            net.send(at, [b"from %d" % at])
        net.until(lambda: net.came[1] and net.came[3])

        # Expect the other of its group to hear it, and nothing else
        net.step(0.05)
        assert net.came[1] == [b"from 0"]
        assert net.came[3] == [b"from 2"]


@pytest.mark.row("G-123", "G-185")
def test_what_the_kernel_had_no_room_for_is_counted() -> None:
    # Given a link with little room, that nobody reads
    group, port = new_group(), free_port()
    with driven(on_lo(group, port), on_lo(group, port, receive_buffer=4_608)) as net:
        net.send(0, [bytes(1_000)] * 1_000)

        # When more comes after it was read, expect it to say how many, or how many trains, were lost
        net.step()
        net.send(0, [b"more"])
        net.until(lambda: net.came[1][-1:] == [b"more"])
        assert net.links[1].status()["faults"]["no room"] > 0


@pytest.mark.row("G-66")
def test_a_burst_is_taken_before_any_of_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link with little room in the kernel, and whoever takes long to look at what comes
    group, port = new_group(), free_port()
    one, other = on_lo(group, port), on_lo(group, port, receive_buffer=60_000)
    waiter = LinkWaiter([other])
    came: list[bytes] = []
    monkeypatch.setattr(waiting, "SLICE", 10)
    try:
        # When more and more comes while a little is looked at each time, expect none to be lost
        for number in range(60):
            one.send([b"%04d" % number + bytes(1_000)] * 20)
            came += [data for _, data in waiter.came(1.0)]
        while found := waiter.came(0.0):
            came += [data for _, data in found]
        assert len(came) == 60 * 20
        assert "no room" not in other.status()["faults"]

        # When too much waits here, expect it to stay in the kernel, and what comes then to be lost there
        monkeypatch.setattr(waiting, "COMING_MOST", 10_000)
        for _ in range(200):
            one.send([bytes(1_000)] * 40)
            waiter.came(0.01)
        while waiter.came(0.0):
            pass
        one.send([b"more"])
        while not any(data == b"more" for _, data in waiter.came(1.0)):
            one.send([b"more"])
        assert other.status()["faults"]["no room"] > 0
    finally:
        waiter.close()
        one.close()
        other.close()


def test_buffers_are_as_they_are_wished() -> None:
    group, port = new_group(), free_port()
    with driven(on_lo(group, port, send_buffer=30_000, receive_buffer=40_000)) as net:
        [sock] = net.links[0].sockets()
        assert isinstance(sock, socket.socket)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 80_000


@pytest.mark.row("G-66")
@pytest.mark.parametrize("ttl", [1, 7])
@pytest.mark.parametrize("group", ["239.78.1.2", "ff02::4a43"])
def test_multicast_goes_over_as_many_routers_as_it_is_set(group: str, ttl: int) -> None:
    four, six = (socket.IPPROTO_IP, socket.IP_MULTICAST_TTL), (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS)
    with driven(on_lo(group, free_port(), ttl=ttl)) as net:
        [sock] = net.links[0].sockets()
        assert isinstance(sock, socket.socket)
        assert sock.getsockopt(*(six if ":" in group else four)) == ttl


def test_bytes_that_have_not_left_are_known(pair: Driven) -> None:
    # Given a link that holds back what it is given
    [sock] = pair.links[0].sockets()
    assert isinstance(sock, socket.socket)
    assert pair.links[0].waiting() == 0
    sock.setsockopt(socket.IPPROTO_UDP, 1, 1)  # UDP_CORK
    pair.send(0, [bytes(1_000)])
    assert pair.links[0].waiting() >= 1_000


@pytest.mark.row("G-16", "G-39", "X-14", "G-65")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_peers_hear_each_other_both_ways(host: str) -> None:
    one, other = free_port(host=host), free_port(host=host)
    with driven(UdpLink("", one, peers=[(host, other)]), UdpLink("", other, peers=[(host, one)])) as net:
        said = [b"%04d" % at + bytes(1_000) for at in range(100)]
        net.send(0, said)
        net.send(1, [b"back"])
        net.until(lambda: len(net.came[1]) == 100 and net.came[0])
        assert net.came == [[b"back"], said]


@pytest.mark.row("G-93", "G-200")
@pytest.mark.parametrize("is_ring", [False, True])
def test_in_a_chain_and_a_ring_of_peers_each_way_carries_each_datagram_once(
    monkeypatch: pytest.MonkeyPatch, is_ring: bool
) -> None:
    # Given four nodes, each a peer of those beside it
    ports = [free_port() for _ in range(4)]
    ways = [(0, 1), (1, 2), (2, 3)] + [(3, 0)] * is_ring
    links = [
        UdpLink("", port, peers=[("127.0.0.1", ports[b if a == at else a]) for a, b in ways if at in (a, b)])
        for at, port in enumerate(ports)
    ]
    read = [0]
    receive = UdpSocket.receive

    def counted(self: UdpSocket) -> Any:
        found = receive(self)
        read[0] += len(found)
        return found

    monkeypatch.setattr(UdpSocket, "receive", counted)
    with driven(*links) as net:
        # When the first says something
        said = [b"%04d" % at for at in range(20)]
        net.send(0, said)
        net.until(lambda: all(len(each) == 20 for each in net.came[1:]))

        # Expect all others to hear it once, the first nothing, and each way to carry it once in a direction at most
        for _ in range(10):
            net.step()
        assert [sorted(each) for each in net.came[1:]] == [said] * 3
        assert not net.came[0]
        assert read[0] <= 20 * len(ways) * (2 if is_ring else 1)


def test_what_is_no_group_no_interface_or_no_peer_is_told() -> None:
    for given in ("10.1.1.1", "house"):
        with pytest.raises(ConfigurationError, match="not a multicast address") as told:
            UdpLink(given, free_port())
        assert "group" in told.value.hint
    with pytest.raises(ConfigurationError, match=r"none0: no such interface") as told:
        UdpLink(new_group(), free_port(), interfaces=["none0"])
    assert "ip link" in told.value.hint
    with pytest.raises(ConfigurationError, match="has no address") as told:
        UdpLink("", free_port(), peers=[("no.such.host.invalid", 1)])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        with pytest.raises(ConfigurationError, match="in use"):
            UdpLink("", taken.getsockname()[1], peers=[("127.0.0.1", 1)])


class Machines:
    """Two machines with an interface between them, and a link on each that is driven there."""

    def __init__(self, spaces: Spaces, group: str, *interfaces: str) -> None:
        """`interfaces`: of the first, none for all."""
        self.spaces = spaces
        self.driven: list[Driven] = []
        for at in range(2):
            with spaces.inside(at):
                self.driven.append(Driven(UdpLink(group, 4_170, interfaces=["link0"] if at else interfaces)))

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *why: object) -> None:
        for each in self.driven:
            each.close()

    def came(self, at: int) -> list[bytes]:
        return self.driven[at].came[0]

    def link(self, at: int) -> UdpLink:
        link = self.driven[at].links[0]
        assert isinstance(link, UdpLink)
        return link

    def say(self, at: int, text: bytes) -> bool:
        """Say it at one, and hear; whether the other has heard it."""
        for side in (at, 1 - at):
            with self.spaces.inside(side):
                if side == at:
                    self.link(side).send([text])
                self.driven[side].step(0.01)
        return text in self.came(1 - at)

    def hear_each_other(self, text: bytes) -> None:
        """Both say it again and again until the other has heard it."""
        end = time.monotonic() + 20.0
        while not (self.say(0, b"there " + text) and self.say(1, b"back " + text)):
            assert time.monotonic() < end, [self.link(at).status() for at in range(2)]


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    if why := Spaces.missing():
        pytest.skip(why)
    with Spaces() as made:
        yield made


def test_interfaces_that_nobody_has_named_and_that_have_never_sent_are_no_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a host with an interface that can't multicast
    join = UdpLink._join

    def fails(link: UdpLink, sock: socket.socket, index: int) -> None:
        if index == 4_711:
            raise OSError(errno.ENODEV, "No such device")
        join(link, sock, index)

    there = socket.if_nameindex()
    monkeypatch.setattr(socket, "if_nameindex", lambda: [*there, (4_711, "tunnel0")])
    monkeypatch.setattr(UdpLink, "_join", fails)
    # When a network is on all interfaces, or on that one too
    for wanted, trouble in ((), {}), (("lo", "tunnel0"), {"tunnel0": "No such device"}):
        link = UdpLink(new_group(), free_port(), interfaces=wanted)
        # Expect it to be trouble for who has named it alone
        assert link.status()["trouble"] == trouble
        link.close()


@pytest.mark.row("G-121", "G-164")
@pytest.mark.parametrize("group", ["239.78.1.1", "ff02::4a42", "ff05::4a42"])
def test_an_interface_goes_and_comes_back_while_others_go_on(
    group: str, spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two machines that hear each other, the first by all interfaces that it has
    monkeypatch.setattr(udp, "REJOIN_SECONDS", 0.02)
    with Machines(spaces, group) as both:
        both.hear_each_other(b"before")

        # When the interface is removed, expect what is said there to be lost, and the others to go on
        spaces.ip(0, "link", "delete", "link0")
        for at in range(10):
            assert not both.say(0, b"lost %d" % at)
        assert "link0" not in both.link(0).status()["interfaces"]
        assert ":" in group or b"lost 9" in both.came(0)  # loopback has no groups of IPv6

        # When it comes back, under another number, expect both to hear each other
        spaces.connect()
        both.hear_each_other(b"after")


@pytest.mark.row("G-121")
def test_an_interface_that_is_down_for_a_while_goes_on_later(spaces: Spaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "REJOIN_SECONDS", 0.02)
    with Machines(spaces, "239.78.1.2", "link0") as both:
        both.hear_each_other(b"before")
        spaces.ip(0, "link", "set", "link0", "down")
        for at in range(10):
            assert not both.say(0, b"lost %d" % at)
        assert both.link(0).status()["faults"]
        spaces.ip(0, "link", "set", "link0", "up")
        both.hear_each_other(b"after")


@pytest.mark.row("G-163")
def test_a_slow_interface_holds_what_is_given_and_says_so(spaces: Spaces) -> None:
    # Given a link whose interface sends 19,200 bit/s
    spaces.shape(0, 19_200)
    with Machines(spaces, "239.78.1.3", "link0") as both:
        both.hear_each_other(b"before")

        # When it is given more than goes at once, expect it to say that it waits
        with spaces.inside(0):
            assert both.link(0).send([bytes(1_400)] * 4) == 4
        assert both.link(0).waiting() >= 2_800


@pytest.mark.row("G-122", "G-123")
def test_a_network_leaves_no_more_than_a_datagram_in_front_of_a_slow_interface(
    spaces: Spaces, eventually: Callable[..., Any]
) -> None:
    # Given a network at the rate of its interface, 19,200 bit/s
    spaces.shape(0, 19_200)
    me = bytes(15)
    with spaces.inside(0):
        link = UdpLink("239.78.1.4", 4_170, interfaces=["link0"])
        network = Network(me + b"1", 1, [NetworkLink(link, SideTerms(2_400.0))], lambda _: None)
    most = [0]
    send, waiting = link.send, link.waiting

    def sent(datagrams: Any) -> int:
        taken = send(datagrams)
        most.append(waiting())
        return taken

    link.send = sent  # type: ignore[method-assign]  # watched
    # When it says much more than goes at once
    network.start()
    try:
        network.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.UNRELIABLE, os.urandom(5_000), me + b"1"))
        eventually(lambda: len(most) > 4)
    finally:
        network.stop()

    # Expect one to be in the kernel at a time, with what the kernel needs to keep it
    assert 1_300 < max(most) < 2 * 1_500 + 1_000


def test_where_no_more_sockets_can_be_opened_it_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link whose interface is in trouble, in a process that has no room for another socket
    group, port, make = new_group(), free_port(), socket.socket
    with driven(on_lo(group, port), on_lo(group, port)) as net:
        switch = fail(monkeypatch, errno.ENETDOWN)
        net.links[0].send([b"lost"])

        def full(*_: Any) -> socket.socket:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(udp.socket, "socket", full)
        net.links[0]._look_at = 0.0  # type: ignore[attr-defined]  # the second is over
        assert net.links[0].sockets() == ()
        assert net.links[0].send([b"lost"]) == 1
        assert net.links[0].status()["trouble"] == {"lo": "Too many open files"}

        # When there is room, expect it to be joined
        monkeypatch.setattr(udp.socket, "socket", make)
        switch["is_on"] = False
        net.links[0]._look_at = 0.0  # type: ignore[attr-defined]  # as above
        net.step()
        net.send(0, [b"there"])
        net.until(lambda: net.came[1] == [b"there"])

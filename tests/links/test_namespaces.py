"""The paper's slowest link in the kernel's own TCP: two network namespaces, a veth pair between them, 7,200 bit/s.

Lookup service, delegate and publisher are on the ground, the subscriber is in the air, each a process. Skipped, with
the reason, where one may not make namespaces or the kernel has no `tbf`. `benchmarks/links.py --namespaces` uses the
same for what takes longer.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Self

import pytest

AIRBORNE: Final = 7_200
"""Bits a second of the paper's slowest link."""
BURST_BYTES: Final = 1_540
"""One Ethernet frame and its header may go at once: tbf passes nothing larger than its burst (tc-tbf(8))."""
QUEUE_BYTES: Final = 8_000
"""What the modem holds, 9 s of the link; it drops what comes then, and TCP slows down."""
GROUND, AIR = "10.77.0.1", "10.77.0.2"
FIGURES: Final = Path(__file__).parents[2] / "examples" / "data" / "intel_imagery"

PUBLISHER: Final = """
import sys, pathlib
from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.core.config import effective
schema, figure = map(pathlib.Path, sys.argv[1:3])
with PublisherAdapterLight(effective()) as publisher:
    uid = publisher.register_publisher(publisher.connect_to_delegate("alpha", "rome"), schema, figure)
    print("ready", flush=True)
    for line in sys.stdin:
        publisher.publish(uid, figure.read_bytes(), pathlib.Path(line.strip()).read_bytes())
"""
"""Publishes figure 1 with each file that it is told."""

SUBSCRIBER: Final = """
import json, sys, time
from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.config import effective
with SubscriberAdapter(effective()) as subscriber:
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", payload_filter=sys.argv[1])
    assert subscriber.wait_matched(uid, 1, 60.0) == 1
    print("ready", flush=True)
    for obj in subscriber.objects(uid, 600.0):
        lost = subscriber.status()["subscriptions"][uid]["lost"]
        said = {"sequence": obj.platform.sequence, "size": len(obj.payload), "at": time.monotonic(), "lost": lost}
        print(json.dumps(said | {"relevant": obj.payload.count(b"A10A")}), flush=True)
"""
"""Prints what comes, when (the clock is that of all processes), and the losses it has been told by then."""


class Namespaces:
    """Ground and air, with a link between them, and the processes on either side. `with` removes all of it."""

    def __init__(self) -> None:
        self.ground, self.air = (f"jbi-{side}-{os.getpid()}" for side in ("ground", "air"))
        self._processes: list[subprocess.Popen[str]] = []
        self.locator = ""

    @staticmethod
    def missing() -> str:
        """Why there can be none here; "" if there can."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return "network namespaces need Linux and root"
        if not shutil.which("ip") or not shutil.which("tc"):
            return "ip and tc (iproute2) are not installed"
        try:
            with Namespaces() as tried:
                tried.shape(AIRBORNE)
        except subprocess.CalledProcessError as exc:
            return f"{' '.join(exc.cmd)}: {exc.stderr.strip()}"
        return ""

    def __enter__(self) -> Self:
        try:
            for space in (self.ground, self.air):
                run("ip", "netns", "add", space)
                run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", self.ground, "link", "add", "link0", "type", "veth", "peer", "link0", "netns", self.air)
            for space, address in ((self.ground, GROUND), (self.air, AIR)):
                run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "link0")
                run("ip", "-n", space, "link", "set", "link0", "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *why: object) -> None:
        for process in reversed(self._processes):
            process.kill()  # what they would say over a slow link nobody waits for
            process.communicate()
        for space in (self.ground, self.air):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    def shape(self, bits_per_second: int) -> None:
        """So many each way from now on."""
        tbf = ("tbf", "rate", f"{bits_per_second}bit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))
        for space in (self.ground, self.air):
            run("tc", "-n", space, "qdisc", "replace", "dev", "link0", "root", *tbf)

    def down(self) -> None:
        """The link fails: nothing comes any more in the air, and nobody is told there."""
        run("ip", "-n", self.ground, "link", "set", "link0", "down")

    def up(self) -> None:
        """It works again."""
        run("ip", "-n", self.ground, "link", "set", "link0", "up")

    def carried(self) -> tuple[int, int]:
        """Bytes to the air and to the ground so far: IP, TCP and what they carry, without the Ethernet headers."""
        [link] = json.loads(run("ip", "-n", self.air, "-s", "-j", "link", "show", "link0"))
        counted = link["stats64"]
        return tuple(counted[way]["bytes"] - 14 * counted[way]["packets"] for way in ("rx", "tx"))  # type: ignore[return-value]  # two of them

    def start(self, space: str, *arguments: str, **settings: object) -> subprocess.Popen[str]:
        """A Python process there, with JBI_* settings. It can be talked to by lines."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("JBI_")}
        environment |= {f"JBI_{key.upper()}": str(value) for key, value in settings.items()}
        environment |= {"JBI_CONFIG": os.devnull, "JBI_LOOKUP_MULTICAST": "false", "JBI_TLS_INSECURE": "true"}
        environment |= {"JBI_LOOKUP_LOCATORS": self.locator} if self.locator else {}
        command = ["ip", "netns", "exec", space, sys.executable, *arguments]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self._processes.append(subprocess.Popen(command, **pipes))
        return self._processes[-1]

    def serve(self, **settings: object) -> None:
        """Lookup service and delegate on the ground."""
        lookup = self.start(self.ground, "-m", "jbi_pubsub", "lookup", "--host", GROUND, "--port", "0", "--json")
        self.locator = json.loads(said(lookup))["address"]
        pad = ("-m", "jbi_pubsub", "pad", "alpha", "rome", "--host", GROUND, "--json")
        self.delegate = json.loads(said(self.start(self.ground, *pad, **settings)))["address"]

    def publisher(self, **settings: object) -> subprocess.Popen[str]:
        """On the ground, registered."""
        files = (str(FIGURES / "Intel_Imagery.xsd"), str(FIGURES / "fig1.xml"))
        process = self.start(self.ground, "-c", PUBLISHER, *files, **settings)
        assert said(process) == "ready"
        return process

    def subscriber(self, payload_filter: str = "", **settings: object) -> subprocess.Popen[str]:
        """In the air, registered at the delegate."""
        process = self.start(self.air, "-c", SUBSCRIBER, payload_filter, **settings)
        assert said(process) == "ready"
        return process


def run(*command: str) -> str:
    """What a command of iproute2 prints. Raises CalledProcessError."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20.0).stdout


def said(process: subprocess.Popen[str]) -> str:
    """The next line it prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process has ended"
    return line.strip()


def ready(process: subprocess.Popen[str], seconds: float) -> bool:
    """Whether it prints something within so long. Not while a line that it has printed has not been taken."""
    return bool(select.select([process.stdout], [], [], seconds)[0])


def tell(process: subprocess.Popen[str], *lines: object) -> None:
    """Give it lines."""
    stdin: IO[str] | None = process.stdin
    assert stdin is not None
    for line in lines:
        stdin.write(f"{line}\n")
    stdin.flush()


def tasking_order(size: int, *, every: int) -> bytes:
    """An ATO of about so many bytes: targets as in figure 4, one in `every` of the relevant kind."""
    target = (
        "<descriptor><name>T%05d</name><type>%s</type><position><lat>34.817</lat><ladir>N</ladir>"
        "<long>67.817</long><lodir>E</lodir></position></descriptor>"
    )
    count = size // len(target % (0, "A10A"))
    return f"<targets>{''.join(target % (n, 'F15E' if n % every else 'A10A') for n in range(count))}</targets>".encode()


RELEVANT: Final = "//descriptor[./type='A10A']"


@pytest.fixture(scope="module")
def possible() -> None:
    """Skips, loudly, where there are no namespaces."""
    why = Namespaces.missing()
    if why:
        pytest.skip(f"no network namespaces here: {why}")


@pytest.fixture
def spaces(possible: None) -> Iterator[Namespaces]:
    """Ground and air, a lookup service and a delegate on the ground, the link at its full speed."""
    with Namespaces() as made:
        yield made


@pytest.mark.row("J-94")
@pytest.mark.processes
@pytest.mark.parametrize(
    ("speed", "seconds"),
    [pytest.param(AIRBORNE, 10.0, marks=pytest.mark.slow), (4 * AIRBORNE, 60.0)],
    ids=["as in the paper", "at four times the speed"],
)
def test_a_filtered_tasking_order_crosses_a_slow_link_of_real_tcp_in_the_papers_time(
    spaces: Namespaces, tmp_path: Path, speed: int, seconds: float
) -> None:
    # Given an aircraft that wants one percent of the air tasking order
    spaces.serve()
    publisher = spaces.publisher()
    subscriber = spaces.subscriber(RELEVANT)
    order = tmp_path / "order.xml"
    order.write_bytes(tasking_order(500_000, every=100))
    spaces.shape(speed)
    down = spaces.carried()[0]

    # When 500 KB are published, which would take nine minutes, or two and a quarter
    began = time.monotonic()
    tell(publisher, order)
    came = json.loads(said(subscriber))

    # Expect all that is relevant, for a seventieth of the bytes with everything that TCP adds: within the paper's 10 s
    # (or, in short and maybe on a busy machine, long before the whole of it would be there)
    assert came["relevant"] == order.read_bytes().count(b"A10A")
    assert came["at"] - began <= seconds
    assert spaces.carried()[0] - down < 500_000 / 70


def airborne(spaces: Namespaces, tmp_path: Path, *, lease: float) -> tuple[Any, Any, Path]:
    """A publisher, a subscriber under that lease over 7,200 bit/s that has received an object, and its payload."""
    spaces.serve()
    publisher = spaces.publisher()
    subscriber = spaces.subscriber(lease_subscriber=lease, lease_lookup=60.0, lookup_probe=60.0)
    spaces.shape(AIRBORNE)
    payload = tmp_path / "payload"
    payload.write_bytes(b"x")
    tell(publisher, payload)
    assert json.loads(said(subscriber))["sequence"] == 1
    return publisher, subscriber, payload


def just_renewed(spaces: Namespaces, eventually: Callable[..., Any]) -> None:
    """Waits until the aircraft has renewed its lease: nothing else is said on the idle link."""
    before = spaces.carried()[1]
    eventually(lambda: spaces.carried()[1] > before + 100, what="a renewal")


def wait(seconds: float, eventually: Callable[..., Any]) -> None:
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= end, seconds + 1.0)


@pytest.mark.slow
@pytest.mark.processes
def test_an_outage_of_half_a_lease_costs_nothing_over_real_tcp(
    spaces: Namespaces, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given an aircraft under a lease of 6 s over 7,200 bit/s, which it has just renewed
    publisher, subscriber, payload = airborne(spaces, tmp_path, lease=6.0)
    just_renewed(spaces, eventually)

    # When the link is gone for half of it, and objects are published meanwhile and afterwards
    spaces.down()
    tell(publisher, *[payload] * 3)
    wait(3.0, eventually)
    spaces.up()
    tell(publisher, payload)

    # Expect all of them, and no loss told: the same session goes on
    came = [json.loads(said(subscriber)) for _ in range(4)]
    assert [obj["sequence"] for obj in came] == [2, 3, 4, 5]
    assert [obj["lost"] for obj in came] == [{}] * 4


@pytest.mark.slow
@pytest.mark.processes
def test_after_an_outage_of_three_leases_it_is_registered_again_over_real_tcp(
    spaces: Namespaces, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given an aircraft under a lease of 3 s over 7,200 bit/s
    publisher, subscriber, payload = airborne(spaces, tmp_path, lease=3.0)

    # When the link is gone for three of them, and objects are published meanwhile
    spaces.down()
    tell(publisher, payload)
    wait(9.0, eventually)
    spaces.up()
    published = 2

    # Expect that it comes back by itself, which takes it some seconds, and that it is told that something may be lost
    for _ in range(30):
        tell(publisher, payload)
        published += 1
        if ready(subscriber, 1.0):
            break
    first = json.loads(said(subscriber))
    assert first["lost"] == {"delegate_dead": 1}

    # Expect everything from then on, once and in order
    tell(publisher, payload)
    came = [first["sequence"]]
    while came[-1] <= published:
        came.append(json.loads(said(subscriber))["sequence"])
    assert came == list(range(came[0], published + 2))

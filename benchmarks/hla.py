"""What an RTI carries, and a bridge between two: `python benchmarks/hla.py [--seconds 5]`.

RTIs, bridges and federates are processes of their own, over loopback. Told are: attribute updates received a second
(one sender, one receiver, 100 bytes and 4 KB, one by one and a hundred a flush) at one RTI, over a bridge to another
one, and over a bridge that renames, changes units and coarsens, with ten thousand other instances on its sides; beside
them the same bytes through a plain socket between two processes; how long a single update takes at one RTI and over the
bridges; from a request to the grant of a time (2 federates), and steps a second in lockstep (2, 20, 100 federates).
Told besides is how long an RTI computes for an update, and for a region that moves, while others want some hundreds of
regions (`--regions` tells that alone).
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from time import monotonic_ns

from jbi_pubsub.core.config import Config, LookupSection
from jbi_pubsub.hla import rti as services
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.execution import FederationModel
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.fom import parsed

GROUP = "bench-hla"
MODULE = """<objectModel><objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Aircraft</name>
<attribute><name>state</name></attribute>
<attribute><name>altitude</name><dataType>HLAfloat64BE</dataType></attribute></objectClass></objectClass></objects>
</objectModel>"""
FAR = MODULE.replace("Aircraft", "Track").replace("altitude", "height").replace("float64BE", "float32LE")
BRIDGE = """poll = 0.2
[side.bench]
kind = "hla"
federation = "bench"
[side.other]
kind = "hla"
federation = "{far}"
"""
UGLY = """[[direction]]
from = "bench"
to = "other"
[[direction.class]]
name = "Aircraft"
to = "Track"
rate = 1e6
attribute.altitude = { name = "height", unit = ["ft", "m"], step = 100.0 }
"""
CLASSES = {"bench": ("Aircraft", "altitude"), "same": ("Aircraft", "altitude"), "ugly": ("Track", "height")}
"""What is simulated in a federation."""
INSTANCES = 10_000
"""That are there besides, behind the ugly bridge."""


STAMP = Struct(">Q")
"""Nanoseconds of a clock that all processes of a host share."""
READER = """import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while sock.recv(262144):
    pass
"""


class Federate(FederateAmbassador):
    """Counts what comes."""

    def __init__(self) -> None:
        self.now = -1.0
        self.count = 0
        self.last = b""
        self.took: list[float] | None = None
        """Milliseconds that updates were under way, where these are stamped."""
        self.is_synchronized = False
        self.announced = ""

    def reflect_attribute_values(self, instance, values, tag, time, retraction) -> None:  # noqa: ARG002  # the standard's
        self.count += 1
        self.last = tag
        if self.took is not None and len(tag) == STAMP.size:
            self.took.append((monotonic_ns() - STAMP.unpack(tag)[0]) / 1e6)

    def time_advance_grant(self, time) -> None:
        self.now = time

    def announce_synchronization_point(self, label, tag) -> None:  # noqa: ARG002  # the standard's
        self.announced = label

    def federation_synchronized(self, label) -> None:  # noqa: ARG002  # the standard's
        self.is_synchronized = True


@contextmanager
def joined(locator: str, name: str, federation: str = "bench") -> Iterator[tuple[RTIAmbassador, Federate]]:
    """A federate."""
    told = Federate()
    config = Config(lookup=LookupSection(groups=(GROUP,), locators=(locator,), multicast=False, port=0))
    with RTIAmbassador(config) as rti:
        rti.connect(told)
        rti.join_federation_execution(federation, name, timeout=60.0)
        yield rti, told


def start_together(rti: RTIAmbassador, told: Federate) -> None:
    """Wait until all are there: the first process says when."""
    while not told.announced:
        rti.evoke_callback(1.0)
    rti.synchronization_point_achieved(told.announced)
    while not told.is_synchronized:
        rti.evoke_callback(1.0)


def receive(locator: str, federation: str) -> None:
    """A process: takes updates until one says that it is the last; tells how many, how long, and how long each took
    that was stamped, the median and 95 of 100."""
    with joined(locator, "receiver", federation) as (rti, told):
        name, attribute = CLASSES[federation]
        cls = rti.get_object_class_handle(name)
        handles = [rti.get_attribute_handle(cls, each) for each in ("state", attribute)]
        rti.subscribe_object_class_attributes(cls, handles)
        told.took = []
        print("ready", flush=True)
        while not told.count:
            rti.evoke_callback(1.0)
        print("seen", flush=True)
        began = time.perf_counter()
        while told.last != b"last":
            if not rti.evoke_multiple_callbacks(0.0, 0.1):
                rti.evoke_callback(0.1)
        took = time.perf_counter() - began
        late = sorted(told.took) or [0.0]
        print(json.dumps([told.count, took, late[len(late) // 2], late[len(late) * 95 // 100]]), flush=True)


def step(locator: str, name: str, steps: int) -> None:
    """A process: so many steps in lockstep; tells how many a second."""
    with joined(locator, name) as (rti, told):
        rti.enable_time_regulation(1.0)
        rti.enable_time_constrained()
        print("ready", flush=True)
        start_together(rti, told)
        began = time.perf_counter()
        for at in range(1, steps + 1):
            rti.time_advance_request(float(at))
            while told.now != at:
                rti.evoke_callback(10.0)
        print(json.dumps(steps / (time.perf_counter() - began)), flush=True)


def child(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    """This script as another process, ready."""
    process = subprocess.Popen([sys.executable, __file__, "--as", *arguments], stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait, 60)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def told_by(process: subprocess.Popen[str]) -> object:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@contextmanager
def flying(locator: str, there: str) -> Iterator[tuple[RTIAmbassador, int, dict[int, bytes], subprocess.Popen[str]]]:
    """A sender, its aircraft with attributes that are there, and a receiver in a federation."""
    with ExitStack() as stack:
        receiver = child(stack, "receive", locator, there)
        rti, _ = stack.enter_context(joined(locator, "sender"))
        cls = rti.get_object_class_handle("Aircraft")
        state, altitude = (rti.get_attribute_handle(cls, each) for each in ("state", "altitude"))
        rti.publish_object_class_attributes(cls, [state, altitude])
        others = INSTANCES if there == "ugly" else 0
        for _ in range(others):
            rti.register_object_instance(cls)
        aircraft = rti.register_object_instance(cls)
        values = {state: b"", altitude: bytes(8)} if others else {state: b""}
        rti.update_attribute_values(aircraft, values)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "seen\n"  # all that was before has gone everywhere
        yield rti, aircraft, values, receiver


def updates(locator: str, size: int, batch: int, seconds: float, there: str = "bench") -> float:
    """Updates received a second."""
    with flying(locator, there) as (rti, aircraft, values, receiver):
        values[next(iter(values))] = bytes(size)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            if batch == 1:
                for _ in range(100):
                    rti.update_attribute_values(aircraft, values)
                continue
            with rti.batched():
                for _ in range(batch):
                    rti.update_attribute_values(aircraft, values)
        rti.update_attribute_values(aircraft, values, b"last")
        count, took, *_ = told_by(receiver)  # type: ignore[misc]
        return count / took


def latency(locator: str, there: str, count: int) -> tuple[float, float]:
    """Milliseconds until a single update is received: the median, and 95 of 100."""
    with flying(locator, there) as (rti, aircraft, values, receiver):
        for _ in range(count):
            time.sleep(0.002)
            rti.update_attribute_values(aircraft, values, STAMP.pack(monotonic_ns()))
        rti.update_attribute_values(aircraft, values, b"last")
        _, _, median, late = told_by(receiver)  # type: ignore[misc]
        return median, late


def plain(size: int, batch: int, seconds: float) -> float:
    """The same bytes a second through a socket between two processes, as updates a second."""
    listener = socket.create_server(("127.0.0.1", 0))
    reader = subprocess.Popen([sys.executable, "-c", READER, str(listener.getsockname()[1])])
    sock, _ = listener.accept()
    data, count, began = bytes(size) * batch, 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        sock.sendall(data)
        count += batch
    sock.close()
    listener.close()
    reader.wait(30)
    return count / (time.perf_counter() - began)


def lockstep(locator: str, count: int, steps: int) -> float:
    """Steps a second of the slowest."""
    with ExitStack() as stack:
        others = [child(stack, "step", locator, f"f{n}", str(steps)) for n in range(count)]
        rti, told = stack.enter_context(joined(locator, "first"))
        rti.register_federation_synchronization_point("go")
        start_together(rti, told)
        return min(float(told_by(each)) for each in others)  # type: ignore[arg-type]


def round_trip(locator: str, count: int) -> tuple[float, float]:
    """From a request to its grant, with another federate that regulates: median and 99th of a hundred, in ms."""
    with joined(locator, "a") as (rti, told), joined(locator, "b") as (other, _):
        other.enable_time_regulation(1e9)
        rti.enable_time_regulation(1.0)
        rti.enable_time_constrained()
        took = []
        for at in range(1, count + 1):
            began = time.perf_counter()
            rti.time_advance_request(float(at))
            while told.now != at:
                rti.evoke_callback(10.0)
            took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


WIDE = "<dimensions><dimension><name>X</name><upperBound>1000000</upperBound></dimension></dimensions></objectModel>"
SKY = MODULE.replace("</objectModel>", WIDE).replace(
    "<name>state</name>", "<name>state</name><dimensions><dimension>X</dimension></dimensions>"
)


def matching(readers: int, count: int) -> tuple[float, float, float]:
    """Microseconds that an RTI computes for an update, for its region that moves, and for a reader's that moves; each
    reader wants so many regions, all of them elsewhere."""
    model, execution = FederationModel(parsed(("sky.xml", SKY.encode()))), services.created("sky")

    def call(federate: int, service: str, *arguments: object) -> int:
        nonlocal execution
        execution, answer, _ = services.call(model, execution, federate, service, *arguments)
        return answer  # type: ignore[no-any-return]

    def move(federate: int, region: int, at: int) -> None:
        call(federate, "set_range_bounds", region, 1, at, at + 100)
        call(federate, "commit_region_modifications", (region,))

    cls, made = model.fom.object_class("Aircraft"), []
    state = model.fom.attribute(cls, "state")
    sender, *others = (call(0, "join_federation_execution") for _ in range(readers + 1))
    for each in others:
        made = [call(each, "create_region", (1,)) for _ in range(count)]
        for region in made:
            move(each, region, random.randrange(500_000, 999_000))
        pairs = tuple((state, region) for region in made)
        call(each, "subscribe_object_class_attributes_with_regions", cls, pairs)
    call(sender, "publish_object_class_attributes", cls, (state,))
    area = call(sender, "create_region", (1,))
    move(sender, area, 0)
    aircraft = call(sender, "register_object_instance_with_regions", cls, ((state, area),))
    took = []
    for act in (
        lambda _: call(sender, "update_attribute_values", aircraft, ((state, b""),)),
        lambda at: move(sender, area, at),
        lambda at: move(others[-1], made[0], 500_000 + at),
    ):
        began = time.process_time()
        for at in range(300):
            act(at)
        took.append(1e6 * (time.process_time() - began) / 300)
    return took[0], took[1], took[2]


def tell_matching() -> None:
    print("readers\tregions of each\tus an update\ta move of its region\ta move of a reader's region")
    for readers, count in ((1, 1), (1, 1000), (10, 100), (10, 1000)):
        print(f"{readers}\t{count}\t" + "\t".join(f"{each:.0f}" for each in matching(readers, count)), flush=True)


WHAT = {"bench": "at one RTI", "same": "over a bridge", "ugly": "over an ugly bridge"}


def started(stack: ExitStack, *arguments: str) -> dict[str, str]:
    """A `jbi` command, and the facts that it tells when it is ready."""
    command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--group", GROUP, *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    assert process.stdout is not None
    facts: dict[str, str] = json.loads(process.stdout.readline())
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--federates", type=int, nargs="*", default=[2, 20, 100])
    parser.add_argument("--regions", action="store_true", help="tell of regions alone")
    options = parser.parse_args()
    tell_matching()
    if options.regions:
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "bench.xml").write_text(MODULE)
        (folder / "far.xml").write_text(FAR)
        locator = started(stack, "lookup", "--port", "0", "--ephemeral")["address"]
        for federation, module in (("bench", "bench.xml"), ("same", "bench.xml"), ("ugly", "far.xml")):
            started(
                stack, "--locator", locator, "hla", "serve", "--federation", federation, "--fom", str(folder / module)
            )
        print("what\tsize\ta flush\tper second\tplain socket\tratio")
        limits = {}
        for there, what in WHAT.items():
            with ExitStack() as bridged:
                if there != "bench":
                    path = folder / f"{there}.toml"
                    path.write_text(BRIDGE.format(far=there) + (UGLY if there == "ugly" else ""))
                    started(bridged, "--locator", locator, "bridge", str(path))
                for size in (100, 4096):
                    for batch in (1, 100):
                        key = size, batch
                        if key not in limits:
                            limits[key] = plain(size, batch, options.seconds / 2)
                        rate, limit = updates(locator, size, batch, options.seconds, there), limits[key]
                        print(f"{what}\t{size}\t{batch}\t{rate:,.0f}\t{limit:,.0f}\t{rate / limit:.3f}", flush=True)
                median, late = latency(locator, there, int(200 * options.seconds))
                print(f"{what}: {median:.2f} ms, 95 of 100 within {late:.2f} ms", flush=True)
        median, late = round_trip(locator, int(400 * options.seconds))
        print(f"request to grant: {median:.2f} ms, 99 of 100 within {late:.2f} ms")
        for count in options.federates:
            steps = max(20, int(100 * options.seconds / count))
            print(f"lockstep of {count}: {lockstep(locator, count, steps):,.0f} steps a second", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        what, *rest = sys.argv[2:]
        if what == "receive":
            receive(rest[0], rest[1])
        else:
            step(rest[0], rest[1], int(rest[2]))
    else:
        main()

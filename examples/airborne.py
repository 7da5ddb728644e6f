"""`jbi demo airborne`: an air tasking order for an aircraft behind a link of 7,200 bit/s (the paper's section 3.1).

An order of 500 KB tasks a hundred units. The aircraft wants the missions of its own, about one percent, and says so
with a payload filter. The delegate, which is on the ground, cuts them out; only they cross the link, an emulated one.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub import PublisherAdapterLight, RegistrationUid, SubscriberAdapter
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples.example import DATA, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import PATIENCE, Federation
from jbi_pubsub.network.emulation import Link

SCHEMA: Final = DATA / "airborne" / "Air_Tasking_Order.xsd"
TYPE: Final = "mil.af.rl.jbi.Air_Tasking_Order"
RATES: Final = (7_200, 23_000)
"""Bits a second: the aggregate bandwidth of the paper's experiment went from the one to the other."""
SECONDS_MOST: Final = 10.0
"""That the aircraft's part of the order may take."""

UNITS: Final = 100
OURS: Final = "UNIT042"
WANTED: Final = f"/ATO/TASKUNIT[@unit='{OURS}']"
"""The payload filter."""

DAY: Final = datetime(2002, 4, 1, 6, tzinfo=UTC)


class AircraftFlight(msgspec.Struct, frozen=True):
    """Flight of one aircraft, as it saw it."""

    rate: int
    joined: float
    """Seconds until it had subscribed, over the same link."""
    seconds: float
    """From publishing the order to having received the part."""
    carried: int
    """Bytes that came over the link meanwhile, metadata and control calls included."""
    part: bytes


def run(options: ExampleOptions) -> ExampleOutcome:
    """Publish the order once for an aircraft behind each link."""
    order = tasking_order(100_000 if options.quick else 500_000)
    flights = []
    with Federation().lookup().delegate("ground", "rome") as ground, PublisherAdapterLight(ground.config) as aoc:
        delegate = aoc.connect_to_delegate("ground", "rome")
        registration = aoc.register_publisher(delegate, SCHEMA, about(order))
        for rate in RATES[1:] if options.quick else RATES:
            options.tell(f"an aircraft joins over {rate:,} bit/s")
            flights.append(fly(ground, aoc, registration, order, rate))
            options.tell(f"{len(flights[-1].part):,} of {len(order):,} bytes came in {flights[-1].seconds:.1f} s")
    return outcome(order, flights)


def fly(
    ground: Federation, aoc: PublisherAdapterLight, registration: RegistrationUid, order: bytes, rate: int
) -> AircraftFlight:
    """An aircraft subscribes over a link of its own; the operations centre publishes; the aircraft receives."""
    with Link("127.0.0.2") as link:
        link.shape(bits_per_second=rate)
        began = time.monotonic()
        with SubscriberAdapter(
            link.behind(ground.config, ground.ready["ground"]["address"]), name="aircraft"
        ) as aircraft:
            missions = aircraft.register_subscriber(type_name=TYPE, payload_filter=WANTED, timeout=PATIENCE)
            if not aircraft.wait_matched(missions, timeout=PATIENCE):
                raise DemoError(f"the aircraft could not subscribe over {rate} bit/s within {PATIENCE:g} s")
            joined, before = time.monotonic(), link.passed["down"]
            aoc.publish(registration, about(order), order)
            part = aircraft.receive(missions, timeout=PATIENCE)
            arrived, carried = time.monotonic(), link.passed["down"] - before
    if part is None:
        raise DemoError(f"the order did not come over {rate} bit/s within {PATIENCE:g} s")
    return AircraftFlight(rate, joined - began, arrived - joined, carried, part.payload)


def outcome(order: bytes, flights: list[AircraftFlight]) -> ExampleOutcome:
    """Outcome: what came, and how long the whole order would have taken."""
    rows = [
        (
            f"{f.rate:,}",
            f"{len(f.part):,}",
            f"{f.carried:,}",
            f"{f.joined:.1f}",
            f"{f.seconds:.1f}",
            f"{whole(order, f):.0f}",
        )
        for f in flights
    ]
    columns = ("bit/s", "part, bytes", "over the link", "to join, s", "came in, s", "unfiltered, s")
    title = f"An air tasking order of {len(order):,} bytes for {UNITS} units, to the aircraft of one"
    return ExampleOutcome(
        (OutcomeTable(title, columns, rows),),
        (
            Promise(f"exactly the missions of {OURS} came", all(missions(f.part) == missions(order) for f in flights)),
            *(
                Promise(f"over {f.rate:,} bit/s in {SECONDS_MOST:g} s at most", f.seconds <= SECONDS_MOST)
                for f in flights
            ),
            *(
                Promise(
                    f"the whole takes {whole(order, f):.0f} s there; less than a fiftieth of it went over the link",
                    50 * f.carried < len(order),
                )
                for f in flights
            ),
        ),
    )


def whole(order: bytes, flight: AircraftFlight) -> float:
    """Seconds that the link needs for the bytes of the whole order, and nothing else."""
    return len(order) * 8 / flight.rate


def missions(order: bytes) -> list[str]:
    """The missions of our unit, as canonical XML. Others would be in the list as well if the part had them."""
    root = etree.fromstring(order)
    found = root.iterfind(f"TASKUNIT[@unit='{OURS}']/MISSION") if root.tag == "ATO" else root.iter("MISSION")
    return [etree.canonicalize(etree.tostring(mission, encoding="unicode", with_tail=False)) for mission in found]


def about(order: bytes) -> bytes:
    """The metadata of an order."""
    return (
        "<metadata><mil.af.rl.jbi.Air_Tasking_Order/>"
        "<Source><publisher>AOC</publisher><theater>Centre</theater></Source>"
        f"<Order><id>ATO-A</id><from>{_text(DAY)}</from><to>{_text(DAY + timedelta(days=1))}</to>"
        f"<missions>{order.count(b'<MISSION>')}</missions></Order></metadata>"
    ).encode()


# -- the order ----------------------------------------------------------------------------------------------------


def tasking_order(size: int, *, seed: int = 42) -> bytes:
    """An order of about so many bytes, by data/airborne/ATO.xsd; the units have the same number of missions, or nearly.
    The same each time."""
    chance = random.Random(seed)  # noqa: S311  # data to play with
    made: list[str] = []
    left = size - 50 * UNITS  # what stands around the missions of a unit
    while left > 0 or len(made) < UNITS:
        made.append(_mission(chance, len(made)))
        left -= len(made[-1])
    tasked = [made[unit::UNITS] for unit in range(UNITS)]
    units = "\n".join(
        f'<TASKUNIT unit="UNIT{number:03}" base="{chance.choice(_BASES)}">\n' + "\n".join(its) + "\n</TASKUNIT>"
        for number, its in enumerate(tasked)
    )
    period = f'<AMPERIOD from="{_text(DAY)}" to="{_text(DAY + timedelta(days=1))}"/>'
    return f"<ATO><OPER>EXAMPLE</OPER><MSGID>ATO/AOC/A</MSGID>{period}\n{units}\n</ATO>".encode()


_BASES: Final = ("KGRF", "KEDW", "OTBH", "OKAS", "OAIX", "OAKN")
_AIRCRAFT: Final = ("F15E", "A10A", "F16C", "B1B", "MC130H", "KC135R", "E3B", "RQ1")
_TYPES: Final = ("XAI", "CAS", "OCA", "DCA", "RECCE", "AR", "SEAD", "AEW")
_TARGETS: Final = ("BRIDGE", "AIRFIELD", "DEPOT", "RADAR", "COMMAND POST", "ARMOR", "TUNNEL")


def _mission(chance: random.Random, number: int) -> str:
    at = DAY + timedelta(minutes=chance.randrange(1_440))
    kind, target, aircraft = chance.choice(_TYPES), chance.choice(_TARGETS), chance.choice(_AIRCRAFT)
    place = f"{chance.randrange(330_000, 359_999)}N{chance.randrange(650_000, 709_999):07}E"
    return (
        "<MISSION>"
        f"<AMSNDAT><msnno>{number:04}{chance.choice('ABCD')}</msnno><package>P{chance.randrange(40):02}</package>"
        f"<type>{kind}</type><alert>{chance.choice(('NONE', 'G30', 'G60'))}</alert></AMSNDAT>"
        f"<MSNACFT><number>{chance.randint(1, 4)}</number><type>{aircraft}</type>"
        f"<callsign>EXAMPLE{chance.randrange(10, 99)}</callsign><mode3>{chance.randrange(0o7777):04o}</mode3></MSNACFT>"
        f"<GTGTLOC><tot>{_text(at)}</tot><tgtid>{chance.randrange(10**6):06}-{chance.randrange(10**4):04}</tgtid>"
        f"<tgttype>{target}</tgttype><dmpi>{place}</dmpi></GTGTLOC>"
        f"<REFUEL><tanker>SHELL{chance.randrange(10, 99)}</tanker><track>AR{chance.randrange(1, 60):02}</track>"
        f"<altitude>{chance.randrange(180, 300, 10)}00</altitude><arct>{_text(at - timedelta(minutes=50))}</arct>"
        f"<offload>{chance.randrange(8, 40)}000</offload></REFUEL>"
        f'<CONTROLA agency="AWACS{chance.randint(1, 4)}" frequency="{chance.randrange(2250, 3999) / 10}"/>'
        f"<AMPN>{kind} on {target.lower()} at {place}; check in with AWACS before the push point, "
        "laser code by voice, report fuel state and weather over the target.</AMPN></MISSION>"
    )


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"

"""What a delegate does with an object, function by function, and what has changed: `make profile`.

    python benchmarks/work.py [--objects 5000] [--save FILE] [--against FILE]

    make profile ARGS="--save before.json"    # as it is
    make profile ARGS="--against before.json" # as it has become

One delegate, one registration, twenty subscriptions of which two match; `metadata` with predicates on the metadata,
`combined` on the combined view. Objects are given to it by one thread without a network, so that calls an object are
the same each time, whatever else the machine does: those are compared, and 2 % more are an error (exit code 1). Times
are CPU times of that thread without the profiler, own times by the profiler, which makes small functions dear.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LookupSection
from jbi_pubsub.core.info_object import Head, Parcel, object_id_of, pack
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.server.server import DisseminationServer

DATA: Final = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
METADATA: Final = (DATA / "fig1.xml").read_bytes()
TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"
PREDICATES: Final = {"metadata": "//lat>33", "combined": "//lat>33 and //og:PayloadLength>5"}
MORE: Final = 1.02
"""By so much calls may have grown."""
SHOWN: Final = 20


def profiled(view: Any, objects: int) -> dict[str, Any]:
    """CPU us and calls an object; and by function, calls and own us an object."""
    with ExitStack() as stack:
        section = LookupSection(groups=("profile",), port=0, multicast=False)
        lookup = LookupServer(Config(lookup=section), Registrar(groups=section.groups))
        lookup.start()
        stack.callback(lookup.stop)
        config = Config(lookup=LookupSection(groups=("profile",), locators=(lookup.address,), multicast=False))
        server = DisseminationServer(config, TypeRepository(), characteristics=("profile", "here"))
        server.start()
        stack.callback(server.stop, 0.5)
        subscriber = stack.enter_context(SubscriberAdapter(config))
        light = stack.enter_context(PublisherAdapterLight(config))
        uid = light.register_publisher(light.connect_to_delegate(), DATA / "Intel_Imagery.xsd", METADATA)
        for predicate in (*[PREDICATES[view]] * 2, *(f"//lat>{80 + number}" for number in range(18))):
            subscriber.register_subscriber(
                type_name=TYPE, predicate=predicate, view=view, listener=lambda _uid, _obj: None
            )
        light.wait_for_subscribers(uid, 20, 20.0)
        registration = server.delegate.tables.registrations[uid]
        documents = (METADATA.replace(b"<lat>33.34<", b"<lat>33.%06d<" % (300_000 + at)) for at in range(3 * objects))
        parcels = [
            pack(Head(object_id_of(uid, at), uid, at, 1.0, TYPE, "1.0", metadata, 1_024), bytes(1_024))
            for at, metadata in enumerate(documents, start=1)
        ]

        def take(parcels: list[Parcel]) -> float:
            used = time.thread_time()
            for parcel in parcels:
                deliveries = Deliveries()
                refused = server.delegate.publishers.publish(registration, [parcel], deliveries)
                assert not refused, refused
                deliveries.offer()
            return (time.thread_time() - used) / len(parcels) * 1e6

        take(parcels[:objects])
        spent = take(parcels[objects : 2 * objects])
        profile = cProfile.Profile()
        profile.runcall(take, parcels[2 * objects :])
    stats: Any = pstats.Stats(profile)
    functions = {
        f"{Path(file).name}:{name}": [round(calls / objects, 2), round(own / objects * 1e6, 2)]
        for (file, _, name), (_, calls, own, _, _) in stats.stats.items()
    }
    return {"us": round(spent, 1), "calls": round(stats.total_calls / objects, 1), "functions": functions}


def show(view: str, found: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Print it; whether it calls no more than before."""
    was = f" (before: {before['us']} us, {before['calls']} calls)" if before else ""
    print(f"{view}: {found['us']} us of CPU and {found['calls']} calls an object{was}")
    former = before["functions"] if before else {}

    def weight(name: str) -> float:
        calls, own = found["functions"].get(name, (0, 0))
        return float(abs(calls - former.get(name, (0, 0))[0]) if before else own)

    print(f"{'':4}{'function':50}{'calls':>8}{'own us':>8}" + (f"{'calls before':>14}" if before else ""))
    names = sorted({**found["functions"], **former}, key=weight, reverse=True)
    for name in [each for each in names if weight(each) > 0][:SHOWN]:
        calls, own = found["functions"].get(name, (0, 0))
        print(f"{'':4}{name[:49]:50}{calls:>8}{own:>8}" + (f"{former.get(name, (0, 0))[0]:>14}" if before else ""))
    return before is None or found["calls"] <= before["calls"] * MORE


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=5_000)
    parser.add_argument("--save", type=Path, help="file for the figures")
    parser.add_argument("--against", type=Path, help="such a file")
    options = parser.parse_args()
    before = json.loads(options.against.read_bytes()) if options.against else {}
    found = {view: profiled(view, options.objects) for view in PREDICATES}
    is_good = [show(view, each, before.get(view)) for view, each in found.items()]
    if options.save:
        options.save.write_text(json.dumps(found))
    if not all(is_good):
        sys.exit(f"more than {MORE - 1:.0%} more calls an object than in {options.against}")


if __name__ == "__main__":
    main()

"""The network of nodes: what it is to reach beside what it reaches.

    python benchmarks/network.py [simulated] [sockets] [nodes] [--quick] [--rounds 3] [--json]

- `simulated`: nodes without sockets in virtual time, the same each time: what is sent again at a loss, how late the
  last has all, how many ask and answer, slow links, islands, relays, what is said beside the messages.
- `sockets`: a process for each node, multicast on loopback, losses drawn at each receiver: the same, how fast it is,
  what a relay and sealing cost, and whether memory stays.
- `nodes`: whole nodes. A publisher, a node, the network, a node, a subscriber, against one node in the same run.

Friendly and ugly: losses one by one or in bursts, in order or half of it overtaken; documents as `node.py` has them.
Figures of speed are those of a machine that does nothing else: `--rounds` are made in turns, and medians told.
`--quick` has a tenth of everything, and is for looking.

Exit code 1 if a figure is not reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Final

import network_live as live
import network_nodes
import network_simulated as simulated
from network_figures import NetworkFigure, shown


def in_simulation(rounds: int, *, is_quick: bool) -> Iterator[NetworkFigure]:
    """All in virtual time."""
    blocks, seeds = (600, 1) if is_quick else (2_000, rounds)
    for is_ugly in (False, True):
        yield from simulated.losses(blocks, seeds, is_ugly=is_ugly)
    yield from simulated.questions(3 if is_quick else 9)
    yield from simulated.missed(3 if is_quick else 9)
    yield from simulated.modem(1 if is_quick else 5)
    yield from simulated.control(*((40, 4.0) if is_quick else (1_000, 20.0)))
    yield from simulated.slow(40.0 if is_quick else 60.0)
    yield from simulated.relays(100 if is_quick else 300, 3 if is_quick else 9)
    for is_ugly in (False, True):
        yield from simulated.islands(1 if is_quick else 5, is_ugly=is_ugly)
    yield from simulated.churn(10 if is_quick else 120)


def over_sockets(rounds: int, *, is_quick: bool) -> Iterator[NetworkFigure]:
    """All over sockets."""
    for is_ugly in (False, True):
        yield from live.losses(0.3 if is_quick else 1.5, is_ugly=is_ugly)
    yield from live.speed(20 if is_quick else 400)
    yield from live.sealing(5 if is_quick else 40, 1 if is_quick else rounds)
    yield from live.relay(20 if is_quick else 100)
    yield from live.memory(20_000 if is_quick else 1_000_000)


def of_nodes(rounds: int, *, is_quick: bool) -> Iterator[NetworkFigure]:
    """All by whole nodes."""
    yield from network_nodes.nodes(2_000 if is_quick else 20_000, 1 if is_quick else rounds)


PARTS: Final[dict[str, Callable[..., Iterator[NetworkFigure]]]] = {
    "simulated": in_simulation, "sockets": over_sockets, "nodes": of_nodes
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}: all, if none is named")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each figure")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    found = (
        figure
        for name, make in PARTS.items()
        if name in options.parts or not options.parts
        for figure in make(options.rounds, is_quick=options.quick)
    )
    sys.exit(0 if shown(found, as_json=options.json) else 1)


if __name__ == "__main__":
    main()

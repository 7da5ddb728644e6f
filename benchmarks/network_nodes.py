"""Nodes with a network between them, as their clients meet them: a process for each party."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import node
from network_figures import NetworkFigure
from network_live import place

from jbi_pubsub import PublisherAdapterLight

OF_ONE: Final = 0.3
"""Part of one node's rate."""


def through(case: node.Workload, count: int, *, nodes: int) -> dict[str, float]:
    """Objects from a publisher at the first node to a subscriber at the last."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    group, port = place()
    lan = [f"network.lan.group={group}", f"network.lan.port={port}", "network.lan.interfaces=lo"]
    lan = [word for each in lan for word in ("--set", each)] if nodes > 1 else []
    with ExitStack() as stack:
        quiet = (*node.QUIET, "--set", "node.archive=false", "--set", "node.announce_seconds=0.5", *lan)
        made = [stack.enter_context(node.node(*quiet, name=f"bench-{at}"))[0] for at in range(nodes)]
        publisher = stack.enter_context(PublisherAdapterLight(node.client_of(made[0]["lookup"])))
        at = publisher.connect_to_delegate("node", "bench-0")
        uid = publisher.register_publisher(at, node.SCHEMA, node.METADATA)
        given = ("adapter", node.client_of(made[-1]["lookup"]), case, count, told)
        node.started(stack, context, node.take, given, told)
        publisher.wait_for_subscribers(uid, 1, 30)
        documents, payload = case.documents(node.WARM + count), os.urandom(case.size)
        if nodes > 1:
            time.sleep(3.0)  # the other node learns of the registration
        for each in documents[: node.WARM]:
            publisher.publish(uid, each, payload)
        assert told.get(timeout=node.WAIT) == "warm"
        pids = [each["pid"] for each in made]
        began, used = time.time(), [node.cpu(pid) for pid in pids]
        for each in documents[node.WARM :]:
            publisher.publish(uid, each, payload)
        ended, _ = told.get(timeout=node.WAIT)
        spent = [(node.cpu(pid) - before) / count * 1e6 for pid, before in zip(pids, used, strict=True)]
    return {"objects/s": count / (ended - began), "first us": spent[0], "last us": spent[-1]}


def nodes(count: int, rounds: int) -> Iterator[NetworkFigure]:
    """Two nodes against one, in the same run."""
    for kilobytes in (1, 64):
        for is_ugly in (False, True):
            case = node.Workload(kilobytes << 10, is_ugly)
            number = count if kilobytes < 16 else max(50, count // 10)
            found = [[through(case, number, nodes=each) for each in (1, 2)] for _ in range(rounds)]
            words = f"nodes, {kilobytes} KB, {'ugly' if is_ugly else 'plain'}"
            part = statistics.median(two["objects/s"] / one["objects/s"] for one, two in found)
            yield NetworkFigure(f"{words}: part of one's rate", part, "", least=OF_ONE if kilobytes == 1 else None)
            for at, name in enumerate(("one node", "two nodes")):
                rate = statistics.median(each[at]["objects/s"] for each in found)
                yield NetworkFigure(f"  {name}", rate, "objects/s")
            for what in ("first us", "last us"):
                used = statistics.median(two[what] for _, two in found)
                yield NetworkFigure(f"  CPU an object, the {what[:-3]} of two", used, "us")
            yield NetworkFigure(
                "  CPU an object, one node", statistics.median(one["first us"] for one, _ in found), "us"
            )

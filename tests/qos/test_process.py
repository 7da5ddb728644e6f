"""What a process takes of its machine."""

from __future__ import annotations

from pathlib import Path

from jbi_pubsub.qos.process import ProcessResources


def test_the_share_of_a_core_is_that_since_the_last_look() -> None:
    now, spent = [10.0], [1.0]
    process = ProcessResources(clock=lambda: now[0], cpu=lambda: spent[0])
    memory, cpu = process.use()
    assert cpu is None  # nothing is known yet
    assert memory is None or 1 << 20 < memory < 1 << 40
    now[0], spent[0] = 12.0, 2.5
    assert process.use()[1] == 0.75
    now[0], spent[0] = 12.1, 2.6
    assert process.use()[1] == 0.75  # too soon for another one
    assert (memory is not None) == Path("/proc/self/statm").exists()


def test_the_part_that_was_lost_is_that_of_the_last_seconds() -> None:
    now, counts = [10.0], [100, 50]
    process = ProcessResources(clock=lambda: now[0])
    process.watch(lambda: (0, 0), lambda: (counts[0], counts[1]))
    assert process.loss() is None  # nothing is known yet
    now[0], counts[:] = 12.0, [200, 60]
    assert process.loss() == 0.1
    now[0], counts[:] = 14.0, [200, 60]
    assert process.loss() == 0.0
    now[0], counts[:] = 16.0, [20, 0]  # most of them have ended
    assert process.loss() == 0.0

"""The watch over the order of locks, tests/oracles/lock_order.py: what it has to see, and what is no fault."""

from __future__ import annotations

import threading
from collections import defaultdict

import lock_order
import pytest
from lock_order import OrderedLock


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_order, "edges", defaultdict(dict))


def locks(*names: str) -> list[OrderedLock]:
    return [OrderedLock(threading.RLock(), name) for name in names]


def test_locks_taken_in_two_orders_are_a_circle_though_nobody_hangs() -> None:
    # Given three locks, taken one behind the other by pairs
    a, b, c = locks("a", "b", "c")
    with a, b:
        pass
    with b, c:
        pass
    assert lock_order.circles_seen() == []
    # When the last is held before the first; Expect the way round to be told, once
    with c, a:
        pass
    with c, a:
        pass
    (told,) = lock_order.circles_seen()
    assert told.startswith("c -> a -> b -> c\n")
    assert lock_order.circles_seen() == []


def test_what_is_held_already_or_only_tried_is_no_edge() -> None:
    a, b = locks("a", "b")
    with a, b, a:
        pass
    with b:
        assert a.acquire(blocking=False)
        a.release()
    assert lock_order.circles_seen() == []
    assert {held: list(taken) for held, taken in lock_order.edges.items() if taken} == {"a": ["b"]}


def test_who_waits_for_a_condition_holds_its_lock_no_more() -> None:
    # Given a thread that waits under a lock for what another does, who takes locks the other way round meanwhile
    a, b = locks("a", "b")
    changed = threading.Condition(a)  # type: ignore[arg-type]  # has a lock's methods
    waits = threading.Event()

    def wait() -> None:
        with changed:
            waits.set()
            changed.wait(10.0)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(10.0)
    with b, changed:
        changed.notify_all()
    thread.join(10.0)
    # Expect it to end, and no circle: nobody has taken b while he held a
    assert not thread.is_alive()
    assert lock_order.circles_seen() == []


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition"])
def test_locks_of_the_product_are_named_by_class_and_attribute(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given code that stands in the product
    monkeypatch.setattr(threading, "Lock", threading.Lock)
    monkeypatch.setattr(threading, "RLock", threading.RLock)
    lock_order.install()
    file = lock_order.ROOT / "jbi_pubsub" / "of_a_test.py"
    text = f"import threading\nclass A:\n    def __init__(self):\n        self._lock = threading.{kind}()\n"
    monkeypatch.setitem(lock_order.linecache.cache, str(file), (len(text), None, text.splitlines(True), str(file)))
    scope: dict[str, type] = {}
    exec(compile(text, str(file), "exec"), scope)
    made = scope["A"]()._lock
    lock = made._lock if kind == "Condition" else made
    # Expect its lock to be watched, and those of tests not
    assert lock.name == "jbi_pubsub/of_a_test.py:A._lock"
    assert not isinstance(threading.Lock(), OrderedLock)

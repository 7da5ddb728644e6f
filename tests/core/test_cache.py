"""What is remembered, and what goes for it."""

import threading
import time

import pytest

from jbi_pubsub.core.cache import Cache


def test_the_one_that_was_set_longest_ago_goes() -> None:
    cache: Cache[str, int] = Cache(2)
    for key in "aba":
        cache[key] = ord(key)
    cache["c"] = 0
    assert list(cache) == ["a", "c"]
    with pytest.raises(KeyError):
        cache["b"]


def test_what_is_missing_is_made_once() -> None:
    made: list[int] = []
    cache = Cache(2, lambda key: made.append(key) or -key)  # type: ignore[func-returns-value]  # None
    assert ([cache[key] for key in (1, 1, 2, 1, 3, 1)], made) == ([-1, -1, -2, -1, -3, -1], [1, 2, 3, 1])
    assert cache.get(2) is None


def test_threads_that_set_at_once_keep_its_bound() -> None:
    cache: Cache[int, int] = Cache(3)
    threads = [
        threading.Thread(target=lambda n=n: [cache.__setitem__(n * i, i) for i in range(5_000)]) for n in (1, 2, 3)
    ]  # type: ignore[misc]  # fixed
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(cache) <= 3


class Spelling:
    """A key that compares in Python, so that other threads get their turn while it does."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        time.sleep(0)
        return isinstance(other, Spelling) and other.number == self.number


def test_threads_set_equal_keys_of_any_class_at_once() -> None:
    # Given threads that set the same keys in a cache, whose size changes all the time
    cache: Cache[Spelling, int] = Cache(50)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(2_000):
                cache[Spelling(number % 70)] = number
        except BaseException as exc:  # noqa: BLE001  # it is looked at below
            failed.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    # Expect each to have set them, and the bound to be kept
    assert failed == []
    assert len(cache) == len(list(cache)) == 50

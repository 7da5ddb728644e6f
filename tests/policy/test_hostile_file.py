"""Policy files that were made to do harm: each is refused with its place, in little time and memory, and so is a key or
a value that somebody sets."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from jbi_pubsub.core.errors import PolicyError
from jbi_pubsub.policy.access import access_rules
from jbi_pubsub.policy.file import parse
from jbi_pubsub.policy.policyset import policies_of, review
from jbi_pubsub.policy.space import with_value

MANY = 2_000
POLICY = '[[policy]]\nname = "a"\nimportance = 1\n'
USES = ", ".join(["{ template = 't' }"] * 2_000)
FILLED = ", ".join(["{ template = 't', a = 'b' }"] * 1_000)
PATTERN = "[[template]]\nname = 't'\nparameters = ['a']\n[[template.policy]]\nname = 'x'\n"
TEMPLATE = "".join(f'[[template.policy]]\nname = "p{n}"\nimportance = 1\n' for n in range(100))


def checked(text: str) -> None:
    """All that is done with a file. Raises PolicyError."""
    document = parse(text, "policy.toml")
    access_rules(document)
    policies = policies_of(document)
    document.check()
    review(document, policies.rules)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "told"),
    [
        # numbers that Python does not read, write, or make floating point numbers of
        (f"{POLICY}precedence = {'9' * 5000}", "4:14: a number or name of more than 200 characters"),
        (f"[space]\nstrategy = 0x{'f' * 5000}", "2:12: a number or name of more than 200 characters"),
        (f"[space]\nweights = [{'9' * 400}, 1, 1, 1, 1]", "2:12: a number or name of more than 200 characters"),
        ("[space]\nweights = [1e308, 1, 1, 1, 1]", "2:11: weights: 5 numbers above 0, from 0.001 to 1,000,000"),
        ("[space]\nweights = [5e-324, 1, 1, 1, 1]", "2:11: weights: 5 numbers above 0"),
        ("[space]\nweights = [true, 1, 1, 1, 1]", "2:11: weights: 5 numbers above 0"),
        (f"{POLICY}max_size = '{'9' * 20} GB'", "4:12: max_size: '99999999999999999999 GB' is too large"),
        (f"{POLICY}deadline = '{'9' * 300} s'", "is too large"),
        (f"{POLICY}max_rate = '{'9' * 20}/s'", "is too large"),
        (f"{POLICY}max_rate = '0.{'0' * 50}1 bps'", "lets nothing through"),
        ("[[link]]\nname = 'a'\nrate = '1000000000 GB/s'", "3:8: rate: '1000000000 GB/s' is too large"),
        (f"{POLICY}from = 0001-01-01T00:00:00+12:00", "4:8: from is not between 1970 and 9998"),
        (f"{POLICY}until = 9999-12-31T23:59:59-12:00", "4:9: until is not between 1970 and 9998"),
        # what others would have to look through, again and again
        ("[group]\n" + "".join(f"g{n} = ['@x{n}']\n" for n in range(MANY)), "(and 50 more"),
        ("[group]\n" + "".join(f"g{n} = ['a']\n" for n in range(10_001)), "1:1: more than 10000 groups"),
        ("[group]\n" + "".join(f"g{n} = ['@g{(n + 1) % MANY}']\n" for n in range(MANY)), "a member of itself"),
        (POLICY + "".join(f"k{n} = 1\n" for n in range(MANY)), "4:1: unknown key 'k0' (and 50 more"),
        ("".join(f"k{n} = 1\n" for n in range(MANY)), "1:1: unknown table 'k0' (and 50 more"),
        (f"{POLICY}type = '{'*a' * 50_000}'", "4:8: type: '*a*a*a*a*a*a*a*a*a*a'... with its 100000 characters"),
        (f"{POLICY}attribute = {{ a = '{'?' * 201}' }}", "with its 201 characters is of no use as a glob"),
        (f"{POLICY}type = [{', '.join(repr(f'*{n}') for n in range(1001))}]", "more than 1000 texts with *, ? or ["),
        # templates
        (
            f"[[template]]\nname = 't'\n{TEMPLATE}[[mission]]\nname = 'm'\nactive = false\nuse = [{USES}]\n",
            "missions make more than 10000 policies",
        ),
        (
            f"[[mission]]\nname = 'm'\nuse = [{FILLED}]\n{PATTERN}type = '{'{a}' * 50_000}'\n",
            "missions make more than 32 MB of policies",
        ),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_with_its_place_in_little_time(text: str, told: str) -> None:
    began = time.thread_time()
    with pytest.raises(PolicyError) as refused:
        checked(text)
    assert told in str(refused.value)
    assert time.thread_time() - began < 40


@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "x = {{ {} = 1 }}", "{}"])
def test_a_name_with_many_dots_takes_no_memory_by_the_square_of_it(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PolicyError, match="more than 32 names with dots between"):
            checked(text.format(" . ".join("a" * 5_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


@pytest.mark.long
def test_what_is_many_and_right_is_read_in_little_time() -> None:
    groups, policies = 2_000, 2_000
    text = "[group]\n" + "".join(f"g{n} = ['a']\n" for n in range(groups))
    text += "".join(f'[[policy]]\nname = "p{n}"\ngroup = "g{n}"\nimportance = 1\n' for n in range(policies))
    text += "[[policy]]\nname = 'long'\nimportance = 2\nuser = [" + ", ".join(f"'u{n}'" for n in range(20_000)) + "]\n"
    text += "[[policy]]\nname = 'same'\nimportance = 3\nuser = [" + ", ".join(f"'u{n}'" for n in range(20_000)) + "]\n"
    began = time.thread_time()
    checked(text)
    assert time.thread_time() - began < 40


def test_of_circles_of_groups_one_is_told() -> None:
    document = parse("[group]\na = ['@b']\nb = ['@a']\nc = ['@a', 'x']\n", "policy.toml")
    policies_of(document)
    assert [problem.message for problem in document.errors] == [
        "group 'a' is a member of itself, perhaps through others",
        "group 'b' is a member of itself, perhaps through others",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy = { a = 1, b = 2 } #", "5"),
        ("policy = {} #", "5"),
        ("policy.a.importance", "9" * 5000),
        ("policy.a.importance", "0x" + "f" * 5000),
        ("policy.a.importance = 1 #", "0x" + "f" * 5000),
        ("policy.a.type", "[0x" + "f" * 5000 + "]"),
        ("policy." + "a." * 3000 + "b", "1"),
    ],
)
def test_a_hostile_key_or_value_is_refused(key: str, value: str) -> None:
    with pytest.raises(PolicyError) as refused:
        checked(with_value(POLICY, key, value))
    assert len(str(refused.value)) < 1_000

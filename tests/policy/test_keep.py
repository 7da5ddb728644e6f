"""`[[keep]]` of a policy file: what is archived, and how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jbi_pubsub.core.history import KeepRule
from jbi_pubsub.policy.file import PolicyDocument, parse
from jbi_pubsub.policy.keep import keep_rules
from jbi_pubsub.policy.manager import AccessManager
from jbi_pubsub.policy.policyset import policies_of


def read(text: str) -> tuple[tuple[KeepRule, ...], PolicyDocument]:
    document = parse(text, "policy.toml")
    return keep_rules(document), document


def test_rules_say_which_types_are_kept_and_how_long() -> None:
    # Given a file with all that a rule can say
    said, document = read(
        "[[keep]]\ntype = ['mil.af.*', 'intel.Report']\nage = '30 d'\ncount = 1000\nbytes = '5 GB'\n"
        "payload_age = '2 h'\nlatest_by = '/m/id'\nuntil_durables = true\nrelayed = false\n\n[[keep]]\ntype = '*'\n"
    )
    # Expect it as written, with the line that a rule stands in, and no bound where none is named
    assert not document.problems
    assert said == (
        KeepRule(
            name="policy.toml:1", types=("mil.af.*", "intel.Report"), age=30 * 86_400.0, count=1000,
            bytes=5_000_000_000, payload_age=7_200.0, latest_by="/m/id", until_durables=True, relayed=False,
        ),
        KeepRule(name="policy.toml:11", types=("*",)),
    )  # fmt: skip
    # Expect policy managers to hand on nothing of it
    assert "keep" not in policies_of(document).tables


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[keep]\ntype = 'x'", (1, 1), "list of tables"),
        ("[[keep]]\ntyp = 'x'", (2, 1), "unknown key 'typ'"),
        ("[[keep]]\nage = 30", (2, 7), "age: 30 has no unit"),
        ("[[keep]]\nage = '30 parsecs'", (2, 7), "is not in"),
        ("[[keep]]\nage = '1157408 d'", (2, 7), "age: '1157408 d' is too large"),
        ("[[keep]]\npayload_age = '9000000000 d'", (2, 15), "payload_age: '9000000000 d' is too large"),
        ("[[keep]]\ncount = -1", (2, 9), "not a number"),
        ("[[keep]]\ncount = 1.5", (2, 9), "not a whole number"),
        ("[[keep]]\ncount = true", (2, 9), "not a number"),
        ("[[keep]]\ntype = []", (2, 8), "type is empty"),
        ("[[keep]]\ntype = 7", (2, 8), "type is a text"),
        ("[[keep]]\nlatest_by = '//['", (2, 13), "latest_by"),
        ("[[keep]]\nlatest_by = ''", (2, 13), "latest_by is an XPath"),
        ("[[keep]]\nuntil_durables = 'yes'", (2, 18), "true or false"),
        ("[[keep]]\nrelayed = 1", (2, 11), "true or false"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_place(text: str, where: tuple[int, int], what: str) -> None:
    _, document = read(text)
    assert [tuple(problem.place) for problem in document.errors] == [where]
    assert what in document.errors[0].message


def test_what_a_file_may_say_an_archive_can_be_told() -> None:
    # Given the largest that a rule takes of each
    (said,), document = read(
        "[[keep]]\nage = '1157407 d'\npayload_age = '1157407 d'\ncount = 1e15\nbytes = '1000000 GB'\n"
    )
    assert not document.problems
    # Expect it to arrive
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=KeepRule) == said


@pytest.mark.parametrize("before", ["type = '*'", "type = ['a', 'b']", ""])
def test_a_rule_that_never_counts_is_warned_of(before: str) -> None:
    _, document = read(f"[[keep]]\n{before}\n[[keep]]\ntype = 'a'\n")
    assert not document.errors
    assert ["never counts" in problem.message for problem in document.warnings] == [True]
    assert not read("[[keep]]\ntype = 'a'\n[[keep]]\ntype = '*'\n")[1].warnings


def test_a_changed_file_is_followed_and_a_broken_one_changes_nothing(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    # Given somebody who follows what a file says is kept
    path = tmp_path / "policy.toml"
    path.write_text("[[keep]]\ntype = 'a'\n")
    manager = AccessManager(path, component="alpha@rome", keep=True)
    told: list[list[tuple[str, ...]]] = []
    try:
        manager.follow_keep(lambda rules: told.append([rule.types for rule in rules]))
        assert told == [[("a",)]]
        # When the file is changed, broken, and mended
        path.write_text("[[keep]]\ntype = 'b'\n")
        eventually(lambda: len(told) == 2)
        path.write_text("[[keep]]\nage = 30\n")
        eventually(lambda: manager.fault)
        path.write_text("[[keep]]\ntype = 'c'\n")
        eventually(lambda: len(told) == 3)
    finally:
        manager.close()
    # Expect what could be used, each once
    assert told == [[("a",)], [("b",)], [("c",)]]

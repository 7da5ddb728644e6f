"""The reader of policy files: where everything stands, and what is wrong with it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.errors import ConfigurationError, PolicyError
from jbi_pubsub.policy.access import access_rules
from jbi_pubsub.policy.file import PolicyDocument, parse, read

EVERYTHING = '''# a comment with [brackets] = "and more"
[group]
UAS = ["Predator-*",  # one of them
       'Raven-*']
"a.b" = "x"

[[access]]
  user = """
not [[a]] = "header" """
type = ["x#y", "z"]
namespaces = { t = "urn:t", "c]" = 'urn:c' }

[[access]]
where.inner = 1.5
'''


def problems(text: str) -> list[str]:
    """Of a text: line:column and message of each problem."""
    document = parse(text, "policy.toml")
    access_rules(document)
    return [document.told(problem).removeprefix("policy.toml:") for problem in document.errors]


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        (("group",), (2, 1), (2, 1)),
        (("group", "UAS"), (3, 1), (3, 7)),
        (("group", "UAS", 0), (3, 8), (3, 8)),
        (("group", "UAS", 1), (4, 8), (4, 8)),
        (("group", "a.b"), (5, 1), (5, 9)),
        (("access", 0), (7, 1), (7, 1)),
        (("access", 0, "user"), (8, 3), (8, 10)),
        (("access", 0, "type", 1), (10, 16), (10, 16)),
        (("access", 0, "namespaces", "c]"), (11, 29), (11, 36)),
        (("access", 1), (13, 1), (13, 1)),
        (("access", 1, "where", "inner"), (14, 1), (14, 15)),
    ],
)
def test_each_key_and_value_has_its_place(
    where: tuple[str | int, ...], key: tuple[int, int], value: tuple[int, int]
) -> None:
    document = parse(EVERYTHING, "policy.toml")
    assert (tuple(document.key(where)), tuple(document.value(where))) == (key, value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[acces]\n", "1:1: error: unknown table 'acces'. Did you mean 'access'?"),
        ("[access]\nuser='a'\n", "1:1: error: access is a list of tables. Write [[access]], with two brackets"),
        ("[[access]]\nusr = 'a'\n", "2:1: error: unknown key 'usr'. Did you mean 'user'?"),
        ("[[access]]\naction = ['publish', 'subscibe']\n", "unknown action 'subscibe'. Did you mean 'subscribe'?"),
        ("[[access]]\nuser = 5\n", "2:8: error: user is a text or a list of texts, not a number"),
        ("[[access]]\nuser = ['a', true]\n", "2:14: error: user is a text or a list of texts, not a truth value"),
        ("[[access]]\nuser = []\n", "2:8: error: user is empty"),
        ("[[access]]\nallow = 'no'\n", "2:9: error: allow is true or false, not a text"),
        ("[[access]]\ndelivery = 'mail'\n", "2:1: error: delivery is not known when access is asked"),
        ("[[access]]\naddress = '::ffff:10.0.0.0/104'\n", "'::ffff:10.0.0.0/104' matches no client"),
        ("[[access]]\naddress = '10.0.0.0/33'\n", "'10.0.0.0/33' is not an address or network"),
        ("[[access]]\naddress = '10.0.0.7/8'\n", "has host bits set"),
        ("[group]\nUAS = ['a']\n[[access]]\ngroup = 'UAV'\n", "4:9: error: no group 'UAV'. Did you mean 'UAS'?"),
        ("[group]\na = ['@b']\nb = ['@c']\nc = ['x', '@a']\n", "2:1: error: group 'a' is a member of itself"),
        ("[group]\na = ['x', '@bb']\nb = ['y']\n", "2:11: error: unknown group 'bb'. Did you mean 'b'?"),
        ("[role]\nx = ['a', 'b']\n", "2:5: error: the role of 'x' is one text"),
        ("[[access]]\naction = 'subscribe'\nwhere = '//a['\n", "3:9: error: where:"),
        ("[[access]]\naction = 'subscribe'\nwhere = 'x:a'\n", "3:9: error: where:"),
        ("[[access]]\naction = 'publish'\nwhere = 'a'\n", "3:1: error: where is for actions subscribe and query"),
        ("[[access]]\naction = 'subscribe'\nrecipients = 'a.org'\n", "3:1: error: recipients is for action mail alone"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_the_nearest_that_is_right(text: str, told: str) -> None:
    assert any(told in problem for problem in problems(text)), problems(text)


def test_a_file_is_told_of_all_its_mistakes_and_refused_for_the_first() -> None:
    # Given three mistakes
    text = "[[access]]\nusr = 'a'\n[[access]]\nactoin = 'publish'\nallow = 1\n"
    document = parse(text, "policy.toml")
    access_rules(document)
    # Expect all of them, in their order
    assert [problem.place.line for problem in document.errors] == [2, 4, 5]
    with pytest.raises(PolicyError, match=r"policy.toml:2:1: unknown key 'usr' \(and 2 more") as refused:
        document.check()
    assert (refused.value.facts["line"], refused.value.facts["column"]) == (2, 1)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[[access]\n", "1:9: "),
        (b"user = \n", "1:8: "),
        (b"[group]\nb = '\xff'\n", "2:6: not UTF-8"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "too many brackets"),
        (b"#" * (9 << 20), "more than 8 MB"),
    ],
)
def test_what_is_no_toml_is_refused(tmp_path: Path, data: bytes, told: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_bytes(data)
    with pytest.raises(PolicyError) as refused:
        read(file)
    assert told in str(refused.value)
    assert isinstance(refused.value, ConfigurationError)


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    with pytest.raises(PolicyError, match="No such file"):
        read(file)
    with pytest.raises(PolicyError, match=r"not a regular file|Is a directory"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyError, match="not a regular file"):  # and does not wait for a writer
        read(tmp_path / "pipe")
    file.write_text("")
    file.chmod(0o666)
    with pytest.raises(PolicyError, match=r"everybody may write it.*chmod o-w"):
        read(file)
    file.chmod(0o664)
    document, said = read(file)
    assert isinstance(document, PolicyDocument)
    assert said == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_told(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("")
    os.chown(file, 12345, -1)
    assert "belongs to user 12345" in read(file)[1][0]


def paths(value: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of every key and element within a value."""
    if where:
        yield where
    for key, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from paths(each, (*where, key))


LINES = st.sampled_from(
    [
        "[a]", "[ 'b' ]", '["\\u0041".c]  # ]', "[[d]]", "[[d.e]]  # x", "[[ f.'g.h' ]]", "x = 1.5", "'y z'.w = true",
        'k = [[1, 2], # ]\n  [{ m = "]" }],\n]', 'n = """\n[not] = "a header" \\""""', "o = '''\n\"\n'''",
        "p = 1979-05-27 07:32:00.5Z", "q = { r = 'a, b', s.t = [{}], \"u v\" = {} }", "v = '#'  # = [", "", "\t# only",
    ]
)  # fmt: skip


@given(st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_whatever_is_toml_has_a_place_for_each_of_its_values(lines: list[str], end: str) -> None:
    text = end.join(lines)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    document = parse(text, "policy.toml")
    for where in paths(tables):
        assert document.key(where).line > 0, where
        key = where[-1]
        if isinstance(key, str) and document.key(where) != document.value(where):  # a pair
            said = text.replace("\r", "").split("\n")[document.key(where).line - 1]
            assert said[document.key(where).column - 1] in "xynkopqvwrstumw'\""

"""What access rules decide, whatever their order."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.access import Action, Decision, Subject
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.policy import access, file
from jbi_pubsub.policy.access import AccessRules, access_rules, review
from jbi_pubsub.policy.file import parse


def rules(text: str) -> AccessRules:
    document = parse(text, "policy.toml")
    made = access_rules(document)
    document.check()
    return made


def ask(
    of: AccessRules, action: Action, type_: str = "", *, user: str = "", address: str = "192.0.2.7:4711", **more: Any
) -> Decision:
    subject = Subject(type_, more.pop("version", ""), more.pop("name", ""), more.pop("some", False))
    component = more.pop("component", "alpha@rome")
    return of.decide(Caller(address, identity=user, **more), action, subject, component=component)


@pytest.mark.row("G-40")
def test_without_a_rule_everybody_may_do_everything() -> None:
    assert ask(rules(""), "administer")
    assert ask(rules("[group]\na = ['x']\n"), "subscribe", "secret")


def test_one_rule_and_the_rest_is_denied() -> None:
    of = rules("[[access]]\nuser = 'alice'\naction = 'publish'\ntype = 'intel.*'\n")
    assert ask(of, "publish", "intel.Report", user="alice") == Decision(True, "policy.toml:1")
    for action, type_, user in (
        ("publish", "other.Report", "alice"),
        ("publish", "intel.Report", "bob"),
        ("publish", "intel.Report", ""),
        ("subscribe", "intel.Report", "alice"),
        ("administer", "", "alice"),
    ):
        assert ask(of, action, type_, user=user) == Decision(False), (action, type_, user)  # type: ignore[arg-type]


TABLE = {  # who looks and works together, and who may also steer
    "junior": {"status": True, "publish": True, "steer": False},
    "senior": {"status": True, "publish": True, "steer": True},
}
POLICY = """
[role]
ann = "junior"
bob = "senior"
[[access]]
role = ["junior", "senior"]
action = ["connect", "status", "publish", "subscribe"]
[[access]]
role = "senior"
action = "steer"
"""


@pytest.mark.row("D-21")
@pytest.mark.parametrize(("user", "role"), [("ann", "junior"), ("bob", "senior")])
@pytest.mark.parametrize("action", ["status", "publish", "steer"])
def test_juniors_look_and_collaborate_and_seniors_steer_as_well(user: str, role: str, action: Any) -> None:
    assert bool(ask(rules(POLICY), action, "x", user=user)) is TABLE[role][action]
    assert not ask(rules(POLICY), action, "x", user="nobody")


def test_a_denial_wins_whatever_the_order() -> None:
    allow = "[[access]]\nuser = '*'\naction = 'subscribe'\n"
    deny = "[[access]]\ntype = 'secret.*'\nallow = false\n"
    for text in (allow + deny, deny + allow):
        of = rules(text)
        assert ask(of, "subscribe", "open.Report", user="alice")
        refused = ask(of, "subscribe", "secret.Report", user="alice")
        assert not refused
        assert refused.rule == f"policy.toml:{text[: text.index('secret')].count(chr(10))}"


def test_every_key_of_the_context_narrows() -> None:
    of = rules(
        "[group]\nUAS = ['Predator-*', '@small']\nsmall = ['Raven-1']\n[role]\n'Patrol-1' = 'patrol'\n"
        "[[access]]\ngroup = 'UAS'\naction = 'publish'\n"
        "[[access]]\nrole = 'patrol'\naction = 'publish'\n"
        "[[access]]\nclient = 'field-*'\naction = 'publish'\n"
        "[[access]]\ncomponent = '*@oslo'\naction = 'publish'\n"
        "[[access]]\naddress = ['10.0.0.0/8', '2001:db8::/32', '172.16.*', 'unix']\naction = 'publish'\n"
        "[[access]]\ntype = 't'\nversion = '2.*'\naction = 'publish'\n"
    )
    assert ask(of, "publish", user="Predator-7")
    assert ask(of, "publish", user="Raven-1")
    assert ask(of, "publish", user="Patrol-1")
    assert ask(of, "publish", client="field-3")
    assert ask(of, "publish", component="alpha@oslo")
    for address in ("10.9.8.7:1", "2001:db8::1:4711", "::ffff:10.0.0.1:1", "172.16.5.5:9", "unix:1234"):
        assert ask(of, "publish", address=address), address
    assert ask(of, "publish", "t", version="2.1")
    assert not ask(of, "publish", "t", version="1.0", user="Raven-2", client="x", address="11.0.0.1:1")


def test_a_claim_is_nobody() -> None:
    of = rules("[[access]]\nuser = '*'\naction = 'publish'\n[[access]]\nuser = ''\naction = 'status'\n")
    assert ask(of, "publish", user="alice")
    claimed = Caller("192.0.2.7:1", user="alice", claimed=True)
    assert not of.decide(claimed, "publish", Subject("x"), component="c")
    assert of.decide(claimed, "status", Subject(), component="c")
    assert not ask(of, "status", user="alice")
    # Expect an identity to be the user, whatever is claimed besides
    assert Caller("a:1", identity="eve", user="alice", claimed=True).user == "eve"


def test_a_rule_about_a_type_lets_connect_but_nothing_else_that_is_about_none() -> None:
    of = rules("[[access]]\nuser = 'alice'\ntype = 'intel.*'\n")
    assert ask(of, "connect", user="alice")
    for action in ("administer", "steer", "peer", "bridge", "status"):
        assert not ask(of, action, user="alice"), action  # type: ignore[arg-type]
    denied = rules("[[access]]\nuser = '*'\n[[access]]\ntype = 'secret'\nallow = false\n")
    assert ask(denied, "connect", user="alice")


def test_some_type_is_allowed_if_one_may_be() -> None:
    of = rules("[[access]]\nuser = 'alice'\naction = 'subscribe'\ntype = 'intel.*'\n")
    assert ask(of, "subscribe", user="alice", some=True)
    assert not ask(of, "subscribe", user="bob", some=True)
    assert not ask(of, "subscribe", user="alice")
    # Expect of a type that is named its version to be what is not known
    of = rules("[[access]]\naction = 'subscribe'\ntype = 'intel.*'\nversion = '2.*'\n")
    assert ask(of, "subscribe", "intel.Report", some=True)
    assert not ask(of, "subscribe", "intel.Report")
    assert not ask(of, "subscribe", "other", some=True)


def test_mail_goes_to_the_domains_that_are_named() -> None:
    of = rules("[[access]]\naction = 'mail'\nrecipients = ['*.example.org', 'Example.org']\n")
    assert ask(of, "mail", name="example.org")
    assert ask(of, "mail", name="ops.Example.org")
    assert not ask(of, "mail", name="example.com")


def seen(decision: Decision, document: str) -> bool:
    """Whether a subscription under that decision gets the document."""
    if not decision:
        return False
    if not decision.where:
        return True
    predicate = compile_predicate(decision.where, namespaces=dict(decision.namespaces))
    return predicate.matches(etree.fromstring(document))


def test_what_several_rules_show_adds_up_and_what_one_hides_is_hidden() -> None:
    of = rules(
        "[[access]]\naction = 'subscribe'\nwhere = \"a='1'\"\n"
        "[[access]]\naction = 'subscribe'\nwhere = \"p:a='2'\"\nnamespaces = {p = 'urn:x'}\n"
        "[[access]]\naction = 'subscribe'\nwhere = \"p:a='3'\"\nnamespaces = {p = 'urn:y'}\n"
        "[[access]]\naction = 'subscribe'\nwhere = 'p:hidden'\nnamespaces = {p = 'urn:z'}\nallow = false\n"
    )
    decision = ask(of, "subscribe", "t")
    assert decision.rule == "policy.toml:1,4,8,12"
    assert seen(decision, "<m><a>1</a></m>")
    assert seen(decision, "<m><a xmlns='urn:x'>2</a></m>")
    assert seen(decision, "<m><a xmlns='urn:y'>3</a></m>")
    assert not seen(decision, "<m><a xmlns='urn:y'>2</a></m>")
    assert not seen(decision, "<m><a>1</a><hidden xmlns='urn:z'/></m>")
    # Expect who is allowed all by another rule to get all but what is hidden
    more = rules(
        "[[access]]\nuser='bob'\n[[access]]\naction='subscribe'\nwhere='b'\nallow=false\n[[access]]\nwhere='c'\naction='subscribe'\n"
    )
    assert ask(more, "subscribe", "t", user="bob").where == "not(b)"


PARTS = {
    "user": ["'u1'", "['u1', 'u2']", "'u*'", "'*'", "''"],
    "action": ["'subscribe'", "['publish', 'subscribe']", "'*'", "'connect'"],
    "type": ["'t1'", "'t*'", "['t1', 't2']", "'*'"],
    "version": ["'1.*'"],
    "address": ["'10.0.0.0/8'", "'10.*'"],
    "client": ["'c'"],
    "allow": ["true", "false"],
}
RULE = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in PARTS.items()})


def naive(of: AccessRules, caller: Caller, action: str, subject: Subject) -> bool:
    """The sentence at the top of access.py, word by word."""
    facts = of._facts(caller.user, caller.address.rpartition(":")[0], caller.client, "c", subject)
    about = [rule for rule in of.rules if action in rule.actions]
    known = access.NO_TYPE if action == "connect" or (subject.some and not subject.type) else access.ALL
    known = access.NO_VERSION if known == access.ALL and subject.some else known
    denied = any(not rule.allow and not rule.miss(facts) for rule in about)
    return not denied and any(rule.allow and not rule.miss(facts, known) for rule in about)


@settings(max_examples=examples(40))
@given(st.lists(RULE, min_size=1, max_size=6), st.randoms())
def test_order_and_index_change_no_decision(tables: list[dict[str, str]], random: Any) -> None:
    blocks = ["[[access]]\n" + "".join(f"{key} = {value}\n" for key, value in table.items()) for table in tables]
    shuffled = random.sample(blocks, len(blocks))
    one, other = rules("".join(blocks)), rules("".join(shuffled))
    for user, type_, action, address in itertools.product(
        ("", "u1", "u3", "x"), ("", "t1", "t3", "x"), ("subscribe", "connect", "status"), ("10.1.1.1:1", "11.1.1.1:1")
    ):
        for some in (False, True):
            caller, subject = Caller(address, identity=user, client="c"), Subject(type_, some=some)
            decided = bool(one.decide(caller, action, subject, component="c"))  # type: ignore[arg-type]
            assert decided == bool(other.decide(caller, action, subject, component="c"))  # type: ignore[arg-type]
            assert decided == naive(one, caller, action, subject), (user, type_, action, address, some)


@contextmanager
def steps() -> Iterator[list[int]]:
    """How many lines of Python are gone through, which is the same on any machine."""
    taken, before = [0], sys.gettrace()

    def trace(_frame: object, event: str, _argument: object) -> Any:
        taken[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield taken
    finally:
        sys.settrace(before)


@pytest.mark.long
@pytest.mark.parametrize("count", [2_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_rules_are_asked_in_few_steps(count: int) -> None:
    # Given rules that are all different
    kinds = ("user = 'u{n}'", "user = 'u{n}-*'", "address = '10.{a}.{b}.0/24'", "group = 'g'")
    text = "".join(
        f"[[access]]\n{kinds[n % 4].format(n=n, a=n // 250, b=n % 250)}\ntype = 't{n}.*'\naction = 'subscribe'\n"
        for n in range(count)
    )
    of = rules("[group]\ng = ['v9*']\n" + text)
    # When somebody asks who is last, and somebody whom no rule is about
    last = count - 4
    asked = {
        Caller("192.0.2.7:1", identity=f"u{last}"): f"t{last}.x",
        Caller("192.0.2.7:1", identity=f"u{last + 1}-x"): f"t{last + 1}.x",
        Caller(f"10.{(last + 2) // 250}.{(last + 2) % 250}.3:1"): f"t{last + 2}.x",
        Caller("192.0.2.7:1", identity="v9"): f"t{last + 3}.x",
        Caller("192.0.2.7:1", identity="nobody"): f"t{last + 3}.x",
    }
    for caller, type_ in asked.items():
        of.decide(caller, "subscribe", Subject(type_), component="c")  # what is compiled when it is needed is
        of._known.clear()
        with steps() as taken:
            decision = of.decide(caller, "subscribe", Subject(type_), component="c")
        # Expect the right answer, at once, though it is not remembered
        assert bool(decision) is (caller.identity != "nobody")
        assert taken[0] < 1_000


def test_decisions_that_are_remembered_are_bounded() -> None:
    of = rules("[[access]]\nclient = 'a*'\n")
    for number in range(access.KNOWN_MOST + 10):
        assert ask(of, "connect", client=f"a{number}")
    assert len(of._known) <= access.KNOWN_MOST


def test_what_callers_say_at_length_is_not_remembered() -> None:
    of = rules("[[access]]\naction = 'publish'\ntype = 'intel.*'\n")
    for number in range(20):
        long = f"intel.{number}" + "x" * 1_000_000
        assert ask(of, "publish", long)
        assert not ask(of, "subscribe", long)
        assert ask(of, "publish", "intel.Report", version=long, user=long[:30_000])
    assert sum(len(repr(question)) for question in of._known) < 100_000
    assert ask(of, "publish", "intel.Report")
    assert len(of._known) == 1


@pytest.mark.parametrize("key", ["user", "type"])
def test_a_denial_of_nobody_and_of_a_glob_is_found_for_both(key: str) -> None:
    of = rules(f"""
    [[access]]
    action = ["connect", "subscribe"]
    [[access]]
    {key} = ["", "*-guest"]
    action = "subscribe"
    allow = false
    """)
    for named, allowed in (("", False), ("eve-guest", False), ("bob", True)):
        asked = {"user": named, "type_": "intel.Report"} if key == "user" else {"user": "bob", "type_": named}
        assert bool(ask(of, "subscribe", **asked)) is allowed, named


def test_too_many_rules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert file.MAX_RULES == 10_000
    monkeypatch.setattr(file, "MAX_RULES", 10)
    document = parse("[[access]]\n" * 11, "policy.toml")
    assert len(access_rules(document).rules) == 10
    assert document.errors[0].place.line == 11


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 0, "no [[access]] rule"),
        ("[[access]]\nallow = false\n", 1, "no rule allows anything"),
        ("[[access]]\naction = 'publish'\n", 1, "no rule allows connect"),
        ("[[access]]\nuser = ''\n[[access]]\nrole = 'watch'\naction = 'query'\n[role]\na = 'watch'\n", 3, "to a user"),
        ("[[access]]\nuser = 'a'\n[[access]]\nuser = 'a'\n", 3, "says the same as line 1"),
        ("[[access]]\n[[access]]\nuser = 'a1'\n[[access]]\nuser = 'a*'\nallow = false\n", 2, "line 4 denies all of it"),
        ("[[access]]\n[[access]]\naction = 'steer'\ntype = 'a'\n", 4, "never applies: steer is about no type"),
        ("[group]\nempty = []\n[[access]]\n", 2, "group 'empty' is empty"),
    ],
)
def test_what_is_hardly_meant_is_told(text: str, line: int, told: str) -> None:
    document = parse(text, "policy.toml")
    review(document, access_rules(document))
    assert any(told in w.message and w.place.line == line for w in document.warnings), document.warnings


def test_a_file_that_is_about_who_matters_needs_no_rules() -> None:
    document = parse("[[policy]]\nname = 'a'\nimportance = 5\n", "policy.toml")
    review(document, access_rules(document))
    assert document.warnings == []


def test_why_a_rule_does_not_apply_is_said() -> None:
    of = rules("[[access]]\nuser = 'alice'\ntype = 'a'\naction = 'subscribe'\n[[access]]\nallow = false\ntype = 'b'\n")
    told = of.explain(Caller("a:1", identity="alice"), "subscribe", Subject("b"), component="c")
    lines = [(int(reason["rule"].rpartition(":")[2]), reason["miss"]) for reason in told["reasons"]]
    assert (lines, told["missed"]) == ([(5, ""), (1, "type")], 1)

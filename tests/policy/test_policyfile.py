"""Policy files: each of their tables, what is wrong with them and where, and the way back to text."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import PolicyError
from jbi_pubsub.core.quality import LinkTerms, Rate, Strategy
from jbi_pubsub.policy import policyfile
from jbi_pubsub.policy.context import CallerFacts
from jbi_pubsub.policy.file import PolicyDocument, dumped, parse
from jbi_pubsub.policy.policy import Policy
from jbi_pubsub.policy.policyset import PolicySet, policies_of, review

DATA = Path(__file__).parents[2] / "jbi_pubsub" / "policy" / "data"


def noted(text: str, now: float | None = None) -> list[str]:
    """line:column, kind and message of each problem of a file."""
    document = parse(text, "p.toml")
    policies = policies_of(document)
    if not document.errors:
        review(document, policies.rules, now)
    return [document.told(problem).removeprefix("p.toml:") for problem in [*document.errors, *document.warnings]]


P = '[[policy]]\nname = "p"\n'


@pytest.mark.row("Q-55")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (P + 'typ = "t"\n', "3:1: error: unknown key 'typ'. Did you mean 'type'?"),
        ("[[policie]]\n", "1:1: error: unknown table 'policie'. Did you mean 'policy'?"),
        ("[policy]\n", "1:1: error: policy is a list of tables. Write [[policy]], with two brackets"),
        ("policy = 5\n", "1:1: error: policy is a list of tables"),
        ("preference = 5\n", "1:1: error: [preference] is a table"),
        ("[[policy]]\nimportance = 3\n", "1:1: error: name is missing"),
        ('[[policy]]\nname = ""\n', "2:8: error: name is a text of 1 to 200 characters"),
        (P + "importance = 0\n", "3:14: error: importance: '0' is not a whole number from 1 (least) to 5"),
        (P + "importance = 6\n", "3:14: error: importance: '6' is not a whole number"),
        (P + 'importance = "high"\n', "3:14: error: importance: 'high' is not a whole number"),
        (P + "importance = true\n", "3:14: error: importance: 'True' is not a whole number"),
        (P + 'importance = "none"\n', "3:14: error: importance: 'none' is not a whole number"),
        (P + "deadline = 5\n", '3:12: error: deadline: 5 has no unit. For example "5 s"'),
        (P + 'deadline = "5 KB"\n', "3:12: error: deadline: '5 KB' is not in ms, s, min, h, d"),
        (P + 'deadline = "0 s"\n', "3:12: error: deadline: nothing is as quick as that"),
        (P + 'max_rate = "0 kbps"\n', "3:12: error: max_rate: '0 kbps' lets nothing through"),
        (P + 'max_rate = "64"\n', "3:12: error: max_rate: '64' has no unit"),
        (P + "max_size = nan\n", "3:12: error: max_size: nan has no unit"),
        (P + f'max_size = "{"9" * 400} KB"\n', "3:12: error: max_size: "),
        (P + 'shape = "scal 0.5"\n', "3:9: error: shape: 'scal 0.5' is not a shape. Did you mean 'scale'?"),
        (P + 'shape = "scale"\n', "3:9: error: shape: 'scale' is written 'scale FACTOR'"),
        (P + 'shape = ["scale 2"]\n', "3:9: error: shape: factor of scale is a number from 0.01 to 1, not '2'"),
        (P + 'shape = "quality nan"\n', "3:9: error: shape: percent of quality is a whole number from 1 to 95"),
        (P + "shape = []\n", "3:9: error: shape: 1 to 8 shapes"),
        (P + 'queue = "drop"\n', "3:9: error: queue: unknown 'drop'. Did you mean 'drop_"),
        (P + 'oversize = "cut"\n', "3:12: error: oversize: unknown 'cut'"),
        (P + 'replace = "//["\n', "3:11: error: replace: unexpected '['"),
        (P + 'preference = "NoDrp"\n', "3:14: error: no preference 'NoDrp'. Did you mean 'NoDrop'?"),
        ("[preference.X]\nimportance = 3\n", "2:1: error: unknown key 'importance'"),
        ('[preference.X]\nshape = "grey 1"\n', "2:9: error: shape: 'grey 1' is written 'grey'"),
        (P + 'precedence = "first"\n', "3:14: error: precedence is a whole number"),
        (P + 'action = "connect"\n', "3:10: error: policies are about publish, subscribe and query, not 'connect'"),
        (P + 'delivery = "post"\n', "3:12: error: unknown delivery 'post'"),
        (P + 'group = "UAV"\n[group]\nUAS = "x"\n', "3:9: error: no group 'UAV'. Did you mean 'UAS'?"),
        (P + 'address = "10.0.0.1/8"\n', "3:11: error: '10.0.0.1/8' is not an address or network"),
        (P + 'attribute = "Kabul"\n', "3:13: error: attribute is a table"),
        (P + "attribute = { a = 1 }\n", "3:19: error: a is a text or a list of texts"),
        (P + 'until = "2026-12-24"\n', "3:9: error: until is not a time. For example 2026-12-24T18:00:00Z"),
        (P + "until = 2026-12-24T18:00:00\n", "3:9: error: until has no zone"),
        (P + "from = 2099-01-02T00:00:00Z\nuntil = 2099-01-01T00:00:00Z\n", "4:9: error: until is not after from"),
        (P + 'hours = "8-16"\n', '3:9: error: hours: hours of UTC, for example "08:00-16:30"'),
        (P + 'hours = "08:00-08:00"\n', "3:9: error: hours: no time is between them"),
        (P + 'hours = "25:00-26:00"\n', "3:9: error: hours: hours of UTC"),
        (P + 'days = ["mon", "thr"]\n', "3:8: error: unknown day 'thr'. Did you mean 'thu'?"),
        (P + "allow = { importance = 3 }\n", "3:24: error: importance: the least and the most, for example [1, 3]"),
        (P + "allow = { importance = [3, 1] }\n", "3:24: error: importance: the least is more than the most"),
        (P + "allow = { imprtance = [1, 3] }\n", "3:11: error: unknown key 'imprtance'. Did you mean 'importance'?"),
        (P + 'allow = { max_rate = "2/s" }\n', "3:22: error: max_rate: is in bits or bytes a second here"),
        (P + "when = 5\n", "3:8: error: when is a condition, a text"),
        (P + "when = \"typ == 'x'\"\n", "3:9: error: when: unknown property 'typ'. Did you mean 'type'?"),
        (P + 'when = """\nsize >\n  5 and"""\n', "5:8: error: when: ends too early"),
        (P + 'when = "user == \\"\\u00e9\\" and size > 5"\n', "3:39: error: when: size: 5 has no unit"),
        (P + "when = '''user == 'a' and\n  group == 'UAV''''\n", "3:8: error: no group 'UAV'"),
        (P + "when = \"action == 'connect'\"\n", "3:8: error: unknown action 'connect'"),
        (P + "when = \"metadata('//x:a')\"\nnamespaces = 3\n", "4:14: error: namespaces is a table of prefix = 'URI'"),
        (P + P, "3:1: error: two policies are called 'p', here and in line 1"),
        ('[space]\nstrategy = "weightd_fair"\n', "2:12: error: unknown strategy 'weightd_fair'. Did you mean "),
        ("[space]\nweights = [1, 2, 4, 8]\n", "2:11: error: weights: 5 numbers above 0"),
        ("[space]\nweights = [0, 2, 4, 8, 16]\n", "2:11: error: weights: 5 numbers above 0"),
        ("[space]\ncpu_weights = [nan, 2, 4, 8, 16]\n", "2:15: error: cpu_weights: 5 numbers above 0"),
        ("[space]\nlink_weights = [inf, 2, 4, 8, 16]\n", "2:16: error: link_weights: 5 numbers above 0"),
        ("[space]\nweights = ['a', 'b', 'c', 'd', 'e']\n", "2:11: error: weights: 5 numbers above 0"),
        ('[space]\nshaping = "no"\n', "2:11: error: shaping is true or false"),
        ('[[link]]\nname = "l"\nrate = "0 kbps"\n', "3:8: error: rate: '0 kbps' lets nothing through"),
        ('[[link]]\nname = "l"\nrate = 800\n', "3:8: error: rate: 800 has no unit"),
        ('[[link]]\nname = "l"\nmin_share = { 1 = 0.6, 5 = 0.5 }\n', "3:13: error: min_share: 1.1 in sum"),
        ('[[link]]\nname = "l"\nmin_share = { 6 = 0.6 }\n', "3:13: error: min_share: no importance '6'"),
        ('[[link]]\nname = "l"\nrate = "8 kbps"\neach = "9 kbps"\n', "4:8: error: each is more than the rate"),
        ('[[link]]\nname = "l"\nreserve = 1\n', "3:11: error: reserve: a part of the rate"),
        ('[[link]]\nname = "l"\noverhead = -1\n', "3:12: error: overhead: bytes for each"),
        ('[[link]]\nname = "l"\nmembers = "size > \'1 KB\'"\n', "3:11: error: size is not known when a contract opens"),
        ('[[link]]\nname = "l"\n[[link]]\nname = "l"\n', "3:1: error: two of link are called 'l', here and in line 1"),
        ('[[mission]]\nname = "m"\n', "1:1: error: mission 'm' uses no template"),
        ('[[mission]]\nname = "m"\nuse = [{ template = "t" }]\n', "3:21: error: no template 't'. There is none"),
        ('[[template]]\nname = "t"\n', "1:1: error: template 't' has no policy"),
        ('[[template]]\nname = "t"\n[[template.policy]]\nname = "{who}"\n', "4:8: error: 'who' is not a parameter"),
        ('[[template]]\nname = "t"\nparameters = "w"\n[[template.policy]]\nusr = "w"\n', "5:1: error: unknown key"),
        ('[[template]]\nname = "t"\n[[template.template]]\n', "3:1: error: unknown key 'template'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, told: str) -> None:
    said = noted(text)
    assert any(line.startswith(told) for line in said), said
    with pytest.raises(PolicyError):
        PolicySet.parse(text)


CONVOY = """[[template]]
name = "convoy"
parameters = ["who", "area"]
[[template.policy]]
name = "{who}: {area}"
user = "{who}"
when = "metadata(\\"//Area='{area}'\\")"
importance = 5
"""


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ('{ template = "convoy", who = "P" }', "parameter 'area' is missing"),
        ('{ template = "convoy", who = "P", area = 5 }', "parameter 'area' is a text"),
        ('{ template = "convoy", who = "P", area = "K", spd = "" }', "unknown parameter 'spd'"),
        ('{ template = "convoy", who = "P", area = "K\' or \'" }', "'area' is used in `when`: it can't have quotes"),
        ('{ template = "convoi", who = "P", area = "K" }', "no template 'convoi'. Did you mean 'convoy'?"),
    ],
)
def test_missions_fill_in_all_of_a_template_and_nothing_else(use: str, told: str) -> None:
    assert any(told in line for line in noted(f'{CONVOY}[[mission]]\nname = "m"\nuse = [{use}]\n'))


def test_a_mission_makes_policies_while_it_is_active() -> None:
    mission = '[[mission]]\nname = "m"\nuse = [{ template = "convoy", who = "{area}", area = "Kabul" }]\n'
    active, not_active = (PolicySet.parse(f"{CONVOY}{mission}active = {is_on}\n") for is_on in ("true", "false"))
    # Expect what a parameter says not to be filled in again
    assert [(rule.name, rule.keys["user"].said) for rule in active.rules] == [("{area}: Kabul", ("{area}",))]
    assert not_active.rules == ()
    assert "no mission uses template 'convoy'" in noted(CONVOY)[0]


def test_what_is_hardly_meant_is_said() -> None:
    past = 'until = 2001-01-01T00:00:00Z\nimportance = 1\nuser = "u"\n'
    assert noted(P + past)[0].startswith("1:1: warning: policy 'p': its time is over")
    assert noted(P + past, now=0.0) == []
    text = (
        P
        + 'type = "uav.imagery"\nimportance = 2\n[[policy]]\nname = "q"\ntype = "u*"\nprecedence = 1\nimportance = 4\n'
    )
    assert noted(text) == ["1:1: warning: policy 'p' can never win: others say all that it says, before it"]
    assert noted(text.replace("importance = 2", 'importance = 2\ndeadline = "5 s"')) == []
    text = P + 'type = ["a", "b"]\nimportance = 2\n[[policy]]\nname = "q"\ntype = ["b", "c"]\nimportance = 4\n'
    assert "1:1: warning: policies 'p' and 'q' (line 5) contradict each other in importance" in noted(text)[0]
    assert noted(text.replace('"b", "c"', '"c"')) == []
    assert "3:8: warning: no role 'cas'" in noted(P + 'role = "cas"\nimportance = 2\n')[0]
    assert "1:1: warning: policy 'p' says nothing" in noted(P)[0]
    assert len(noted(P + "importance = 9\n")) == 1
    assert noted(P + 'importance = "5"\n')[0].endswith("(most important). Write it without quotes")
    assert "Did you mean 'registration'?" in noted(P + 'replace = "registraton"\n')[0]
    assert noted(P + 'replace = "//registraton"\n') == []
    idle = P + 'action = "publish"\nimportance = 2\nmax_rate = "2/s"\nshape = "grey"\n'
    assert noted(idle) == ["6:1: warning: shape has no effect on publishers. Leave action out, or add subscribe"]
    assert noted(idle.replace('"publish"', '["publish", "subscribe"]')) == []
    assert "3:8: warning: policy 'p' never applies" in noted(P + 'when = "False"\nimportance = 2\n')[0]


@pytest.mark.long
def test_ten_thousand_policies_are_the_most() -> None:
    text = "".join(f'[[policy]]\nname = "p{number}"\nimportance = 2\n' for number in range(10_001))
    assert any("more than 10000 of policy" in line for line in noted(text))


@pytest.mark.parametrize("number", range(6))
def test_files_that_can_not_be_read_say_why(tmp_path: Path, number: int) -> None:
    path = tmp_path / "p.toml"
    content = [None, b"\xff", b"[[policy]\n", b"x = " + b"[" * 5_000, b'[[policy]]\nname = "half', b"#" * (9 << 20)][
        number
    ]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        PolicySet.read(path)
    assert caught.value.facts["file"] == str(path) or "p.toml" in caught.value.message


@pytest.mark.row("Q-68")
def test_the_shipped_files_are_without_errors() -> None:
    for path in DATA.glob("*.toml"):
        policies = PolicySet.read(path)
        assert PolicySet.parse(policies.write()) == policies
        assert [line for line in policies.check() if "no role" not in line] == []


@pytest.mark.row("Q-27")
def test_all_that_a_file_may_say_is_read() -> None:
    policies = PolicySet.read(DATA / "demo.toml")
    assert policies.space.strategy == Strategy("weighted_fair", (1.0, 2.0, 4.0, 8.0, 16.0), (1.0, 2.0, 4.0, 8.0, 16.0))
    assert policies.space.links == (LinkTerms(name="downlink", rate=100_000.0, min_share=(0.02, 0.0, 0.0, 0.0, 0.3)),)
    policy = Policy(
        "all", type=["t", "u.*"], user="u", when="size > '1 KB'", precedence=3, importance=4, preference="BFTrack",
        deadline="2 min", shape=["grey", "quality 60"], max_rate="2/s", max_size="50 KB", oversize="shape",
        replace="//id", queue="block", from_=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        until=dt.datetime(2099, 1, 1, tzinfo=dt.UTC), hours="08:00-16:00",
        days=["mon", "tue"], allow={"importance": [1, 3], "shape": False}, attribute={"a b": "c"},
    )  # fmt: skip
    (rule,) = PolicySet.parse("").with_policy(policy).rules
    assert (rule.precedence, rule.specificity) == (3, 48 + 34 + 22 + 2)
    assert rule.fields["deadline"] == 120.0
    assert rule.fields["max_rate"] == Rate(2.0, "objects")
    assert (rule.fields["max_size"], rule.fields["queue"], rule.fields["replace"]) == (50_000, "block", "//id")


def test_hours_and_days_are_of_utc_and_a_night_is_its_evening_s() -> None:
    policies = PolicySet.parse(P + 'hours = "22:00-04:00"\ndays = ["fri"]\nimportance = 5\n')
    who = CallerFacts(("u",), (), (), ("",), ("",), ("",))

    def at(*when: int) -> int:
        return policies.resolve(who, now=dt.datetime(2026, 11, *when, tzinfo=dt.UTC).timestamp()).settings.importance

    # 20 November 2026 is a Friday
    assert [at(20, 21, 59), at(20, 22, 0), at(21, 3, 59), at(21, 4, 0), at(20, 3, 0), at(21, 23, 0)] == [
        3,
        5,
        5,
        3,
        3,
        3,
    ]
    now = dt.datetime(2026, 11, 20, 21, 0, tzinfo=dt.UTC).timestamp()
    assert policies.next_change(now) == now + 3_600


VALUES = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.datetimes(timezones=st.just(dt.UTC)).map(lambda at: at.replace(microsecond=0)),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    tables=st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
        st.recursive(
            VALUES,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=5,
    )
)
def test_whatever_toml_can_say_is_written_so_that_it_is_read_again(tables: dict[str, Any]) -> None:
    import tomllib

    text = dumped({"policy": [tables], "space": tables})
    assert tomllib.loads(text) == {"policy": [tables], "space": tables}


def test_a_thousand_policies_are_read_and_checked_in_little_time() -> None:
    text = "".join(
        f'[[policy]]\nname = "p{n}"\ntype = "t{n % 200}.*"\nuser = "u{n}"\n'
        f"when = \"size > '{n} KB'\"\nimportance = {1 + n % 5}\n"
        for n in range(1_000)
    )
    began = time.thread_time()
    document: PolicyDocument = parse(text, "p.toml")
    review(document, policies_of(document).rules)
    assert not document.errors
    assert time.thread_time() - began < 15.0


KINDS = {
    "policy": policyfile.POLICY_KEYS, "template": policyfile.TEMPLATE_KEYS, "mission": policyfile.MISSION_KEYS,
    "link": policyfile.LINK_KEYS, "space": policyfile.SPACE_KEYS, "preference": ("X", "NoDrop"), "group": ("g",),
    "role": ("u",),
}  # fmt: skip
SAID = st.recursive(
    st.one_of(
        VALUES,
        st.sampled_from(
            ["none", "5 s", "50 KB", "64 kbps", "scale 0.5", "NoDrop", "uav.*", "size > '5 KB'", "{w}", "w", "p",
             "08:00-16:00", "mon", "10.0.0.0/8", "@g", "subscribe", "strict", "user == 'a' and {w}", 1,
             0.5, [1, 2, 4, 8, 16]]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["name", "template", "w", "1", "5", "importance", "when", "deadline"]), inner, max_size=4
    ),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.row("Q-27")
@pytest.mark.long
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_whatever_a_file_says_it_is_used_or_refused_with_a_reason(data: st.DataObject) -> None:
    # Given tables with the right keys and any values
    tables: dict[str, Any] = {}
    for kind in data.draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=4, unique=True)):
        table = st.dictionaries(st.sampled_from(KINDS[kind]), SAID, max_size=5)
        is_list = kind in ("policy", "template", "mission", "link")
        tables[kind] = data.draw(st.lists(table, max_size=3) if is_list else table)
    text = dumped({kind: said for kind, said in tables.items() if said})
    text = text if tables.get("link") != [] else "link = []\n" + text
    # When it is read; expect no other error
    try:
        policies = PolicySet.parse(text)
    except PolicyError:
        return
    # Expect it to be of use, and to survive its own text
    assert PolicySet.parse(policies.write()) == policies
    policies.check(0.0)
    who = CallerFacts(("u",), (), (), ("",), ("",), ("10.0.0.1",))
    policies.resolve(who, now=1e9).outcome(lambda _node: True)


def test_what_replaces_in_a_namespace_is_written_without_prefixes() -> None:
    # Given a path with a prefix: the message shows how to write it
    told = noted(P + "namespaces = { c = 'urn:cap' }\nreplace = '/c:alert/c:identifier'\n")
    assert "*[local-name()='alert' and namespace-uri()='urn:...']" in told[0]
    # Expect that to be taken
    path = "/*[local-name()='alert' and namespace-uri()='urn:cap']/*[local-name()='identifier']"
    assert noted(P + f'replace = "{path}"\n') == []

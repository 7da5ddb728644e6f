"""`jbi policy`, as people and programs use it."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.cli.policies import append_policy
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.policy.users import Account, write_accounts
from jbi_pubsub.policy.writing import set_value


@pytest.fixture
def jbi(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """jbi("policy", ...) is the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            code = run(arguments)
        except SystemExit as exc:
            code = int(exc.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_what_is_wrong_is_said_as_compilers_do(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[[access]]\nusr = 'a'\n[[access]]\naction = 'conect'\nb = 1\n")
    code, out, _ = jbi("policy", "check", "p.toml")
    assert code == 2
    assert out.splitlines() == [
        "p.toml:2:1: error: unknown key 'usr'. Did you mean 'user'?",
        "p.toml:4:10: error: unknown action 'conect'. Did you mean 'connect'?",
        "p.toml:5:1: error: unknown key 'b'. " + out.splitlines()[2].partition("'b'. ")[2],
    ]
    code, out, _ = jbi("policy", "check", "p.toml", "--json")
    assert code == 2
    assert [(p["line"], p["column"], p["kind"]) for p in json.loads(out)["problems"]] == [
        (2, 1, "error"),
        (4, 10, "error"),
        (5, 1, "error"),
    ]


def test_hostile_text_stays_text(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[[access]]\nuser = "\\u001b[31mred\\n"\nclient = "[red]x[/red]"\n')
    for command in (("check", "p.toml"), ("show", "p.toml"), ("diff", "p.toml", "p.toml")):
        _, out, _ = jbi("policy", *command)
        assert "\x1b" not in out
    explained = jbi("policy", "explain", "--file", "p.toml", "--action", "connect", "--user", "\x1b[31m")
    assert "\x1b" not in explained[1]


@pytest.mark.parametrize(
    ("text", "code"), [(None, 2), (b"[[access]\n", 2), (b"\xff", 2), (b"", 0), (b"[[access]]\nallow = false\n", 0)]
)
def test_the_exit_code_says_whether_a_file_can_be_used(jbi: Any, tmp_path: Path, text: bytes | None, code: int) -> None:
    if text is not None:
        (tmp_path / "p.toml").write_bytes(text)
    for more in ((), ("--json",)):
        found, out, err = jbi("policy", "check", "p.toml", *more)
        assert found == code
        assert "Traceback" not in out + err
        assert out or err


def test_wrong_words_are_told_the_right_ones(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("")
    assert "Did you mean 'subscribe'?" in jbi("policy", "explain", "--action", "subscrib", "--file", "p.toml")[2]
    assert "Did you mean 'explain'?" in jbi("policy", "explan")[2]
    assert "no policy file is configured" in jbi("policy", "check")[2]
    assert "Leave --file" in jbi("policy", "explain", "--action", "mail", "--at", "h:1", "--file", "p.toml")[2]


def test_explain_ends_with_what_it_says(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[[access]]\nuser = 'alice'\nwhere = 'a'\naction = 'subscribe'\n")
    asked = ("policy", "explain", "--file", "p.toml", "--action", "subscribe", "--type", "t", "--json")
    code, out, _ = jbi(*asked, "--user", "alice")
    assert (code, json.loads(out)["rule"], json.loads(out)["where"]) == (0, "p.toml:1", "a")
    code, out, _ = jbi(*asked, "--user", "bob")
    assert (code, json.loads(out)["reasons"][0]["miss"]) == (1, "user")


def test_a_running_delegate_is_asked_about_its_own_rules(jbi: Any, federation: Any, policy: Any) -> None:
    policy.write("[[access]]\naction = 'administer'\n[[access]]\ncomponent = 'alpha@*'\nuser = 'bob'\n")
    pad: DisseminationServer = federation.pad()
    code, out, err = jbi(
        "policy", "explain", "--user", "bob", "--action", "publish", "--type", "t", "--at", pad.address
    )
    assert code == 0, err
    assert out.startswith("bob: publish t: allowed, by policy.toml:3")


def test_rules_are_compared_whatever_their_order(jbi: Any, tmp_path: Path) -> None:
    one, other = "[[access]]\nuser = 'a'\n", "[[access]]\nuser = ['c', 'b']\n"
    (tmp_path / "p.toml").write_text(one + other)
    (tmp_path / "q.toml").write_text("# later\n" + other.replace("'c', 'b'", "'b', 'c'") + one)
    assert jbi("policy", "diff", "p.toml", "q.toml")[:2] == (0, "they say the same\n")
    (tmp_path / "q.toml").write_text(one + "[role]\na = 'watch'\n")
    code, out, _ = jbi("policy", "diff", "p.toml", "q.toml", "--json")
    assert code == 1
    found = json.loads(out)
    assert [rule["user"] for rule in found["removed"]] == [["b", "c"]]
    assert found["people"] == [{"kind": "role", "name": "a", "before": None, "after": "watch"}]


@pytest.mark.row("Q-12")
def test_a_policy_is_listed(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[group]\ng = ['x']\n[[access]]\ngroup = 'g'\naction = 'connect'\n")
    code, out, _ = jbi("policy", "show", "p.toml")
    assert code == 0
    assert out.splitlines() == ["group g: x", "line\trule\taction\twhen", "3\tallow\tconnect\tgroup g"]


POLICIES = """[[policy]]
name = "images"
type = "uav.imagery"
importance = 2
preference = "GeneralSurv"
[[policy]]
name = "large images over narrow links"
type = "uav.imagery"
when = "bandwidth < '400 kbps' and size > '50 KB'"
importance = 1
"""


def test_policies_are_checked_with_their_places(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(POLICIES.replace("size >", "sze >"))
    code, out, _ = jbi("policy", "check", "p.toml")
    assert (code, out) == (2, "p.toml:9:36: error: when: unknown property 'sze'. Did you mean 'size'?\n")
    (tmp_path / "p.toml").write_text(POLICIES)
    code, out, _ = jbi("policy", "check", "p.toml")
    assert code == 0
    assert "0 access rules, 2 policies, can be used" in out
    assert json.loads(jbi("policy", "check", "p.toml", "--json")[1])["policies"] == 2
    (tmp_path / "p.toml").write_text(f'{POLICIES}[space]\nstrategy = "weightd_fair"\n')
    assert json.loads(jbi("policy", "check", "p.toml", "--json")[1])["policies"] == 0  # none can be used


def test_policies_are_listed_as_they_win(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(POLICIES)
    code, out, _ = jbi("policy", "show", "p.toml")
    assert code == 0
    assert [line.split("\t")[1] for line in out.splitlines()[1:]] == [
        "policy",
        "large images over narrow links",
        "images",
    ]
    assert json.loads(jbi("policy", "show", "p.toml", "--json")[1])["policies"][1]["settings"]["deadline"] == 5.0


@pytest.mark.row("Q-30")
def test_explain_says_who_wins_who_loses_and_why(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(POLICIES)
    asked = ("policy", "explain", "--file", "p.toml", "--action", "subscribe", "--type", "uav.imagery")
    code, out, _ = jbi(*asked)
    assert code == 0
    assert 'importance 2, by policy "images"' in out
    assert "does not hold, or is not known" in out
    # Expect of an object that nobody supposes that neither a condition nor its negation holds, with units
    (tmp_path / "q.toml").write_text(
        '[[policy]]\nname = "a"\nwhen = "size < \'20 KB\'"\nimportance = 5\ndeadline = "90 s"\n'
        '[[policy]]\nname = "b"\nwhen = "not metadata(\\"//x\\")"\nimportance = 4\n'
    )
    code, unknown, _ = jbi("policy", "explain", "--file", "q.toml", "--action", "subscribe")
    assert unknown.splitlines()[1:] == [
        "importance 3, by default",
        '  "a" if size < 20 KB: does not hold, or is not known',
        "  \"b\" if not metadata('//x'): does not hold, or is not known",
    ]
    code, known, _ = jbi("policy", "explain", "--file", "q.toml", "--action", "subscribe", "--size", "1 KB")
    assert ('importance 5, by policy "a"' in known, 'deadline 1.5 min, by "a"' in known) == (True, True)
    # When object and link are supposed
    code, out, _ = jbi(*asked, "--size", "60 KB", "--bandwidth", "300kbps")
    # Expect the other one to win, and its rival to lose for a reason
    assert 'importance 1, by policy "large images over narrow links"' in out
    assert 'not 2 of "images": less specific: 34 < 37' in out
    code, _, err = jbi(*asked, "--size", "60")
    assert (code, "has no unit" in err) == (2, True)
    for wrong, told in (
        (("--resource", "bandwith=5 kbps"), "unknown resource 'bandwith'. Did you mean 'bandwidth'?"),
        (("--resource", "cpu"), "'cpu' is not NAME=VALUE"),
        (("--delivery", "smail"), "unknown delivery 'smail'. Did you mean 'mail'?"),
        (("--address", "10.0.0.1.4"), "--address: '10.0.0.1.4' is not an address"),
    ):
        code, _, err = jbi(*asked, *wrong)
        assert (code, told in err) == (2, True), err


def test_policies_are_compared_by_name(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(POLICIES)
    (tmp_path / "q.toml").write_text(
        POLICIES.replace("importance = 1", "importance = 3") + "[space]\nshaping = false\n"
    )
    code, out, _ = jbi("policy", "diff", "p.toml", "q.toml")
    assert code == 1
    assert out.splitlines() == [
        "+ space shaping: false",
        "~ policy large images over narrow links: importance: 1 -> 3",
    ]


@pytest.mark.row("Q-12", "Q-69")
def test_a_new_policy_is_written_only_if_the_file_can_be_used_then(jbi: Any, tmp_path: Path) -> None:
    new = ("policy", "new", "p.toml")
    assert jbi(*new, "name=p", "when=size > '5 KB'", "importance=4", "version=1.0")[0] == 0
    before = (tmp_path / "p.toml").read_text()
    assert before.splitlines()[1:] == ['name = "p"', "when = \"size > '5 KB'\"", "importance = 4", 'version = "1.0"']
    for words, told in (
        (("name=q", "when=sze > '5 KB'"), "unknown property 'sze'"),
        (("name=p", "importance=4"), "two policies are called 'p'"),
        (("nam=q",), "Did you mean 'name'?"),
        ((), "there is no terminal to ask at"),
    ):
        code, _, err = jbi(*new, *words)
        assert (code, told in err, (tmp_path / "p.toml").read_text()) == (2, True, before), err


CHANGES = """# comments stay
[space]  # here
strategy = "weighted_fair"   # and here

[[policy]]
name = "BFTrack"
importance = 4
[[policy]]
name = "a.b"
[[mission]]
name = "Route Irish"
use = [{ template = "t" }]
active = true
[[template]]
name = "t"
[[template.policy]]
name = "p"
importance = 2"""


@pytest.mark.row("Q-12")
@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("space.strategy", "strict", 'strategy = "weighted_fair"   # and', 'strategy = "strict"   # and'),
        ("space.shaping", "false", "[space]  # here\n", "[space]  # here\nshaping = false\n"),
        ("policy.BFTrack.importance", "5", "importance = 4", "importance = 5"),
        ('policy."a.b".deadline', "5 s", 'name = "a.b"', 'deadline = "5 s"\nname = "a.b"'),
        ('mission."Route Irish".active', "false", "active = true", "active = false"),
        ('role."Patrol-1"', "cas", "", '\n\n[role]\nPatrol-1 = "cas"\n'),
        ("preference.Mine.deadline", "9 s", "", '\n\n[preference.Mine]\ndeadline = "9 s"\n'),
    ],
)
def test_one_value_is_changed_and_all_else_stays_as_written(
    jbi: Any, tmp_path: Path, key: str, value: str, before: str, after: str
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(CHANGES)
    code, out, err = jbi("policy", "set", key, value, "--file", "p.toml")
    assert (code, err) == (0, "")
    assert out
    assert path.read_text() == (CHANGES.replace(before, after) if before else CHANGES + after)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("policy.BFTrck.importance", "5", "no policy 'BFTrck'. Did you mean 'BFTrack'?"),
        ("policy.BFTrack.importance", "9", "importance: '9' is not a whole number"),
        ("policy.BFTrack.imprtance", "5", "unknown key 'imprtance'. Did you mean 'importance'?"),
        ("preference.NoDrop.deadline", "9 s", "preference 'NoDrop' is built in"),
        ("space", "5", "'space' is not a path of a policy file"),
        ("space.x y", "5", "is not a path of names with dots between"),
        ("access.0.user", "alice", "is not a path of a policy file"),
        ("polcy.BFTrack.importance", "5", "is not a path of a policy file. Did you mean 'policy'?"),
        ("link.l.rate", "5 kbps", "l can't be changed where its table is written in line"),
    ],
)
def test_a_change_that_can_not_be_is_refused_and_nothing_is_written(
    jbi: Any, tmp_path: Path, key: str, value: str, told: str
) -> None:
    text = 'link = [{ name = "l", rate = "4 kbps" }]\n' + CHANGES
    text = text.replace(', rate = "4 kbps"', "") if key.startswith("link") else text
    (tmp_path / "p.toml").write_text(text)
    code, _, err = jbi("policy", "set", key, value, "--file", "p.toml")
    assert (code, (tmp_path / "p.toml").read_text()) == (2, text)
    assert told.removeprefix("l ") in err


def test_what_is_kept_is_checked_as_well(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[[keep]]\ntype = 'a'\n[[keep]]\nage = '1 d'\n")
    code, out, _ = jbi("policy", "check", "p.toml")
    assert (code, "2 keep rules, can be used" in out) == (0, True)
    (tmp_path / "p.toml").write_text("[[keep]]\nage = '1 parsec'\n")
    code, out, _ = jbi("policy", "check", "p.toml")
    assert (code, out.startswith("p.toml:2:7: error: age: '1 parsec' is not in")) == (2, True)


@pytest.mark.processes
def test_xpaths_that_contradict_a_schema_are_warned_of(jbi: Any, tmp_path: Path, figures: Any) -> None:
    (tmp_path / "p.toml").write_text(
        "[[access]]\n[[access]]\naction = 'subscribe'\nallow = false\nwhere = '//Aera'\n"
        "[[access]]\naction = 'subscribe'\ntype = 'other'\nwhere = '//nothing'\n"
        "[[policy]]\nname = 'a'\nimportance = 4\nreplace = '//latt'\n"
        "[[keep]]\ntype = 'other'\nlatest_by = '//nothing'\n[[keep]]\ntype = 'mil.*'\nlatest_by = '//Areaa'\n"
        "[[keep]]\nlatest_by = '//Areaaa'\n"
    )
    code, out, _ = jbi("policy", "check", "p.toml", "--schema", str(figures.schema))
    warnings = [line for line in out.splitlines() if "can't match" in line]
    assert code == 0
    assert [line.split(" for ")[0] for line in warnings] == [
        "p.toml:2:1: warning: where,",
        "p.toml:10:1: warning: policy 'a', replace,",
        "p.toml:19:13: warning: latest_by,",
    ]
    assert all("did you mean" in line for line in warnings)


def test_users_without_a_password_are_warned_of(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[group]\nops = ['alice']\n[[access]]\nuser = ['bob', 'carol', 'd*', '']\n")
    write_accounts(tmp_path / "users", {"carol": Account.of("carol", "secret")})
    code, out, _ = jbi("--set", "policy.users=users", "policy", "check", "p.toml")
    assert code == 0
    assert [line.split(" has ")[0] for line in out.splitlines() if "password" in line] == [
        "p.toml:2:1: warning: user 'alice'",
        "p.toml:3:1: warning: user 'bob'",
    ]


def test_of_changes_at_once_none_is_lost(tmp_path: Path) -> None:
    # Given a file that eight change at once: four one value each, four by a policy more
    path = tmp_path / "p.toml"
    path.write_text('[[policy]]\nname = "p"\nimportance = 2\n')
    changes: list[Callable[[], object]] = [
        *(partial(set_value, path, f"role.U{n}", "cas") for n in range(4)),
        *(partial(append_policy, path, {"name": f"n{n}", "importance": 3}) for n in range(4)),
    ]
    together = threading.Barrier(len(changes))

    def change(made: Callable[[], object]) -> None:
        together.wait()
        made()

    # When
    with ThreadPoolExecutor(len(changes)) as pool:
        list(pool.map(change, changes))

    # Expect all of it in the file
    tables = tomllib.loads(path.read_text())
    assert sorted(tables["role"]) == ["U0", "U1", "U2", "U3"]
    assert sorted(each["name"] for each in tables["policy"]) == ["n0", "n1", "n2", "n3", "p"]


def test_weights_that_are_set_are_told_as_a_sequence(jbi: Any, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[space]\nweights = [16, 8, 4, 2, 1]\n")
    _, out, _ = jbi("policy", "set", "--file", "p.toml", "space.weights", "[1, 2, 4, 8, 16]")
    assert out == "~ space weights: 16, 8, 4, 2, 1 -> 1, 2, 4, 8, 16\n"

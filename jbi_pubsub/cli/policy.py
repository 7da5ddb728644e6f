"""`jbi policy`: check, show and compare policy files, say why a user may do something, or not, and its
quality of service; the policy manager is in steering.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import click

from jbi_pubsub.core.access import ADMIN, Action, Question, Subject
from jbi_pubsub.core.errors import ConfigurationError, PolicyError
from jbi_pubsub.core.history import KeepRule
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.policy.access import AccessRules, access_rules, review, review_users
from jbi_pubsub.policy.context import ACTIONS, Addresses, facts_of
from jbi_pubsub.policy.contradictions import contradictions
from jbi_pubsub.policy.file import PolicyDocument, PolicyProblem, nearest, read
from jbi_pubsub.policy.keep import judge_keys, keep_rules
from jbi_pubsub.policy.policy import OPERATIONS
from jbi_pubsub.policy.policyfile import DELIVERIES
from jbi_pubsub.policy.policyset import PolicySet, policies_of
from jbi_pubsub.policy.policyset import review as review_policies
from jbi_pubsub.policy.users import read_accounts
from jbi_pubsub.protocol.services import AdminProxy

from . import policies, simulation, steering
from .codegen import bundle_of
from .community import at_address, calling
from .near import NearNames, pair
from .options import EXISTING_FILE, Arguments, JsonArguments, argument, command, option, repeated
from .settings import CommandSettings, blamed
from .show import Column, counted, printable, show_json, show_table

OWN_COLUMNS: Final = ("rule", "allow", "action")
"""Columns of a rule; what else it says is one column."""


@click.group(cls=NearNames)
def policy() -> None:
    """Check and explain access rules and quality of service, and manage them for many delegates.

    \b
    jbi policy check policy.toml
    jbi policy explain --user alice --action subscribe --type intel.Report
    jbi policy new policy.toml name=tracks type=blue_force_tracking importance=4
    jbi policy serve policy.toml
    jbi policy set space.strategy strict
    """


policy.add_command(simulation.simulated)

CONFIGURED: Final = option("Policy file; default the configured one.", type=click.Path(path_type=Path))


class _PolicyFile(JsonArguments):
    file: Path | None = argument(type=click.Path(path_type=Path), required=False)


class _PolicyCheck(_PolicyFile):
    schemas: tuple[Path, ...] = repeated("Judge XPaths by this XML Schema; repeatable.", "--schema", type=EXISTING_FILE)

    def judge(self, document: PolicyDocument, rules: AccessRules, matters: PolicySet, kept: Sequence[KeepRule]) -> None:
        """Note what contradicts schemas, and users whom nobody can be. Raises SchemaError, PolicyError."""
        config = self.settings.load()
        for schema in self.schemas:
            from jbi_pubsub.codegen.repository import TypeRepository

            opened = TypeRepository(cache_dir=config.type_cache()).open_schema(bundle_of(schema))
            asked = opened.type.name, opened.type.version, opened.impossible
            document.problems += contradictions([*rules.rules, *matters.rules], *asked)
            judge_keys(document, kept, opened.type.name, opened.impossible)
        place = config.policy.users
        if place and "://" not in place and config.tls.identity() is None:  # else a certificate may name them
            review_users(document, rules, place, read_accounts(Path(place)))


@command(policy, _PolicyCheck)
def check(given: _PolicyCheck) -> int:
    """Check a policy file, with messages like a compiler; without FILE, the configured one.

    Exit code 0 if it can be used, also with warnings; otherwise 2.

    \b
    jbi policy check policy.toml
    policy.toml:7:1: error: unknown key 'usr'. Did you mean 'user'?
    jbi policy check policy.toml --schema examples/data/intel_imagery/Intel_Imagery.xsd
    """
    path = _path(given.settings, given.file)
    try:
        document, said = read(path, name=str(path))
    except PolicyError as exc:
        if given.as_json:
            show_json({"file": str(path), "usable": False, "problems": [_failure(exc)]})
            return 2
        raise
    rules = access_rules(document)
    matters = policies_of(document, rules.people)
    kept = keep_rules(document)
    if not document.errors:
        review(document, rules)
        review_policies(document, matters.rules)
        given.judge(document, rules, matters, kept)
    problems = [*document.errors, *document.warnings]
    if given.as_json:
        warned = [{"line": 0, "column": 0, "kind": "warning", "message": line, "hint": ""} for line in said]
        told = [*map(_problem, problems), *warned]
        counts = {"rules": len(rules.rules), "policies": len(matters.rules), "keep": len(kept)}
        show_json({"file": str(path), "usable": not document.errors, **counts, "problems": told})
    else:
        for line in [*map(document.told, problems), *said]:
            click.echo(printable(line))
        if not document.errors:
            click.echo(f"{printable(path)}: {policies.usable(matters, len(rules.rules), len(kept))}, can be used")
    return 2 if document.errors else 0


@command(policy, _PolicyFile)
def show(given: _PolicyFile) -> None:
    """List the rules and policies of a policy file; without FILE, of the configured one.

    \b
    jbi policy show policy.toml
    """
    path = _path(given.settings, given.file)
    rules, matters = _read(path)
    shown = [rule.shown() for rule in rules.rules]
    groups = _groups(rules)
    people = {"groups": groups, "roles": dict(rules.people.roles)}
    plain = {"file": str(path), **people, "rules": shown, **policies.json_of(matters)}
    given.show(plain, lambda: _show_rules(path, rules, matters))


def _show_rules(path: Path, rules: AccessRules, matters: PolicySet) -> None:
    shown = [rule.shown() for rule in rules.rules]
    for name, members in _groups(rules).items():
        click.echo(printable(f"group {name}: {', '.join(members) or 'nobody'}"))
    for user, role in rules.people.roles.items():
        click.echo(printable(f"role of {user}: {role}"))
    columns = (Column("line", right=True), Column("rule"), Column("action", long=True), Column("when", long=True))
    if shown or matters.is_empty:
        show_table(columns, [_row(rule) for rule in shown], title=f"{path}: {counted(len(shown), 'access rule')}")
    policies.show_policies(matters)


class _PolicyQuestion(Arguments):
    user: str = option("User, by the name in the certificate; without it, a client without a certificate.", default="")
    action: str = option(f"One of {', '.join(ACTIONS)}.", default="", metavar="ACTION")
    type_name: str = option("Information object type.", "--type", default="")
    version: str = option("Its version.", default="")
    address: str = option("Address of the client.", shown="127.0.0.1")
    client: str = option("Name of the application.", default="")
    component: str = option('Server: "name@location", "lookup" or "peer".', default="")
    domain: str = option("Domain of the e-mail address.", "--recipient", default="")
    role: str = option("Role that the client claims; a role in the file takes precedence.", default="")
    delivery: str = option("How a subscription gets objects: queue or mail.", shown="queue")
    attributes: tuple[str, ...] = repeated("Attribute of the client's request.", "--attribute", metavar="NAME=VALUE")

    def check(self) -> None:
        """Raises ConfigurationError."""
        if not self.action:
            raise ConfigurationError("--action is missing", hint=f"One of {', '.join(ACTIONS)}")
        if self.action not in ACTIONS:
            raise ConfigurationError(f"unknown action {self.action!r}", hint=nearest(self.action, ACTIONS))
        if self.delivery not in DELIVERIES:
            raise ConfigurationError(f"unknown delivery {self.delivery!r}", hint=nearest(self.delivery, DELIVERIES))
        with blamed("--address"):
            Addresses((self.address,))


class _PolicyExplain(_PolicyQuestion, JsonArguments):
    size: str | None = option('Suppose objects of that size, "20 KB".', metavar="SIZE")
    payload_type: str = option("Suppose payloads of that type, image/jpeg.", default="")
    metadata: Path | None = option("Suppose objects with that metadata.", type=click.Path(path_type=Path))
    bandwidth: str | None = option('Suppose a link of that bandwidth, "300 kbps".', metavar="RATE")
    resources: tuple[str, ...] = repeated("Suppose cpu, loss, queue, ... .", "--resource", metavar="NAME=VALUE")
    uid: str | None = option("With --at: an active subscription or registration.", "--subscription", metavar="UID")
    file: Path | None = CONFIGURED
    at: str | None = option("Ask a running server; you must be its administrator.", metavar="HOST:PORT")

    def answer(self) -> dict[str, Any]:
        """The decision by a server's rules, or by those of a file. Raises ConfigurationError, PolicyError."""
        if self.at:
            asked = (self.action, self.user, self.address, self.client, self.type_name, self.version, self.domain)
            with calling(ControlClient, at_address(self.at, ADMIN), self.settings.load()) as client:
                return client.call("explain", dict[str, Any], Question(*asked))
        caller = Caller(self.address, user=self.user, client=self.client, role=self.role)
        subject = Subject(self.type_name, self.version, self.domain)
        rules, matters = _read(_path(self.settings, self.file))
        found = rules.explain(caller, cast("Action", self.action), subject, component=self.component)
        if self.action in OPERATIONS and not matters.is_empty:
            resources = [*self.resources, *([f"bandwidth={self.bandwidth}"] if self.bandwidth is not None else [])]
            suppose = policies.supposed(self.size, self.payload_type, self.metadata, resources)
            attributes = dict(
                pair(text, ConfigurationError(f"--attribute {text!r} is not NAME=VALUE")) for text in self.attributes
            )
            facts = facts_of(
                caller, self.action, self.type_name, self.version, delivery=self.delivery, component=self.component,
                attributes=attributes,
            )  # fmt: skip
            found["quality"] = policies.explained(matters, facts, suppose)
        return found


@command(policy, _PolicyExplain)
def explain(given: _PolicyExplain) -> int:
    """Explain whether a client may do something, by which rule, and why other rules do not apply. For registrations and
    subscriptions also explain importance and preferences, and the policies that they come from.

    Exit code 0 if it is allowed, 1 if it is denied.

    \b
    jbi policy explain --user alice --action subscribe --type intel.Report
    jbi policy explain --action mail --recipient example.org --file policy.toml
    jbi policy explain --user bob --action publish --type cap.alert --at 10.0.0.7:4171
    jbi policy explain --user bob --action subscribe --type uav.imagery --size "60 KB" --bandwidth "300 kbps"
    jbi policy explain --subscription subscription-5f1b... --at 10.0.0.7:4171
    """
    if given.uid:
        if not given.at:
            raise ConfigurationError("--subscription is asked of a running server", hint="Name it: --at HOST:PORT")
        with calling(AdminProxy, at_address(given.at), given.settings.load()) as proxy:
            contract = proxy.explain_contract(given.uid)
        given.show(contract, lambda: policies.tell_quality(contract))
        return 0
    given.check()
    if given.at and (given.file or given.component):
        raise ConfigurationError("--at asks a server about its own rules", hint="Leave --file and --component out")
    found = given.answer()
    what = f"{given.action} {given.type_name} {given.domain}".split()
    given.show(found, lambda: _tell(found, given.user or given.address, what))
    return 0 if found["allowed"] else 1


class _PolicyDiff(JsonArguments):
    before: Path = argument(type=click.Path(path_type=Path))
    after: Path = argument(type=click.Path(path_type=Path))


@command(policy, _PolicyDiff)
def diff(given: _PolicyDiff) -> int:
    """Show the differences of two policy files; the order of rules and policies does not count.

    Exit code 0 if they are equal, otherwise 1.

    \b
    jbi policy diff policy.toml policy.new
    """
    (one, were), (other, will_be) = _read(given.before), _read(given.after)
    matters = policies.differences(were, will_be)
    gone, come = _only_in(one, other), _only_in(other, one)
    people = policies.changes("group", _groups(one), _groups(other))
    people += policies.changes("role", one.people.roles, other.people.roles)
    is_other = bool(gone or come or people or matters)

    def shown() -> None:
        for sign, rules in (("-", gone), ("+", come)):
            for rule in rules:
                click.echo(printable(f"{sign} {_sentence(rule)}"))
        for each in people:
            click.echo(printable(f"~ {each['kind']} {each['name']}: {_said(each['before'])} -> {_said(each['after'])}"))
        policies.tell_differences(matters)
        if not is_other:
            click.echo("they say the same")

    given.show({"removed": gone, "added": come, "people": people, "policies": matters}, shown)
    return 1 if is_other else 0


class _PolicyNew(Arguments):
    file: Path = argument(type=click.Path(path_type=Path))
    said: tuple[str, ...] = argument(nargs=-1, metavar="[KEY=VALUE]...")


@command(policy, _PolicyNew)
def new(given: _PolicyNew) -> None:
    """Append a policy to FILE, if the result is valid; without KEY=VALUE, ask for them.

    \b
    jbi policy new policy.toml name=tracks type=blue_force_tracking importance=4 preference=BFTrack
    jbi policy new policy.toml name=large "when=size > '50 KB'" importance=1 "deadline=5 s"
    """
    for line in policies.append_policy(given.file, policies.as_table(given.said)).splitlines():
        click.echo(printable(line))


for each in (steering.serve, steering.apply, steering.set_value, steering.history, steering.rollback):
    policy.add_command(each)


def _path(settings: CommandSettings, file: Path | None) -> Path:
    configured = settings.load().policy.file
    if file is None and not configured:
        raise ConfigurationError("no policy file is configured", hint="Name one, or set [policy] file")
    return file or Path(configured)


def _read(path: Path) -> tuple[AccessRules, PolicySet]:
    """Raises PolicyError."""
    document, _ = read(path)
    rules = access_rules(document)
    matters = policies_of(document, rules.people)
    keep_rules(document)
    document.check()
    return rules, matters


def _failure(exc: PolicyError) -> dict[str, Any]:
    facts = {name: exc.facts.get(name, 0) for name in ("line", "column")}
    return {**facts, "kind": "error", "message": exc.message, "hint": exc.hint}


def _problem(problem: PolicyProblem) -> dict[str, Any]:
    kind = "error" if problem.is_error else "warning"
    return {**problem.place._asdict(), "kind": kind, "message": problem.message, "hint": problem.hint}


def _row(rule: dict[str, Any]) -> Sequence[object]:
    line = str(rule["rule"]).rpartition(":")[2]
    return line, "allow" if rule["allow"] else "deny", ", ".join(rule.get("action", ["any"])), _when(rule)


def _when(rule: dict[str, Any]) -> str:
    """Conditions of a rule, without its action."""
    keys = {key: value for key, value in rule.items() if key not in (*OWN_COLUMNS, "miss")}
    return ", ".join(f"{key} {_said(value)}" for key, value in keys.items()) or "always"


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " or ".join(map(str, value))
    return "none" if value is None else str(value)


def _sentence(rule: dict[str, Any]) -> str:
    _, verb, actions, when = _row(rule)
    return f"{verb} {actions}: {when}  ({rule['rule']})"


def _tell(found: dict[str, Any], who: str, what: Sequence[str]) -> None:
    verdict = "allowed" if found["allowed"] else "refused"
    told = " ".join(what)
    by = f"by {found['rule']}" if found["rule"] else ("there are no rules" if found["allowed"] else "no rule allows it")
    click.echo(printable(f"{who}: {told}: {verdict}, {by}"))
    if found["where"]:
        click.echo(printable(f"  objects for which {found['where']}"))
    if found.get("groups") or found.get("role"):
        groups = ", ".join(found["groups"]) or "none"
        click.echo(printable(f"  groups: {groups}; role: {found['role'] or 'none'}"))
    for reason in found["reasons"]:
        why = f"does not apply: {reason['miss']}" if reason["miss"] else "applies"
        click.echo(printable(f"  {_sentence(reason)}: {why}"))
    left = found["missed"] - sum(bool(reason["miss"]) for reason in found["reasons"])
    if left > 0:
        click.echo(f"  and {counted(left, 'rule')} about {what[0]} that do not apply")
    if found.get("quality"):
        policies.tell_quality(found["quality"])


def _groups(rules: AccessRules) -> dict[str, list[str]]:
    people = rules.people
    return {
        name: [*globs.said, *sorted(f"@{each}" for each in people.within[name])]
        for name, globs in people.groups.items()
    }


def _only_in(rules: AccessRules, others: AccessRules) -> list[dict[str, Any]]:
    theirs = {(rule.actions, *rule.meaning()) for rule in others.rules}
    return [rule.shown() for rule in rules.rules if (rule.actions, *rule.meaning()) not in theirs]

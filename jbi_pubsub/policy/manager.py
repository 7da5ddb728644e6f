"""The policy of a server: rules of a file that is read again when it changes, refusals counted and written down.

Theory of operation: questions are answered from an immutable set of rules, which is replaced as a whole. One job
looks at the file, and writes the audit log. A file that can't be used leaves the rules in force, and says so; so it is
at a start, where a copy is kept of the file that was in force last.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from jbi_pubsub.core.access import Action, Decision, Impossible, Subject
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, PolicyError
from jbi_pubsub.core.files import stamp, written
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.status import AccessStatus, AuditStatus
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire.endpoint import Caller

from . import audit, file
from .access import AccessRules, access_rules, review
from .context import host_of

if TYPE_CHECKING:
    from jbi_pubsub.core.history import KeepRule

    from .policyset import PolicySet

log = logging.getLogger("jbi_pubsub.policy")

T = TypeVar("T")

LOOK_SECONDS: Final = 0.25
"""Between two looks at the file."""

TOLD_MOST: Final = 20
"""Warnings about one file that go into the log."""

SHOWN: Final = 200
"""Characters of what a caller has a say in that go into the audit log."""


class DecisionRecord:
    """Decisions: refusals are counted, and what is asked for is written to the audit log. Safe from several threads."""

    def __init__(self, component: str, audit_log: audit.AuditLog | None, *, everything: bool) -> None:
        self.log: Final = audit_log
        self.component: Final = component
        self._everything = everything
        self._counting = threading.Lock()
        self._refused: Counter[str] = Counter()

    def add(self, caller: Caller, action: Action, subject: Subject, decision: Decision, version: int) -> bool:
        """Note a decision, by that version of the rules; whether there is something to write."""
        if not decision:
            with self._counting:
                self._refused[action] += 1
            who = caller.user[:SHOWN] or caller.address
            what = " ".join(filter(None, (action, subject.type[:SHOWN])))
            log.info("refused: %s may not %s (%s)", who, what, decision.rule or "no rule allows it")
        if self.log is None or (decision and not decision.audit and not self._everything):
            return False
        facts: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "decision": "allowed" if decision else "refused",
            "action": action,
            "user": "" if caller.claimed else caller.user[:SHOWN],
            "certificate": caller.place.peer[:SHOWN] if caller.holder and caller.place.peer != caller.user else "",
            "address": host_of(caller.address),
            "client": caller.client[:SHOWN],
            "type": subject.type[:SHOWN],
            "version": subject.version[:SHOWN],
            "name": subject.name[:SHOWN],
            "component": self.component,
            "rule": decision.rule,
            "policy": version,
        }
        self.log.tell({key: value for key, value in facts.items() if value != ""} | {"rule": decision.rule})
        return True

    def refused(self) -> Mapping[str, int]:
        """Number of refusals, by action."""
        with self._counting:
            return dict(self._refused)


class RulesCopy:
    """A copy of a policy file as it was in force last, for the next start."""

    def __init__(self, path: Path, state: Path | None) -> None:
        """Beside `state`; None: nowhere."""
        self.path = state.with_name(f"{state.name}.{_digest(path)}") if state is not None else None
        self.fault = ""

    @property
    def is_there(self) -> bool:
        """Whether there is one; one that we can't see counts."""
        return self.path is not None and stamp(self.path) != (errno.ENOENT,)

    def keep(self, document: file.PolicyDocument) -> None:
        """Write it. Not of an empty file, which may be one that was cut short."""
        if self.path is None or not document.text.strip():
            return
        data = document.text.encode()
        try:
            if not self.path.exists() or self.path.read_bytes() != data:
                with written(self.path) as copy:
                    copy.write(data)
            self.fault = ""
        except OSError as exc:
            self.fault = f"the rules are not kept for a restart: {exc}"
            log.error("%s", self.fault)


class FollowedValue(Generic[T]):
    """A value, and those who are told it: when they begin to follow, and whenever it is read again."""

    def __init__(self, name: str, value: T | None) -> None:
        """`name` for the log; None: there is none yet."""
        self.value = value
        self._name = name
        self._followers: list[Callable[[T], None]] = []
        self._lock = threading.Lock()

    def follow(self, follower: Callable[[T], None]) -> None:
        """Tell him, now and later."""
        with self._lock:
            self._followers.append(follower)
            if self.value is not None:
                follower(self.value)

    def tell(self) -> None:
        """Tell all of them."""
        with self._lock:
            if (value := self.value) is None:
                return
            for follower in self._followers:
                with guarded(self._name):
                    follower(value)


class SettledFile:
    """A file that is to be read when two looks have found it the same: not in the middle of a write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.note()

    def note(self) -> None:
        """Have it count as read as it is now."""
        self._found = self._read = stamp(self._path)

    def has_changed(self) -> bool:
        """Whether it is another one than was read, and the same as at the last look. It counts as read then."""
        before, self._found = self._found, stamp(self._path)
        if self._found != before or self._found == self._read:
            return False
        self._read = self._found
        return True


class AccessManager:
    """An AccessPolicy of a file. Safe from several threads."""

    def __init__(
        self,
        path: Path,
        *,
        component: str,
        audit_log: audit.AuditLog | None = None,
        everything: bool = False,
        policies: bool | None = False,
        keep: bool = False,
        state: Path | None = None,
    ) -> None:
        """`component`: whose policy it is, "alpha@rome"; `everything`: decisions that allow are written down, too;
        `policies`: what the file says of who matters is read as well, for those who `follow`, None: if it says anything
        of that now; `keep`: what is archived, for those who `follow_keep`; `state`: beside it is a copy of the file as
        it was in force last, to begin with when it can't be used. Raises PolicyError for a file that can't be used."""
        self.path = path
        self.version = 1
        self.fault = ""
        """Why the file as it is now is not in force."""
        self.decisions: Final = DecisionRecord(component, audit_log, everything=everything)
        self._file = SettledFile(path)
        self._since = time.time()
        self._reads_policies = policies
        self._policies: FollowedValue[PolicySet] = FollowedValue("follower of policies", None)
        self._reads_keep = keep
        self._keep: FollowedValue[tuple[KeepRule, ...]] = FollowedValue("follower of keep rules", ())
        self._copy = RulesCopy(path, state)
        self._rules, document = self._first()
        self._review(document, self._rules)
        self._taking = threading.Lock()
        """Held while the file is looked at, or written."""
        self._job = Job("policy file", LOOK_SECONDS, self._step, slow=True)
        self._job.start()

    @property
    def component(self) -> str:
        """The component whose policy it is."""
        return self.decisions.component

    @property
    def rules(self) -> AccessRules:
        """Those in force."""
        return self._rules

    @property
    def reads_policies(self) -> bool:
        """Whether there is something to `follow`."""
        return bool(self._reads_policies)

    def follow(self, follower: Callable[[PolicySet], None]) -> None:
        """Have `follower` told who matters, now and whenever that changes; for one that was made with `policies`."""
        self._policies.follow(follower)

    def follow_keep(self, keeper: Callable[[tuple[KeepRule, ...]], None]) -> None:
        """Have `keeper` told what is archived, now and whenever the file is read again; for one that was made with
        `keep`."""
        self._keep.follow(keeper)

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """Whether `caller` may do that."""
        return self._rules.decide(caller, action, subject, component=self.component)

    def explain(self, caller: Caller, action: Action, subject: Subject) -> dict[str, Any]:
        """Explain the answer of `allow`, as plain data."""
        return self._rules.explain(caller, action, subject, component=self.component)

    def contradictions(self, type_name: str, version: str, impossible: Impossible) -> list[str]:
        """See AccessPolicy; those of policies are theirs to tell who follow them."""
        from .contradictions import contradictions  # here: it imports policies

        found = contradictions(self._rules.rules, type_name, version, impossible)
        return [problem.told(self.path.name) for problem in found]

    def record(self, caller: Caller, action: Action, subject: Subject, decision: Decision) -> None:
        """Count a refusal; write it down, and whatever else was asked for."""
        if self.decisions.add(caller, action, subject, decision, self.version):
            self._job.wake()

    def refused(self) -> Mapping[str, int]:
        """Number of refusals, by action."""
        return self.decisions.refused()

    def status(self) -> AccessStatus:
        """See AccessPolicy."""
        return AccessStatus(
            file=str(self.path),
            version=self.version,
            rules=len(self._rules.rules),
            since=round(time.time() - self._since, 1),
            fault="; ".join(filter(None, (self.fault, self._copy.fault))),
            refused=dict(self.refused()),
            audit=self.decisions.log.status() if self.decisions.log is not None else AuditStatus(),
        )

    def close(self) -> None:
        """Look no more; what is to be written is."""
        if self._job.stop() and self.decisions.log is not None:
            self.decisions.log.close()

    # -- the job ------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self.decisions.log is not None:
            with guarded("audit log"):
                self.decisions.log.write()
        self.look()

    def look(self) -> None:
        """Read the file again if it is another one than it was, and the same as at the last look."""
        with self._taking:
            if self._file.has_changed():
                self._take()

    def set(self, key: str, value: str, *, people: bool) -> tuple[int, bool]:
        """Change one value of what the file says of who matters, all else as it is written, and put it in force: the
        version of the policies, and whether it is another one. `people`: also groups and roles, which access rules may
        be about. Raises AccessDeniedError, PolicyError, ConfigurationError for a file that can't be written."""
        from . import writing  # here: without quality of service it is not imported

        if not people and writing.is_about_people(key):
            raise AccessDeniedError(
                f"{key[:SHOWN]} says who somebody is, which access rules ask for",
                hint="Who may `administer` may change groups and roles",
            )
        with self._taking:
            before = self._policy_version
            writing.set_value(self.path, key, value)
            self._file.note()
            self._take()
            if self.fault:
                raise PolicyError(self.fault)
            now = self._policy_version
        return now, now != before

    @property
    def _policy_version(self) -> int:
        return self._policies.value.version if self._policies.value is not None else 0

    def _take(self) -> None:
        try:
            rules, document = self._read(self.path, had_rules=bool(self._rules.rules))
        except PolicyError as exc:
            log.error("%s; the previous rules stay in force", exc)
            self.fault = exc.message
            return
        self._rules, self._since, self.fault = rules, time.time(), ""
        self.version += 1  # last: whoever sees it asks the new ones
        self._keep.tell()
        self._policies.tell()
        policies = f" and {len(self._policies.value.rules)} policies" if self._policies.value is not None else ""
        log.warning("%s: %d access rules%s are in force", self.path, len(rules.rules), policies)
        self._copy.keep(document)
        self._review(document, rules)

    def _first(self) -> tuple[AccessRules, file.PolicyDocument]:
        """Rules in force at the start: the file, or if that can't be used, what it was before. Raises PolicyError."""
        had_any = self._copy.is_there
        try:
            rules, document = self._read(self.path, first=True, had_rules=had_any)
        except PolicyError as exc:
            return self._of_before(exc, had_any=had_any)
        self._copy.keep(document)
        return rules, document

    def _of_before(self, fault: PolicyError, *, had_any: bool) -> tuple[AccessRules, file.PolicyDocument]:
        """Rules in force before, as the file has a fault. Raises PolicyError."""
        if self._copy.path is None:
            why = "With [policy] state a start goes on with the rules of before"
        elif not had_any:
            why = f"{self._copy.path} would have the rules of before, and is not there"
        else:
            try:
                found = self._read(self._copy.path, first=True, had_rules=True)
                self.fault = fault.message
                log.error(
                    "%s; the rules of before, kept in %s, are in force until it is corrected", fault, self._copy.path
                )
                return found
            except PolicyError as exc:
                why = f"The rules of before can't be used either: {exc.message}"
        hint = ". ".join(filter(None, (fault.hint, f"Correct it: `jbi policy check {self.path}`", why)))
        raise PolicyError(fault.message, hint=hint, **fault.facts) from fault

    def _read(
        self, path: Path, *, first: bool = False, had_rules: bool = False
    ) -> tuple[AccessRules, file.PolicyDocument]:
        """The rules; the policies are put down as well, once all of the file is right. `had_rules`: then an empty file
        is a mistake."""
        document, said = file.read(path, name=self.path.name)
        if had_rules and not document.text.strip():
            hint = "A line that says so, '# all is allowed', allows all to everybody"
            raise file.failure(str(path), "empty, as a full disk leaves a file", hint=hint)
        for line in said:
            log.warning("%s", line)
        rules = access_rules(document)
        says = any(document.get(kind) for kind in file.QOS_KINDS)
        if self._reads_policies is None and says:
            if first:
                self._reads_policies = True
            else:
                log.warning(
                    "%s: has policies for quality of service, which it had not when %s started: start that again",
                    self.path,
                    self.component,
                )
        if self._reads_policies:
            self._read_policies(document, rules)
        kept = self._read_keep(document)
        document.check()
        self._keep.value = kept
        return rules, document

    def _read_keep(self, document: file.PolicyDocument) -> tuple[KeepRule, ...]:
        if not self._reads_keep:
            return ()
        from . import keep  # here: without an archive it is not imported

        return keep.keep_rules(document)

    def _read_policies(self, document: file.PolicyDocument, rules: AccessRules) -> None:
        from . import policyset  # here: without quality of service it is not imported

        policies = policyset.policies_of(document, rules.people)
        document.check()
        if policies != self._policies.value:
            self._policies.value = policies.of_version(self._policy_version + 1)

    def _review(self, document: file.PolicyDocument, rules: AccessRules) -> None:
        """Say what is hardly meant: when it is in force, as it takes its time with a thousand policies."""
        review(document, rules)
        if self._policies.value is not None:
            from .policyset import review as review_policies

            review_policies(document, self._policies.value.rules, time.time())
        warnings = document.warnings
        for problem in warnings[:TOLD_MOST]:
            log.warning("%s", document.told(problem))
        if len(warnings) > TOLD_MOST:
            log.warning("and %d more: `jbi policy check %s`", len(warnings) - TOLD_MOST, self.path)


def _digest(path: Path) -> str:
    """Which policy file it is: one state may be that of servers with several."""
    return hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]


def access_of(config: Config, component: str, *, policies: bool | None = False) -> AccessManager:
    """The policy that the configuration names for a component; `policies` as an AccessManager takes them. Raises
    PolicyError."""
    section = config.policy
    log_file = audit.AuditLog(Path(section.audit)) if section.audit else None
    try:
        return AccessManager(
            Path(section.file),
            component=component,
            audit_log=log_file,
            everything=section.audit_all,
            policies=policies,
            keep=bool(config.archive.folder),
            state=Path(section.state) if section.state else None,
        )
    except PolicyError:
        if log_file is not None:
            log_file.close()
        raise

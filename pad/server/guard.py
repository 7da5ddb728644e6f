"""Access of callers to what a delegate has and does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from jbi_pubsub.core.access import NONE_IN_PARTICULAR, Action, Decision, Subject, demand, denied
from jbi_pubsub.core.info_object import Parcel, TypeName
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import read_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.pad.delegate.contracts import Permissions


class CallGuard:
    """Asks the access policy for the exported calls."""

    def __init__(self, permissions: Permissions) -> None:
        self.policy: Final = permissions.access
        self._permissions = permissions

    def allow(self, caller: Caller, action: Action, subject: Subject = NONE_IN_PARTICULAR) -> Decision:
        """Raises AccessDeniedError if the access policy says no."""
        return demand(self.policy, caller, (action, subject))

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Around what opens a contract: rules that change in the middle of it are asked about it."""
        version = self.policy.version
        yield
        self._permissions.decided(version)

    def allow_type(self, caller: Caller, type_: TypeName) -> None:
        """Whether somebody may know what a type is: who has to do with it. Raises AccessDeniedError."""
        subject = Subject(type_.name, type_.version)
        demand(self.policy, caller, ("subscribe", subject), ("publish", subject), ("status", subject))

    def allow_object(self, caller: Caller, parcel: Parcel) -> None:
        """Whether somebody may know what is in an object: who might have got it. Raises AccessDeniedError."""
        head = parcel.head
        subject = Subject(head.type_name, head.type_version)
        decision = self.allow(caller, "subscribe", subject)
        if decision.where:
            predicate = compile_predicate(decision.where, namespaces=dict(decision.namespaces))
            root = read_metadata(bytes(head.metadata))
            if root is None or not predicate.matches(root):
                self.policy.record(caller, "subscribe", subject, Decision(False, decision.rule))
                raise denied(caller, "subscribe", subject)

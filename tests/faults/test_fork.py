"""One SubscriberAdapter in a process; a forked child is a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.processes

FORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork in a process with threads

with SubscriberAdapter(config) as parents, PublisherAdapterLight(config) as publisher:
    mine = parents.register_subscriber(type_name=TYPE)
    registration = publisher.register_publisher(publisher.connect_to_delegate("alpha", "rome"), SCHEMA, FIGURE_1)
    parents.wait_matched(mine)
    child = os.fork()
    if not child:
        refused = []
        for call in (
            lambda: parents.register_subscriber(type_name=TYPE),
            lambda: parents.receive(mine, 0.1),
            lambda: parents.cancel_subscription(mine),
        ):
            try:
                call()
            except AdapterStateError:
                refused.append("AdapterStateError")
            except BaseException as exc:
                refused.append(repr(exc))
        with SubscriberAdapter(config) as own:
            try:
                SubscriberAdapter(config, name=own.status()["name"])
            except AdapterStateError:
                refused.append("AdapterStateError")
            subscription = own.register_subscriber(type_name=TYPE)
            tell(who="child", refused=refused, servers=own.wait_matched(subscription))
            obj = own.receive(subscription, 60.0)
            tell(who="child", sequence=obj and obj.platform.sequence)
        os._exit(0)
    told()
    publisher.publish(registration, FIGURE_1)
    obj = parents.receive(mine, 60.0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tell(who="parent", sequence=obj and obj.platform.sequence, child=code)
"""


def test_a_forked_child_opens_an_adapter_of_its_own_and_cannot_use_its_parents(field: Any) -> None:
    # Given a delegate, and a process that has a SubscriberAdapter when it forks
    field.pad()
    forking = field.script(FORKING)

    # Expect that the child's use of the parent's adapter, and a second one of its own, are refused
    assert forking.ready == {"who": "child", "refused": ["AdapterStateError"] * 4, "servers": 1}

    # When the parent publishes
    forking.process.say("publish")

    # Expect that child and parent each receive it with their own adapter
    facts = sorted((forking.fact(), forking.fact()), key=lambda fact: str(fact["who"]))
    assert facts == [{"who": "child", "sequence": 1}, {"who": "parent", "sequence": 1, "child": 0}]


def test_a_second_adapter_of_a_name_is_refused_until_the_first_is_closed(field: Any) -> None:
    # Given a process with one open adapter
    # When it opens a second, then closes the first and opens another
    # Expect a refusal, then none
    alone = field.script(
        "first = SubscriberAdapter(config, name='fusion')\n"
        "try:\n    SubscriberAdapter(config, name='fusion')\n    refused = False\n"
        "except AdapterStateError:\n    refused = True\n"
        "first.close()\n"
        "SubscriberAdapter(config, name='fusion').close()\n"
        "tell(refused=refused, opened_again=True)\n"
    )
    assert alone.ready == {"refused": True, "opened_again": True}

"""One SubscriberAdapter in a process; a forked child is a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hla.conftest import AIR

pytestmark = pytest.mark.processes

FORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork in a process with threads

with (
    SubscriberAdapter(config) as parents, PublisherAdapterLight(config) as publisher, PublisherAdapter(config) as peer
):
    mine = parents.register_subscriber(type_name=TYPE)
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, SCHEMA, FIGURE_1)
    own = peer.register_publisher(type_name="own", validate=False)
    parents.wait_matched(mine)
    child = os.fork()
    if not child:
        refused = []
        for call in (
            lambda: parents.register_subscriber(type_name=TYPE),
            lambda: parents.receive(mine, 0.1),
            lambda: parents.cancel_subscription(mine),
            lambda: publisher.publish(registration, FIGURE_1),
            lambda: publisher.flush(0.1),
            lambda: publisher.wait_for_subscribers(registration, 1, 0.1),
            lambda: publisher.unregister_publisher(registration),
            lambda: publisher.disconnect(at),
            lambda: peer.subscriptions(own),
            lambda: peer.flush(0.1),
            lambda: peer.wait_for_subscribers(own, 1, 0.1),
            lambda: peer.unregister_publisher(own),
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

LEAVING = """
import sys, warnings
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.exceptions import NotConnected
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.testing import LocalFederation
warnings.simplefilter("ignore", DeprecationWarning)

with LocalFederation() as federation:
    federation.delegate("alpha", "rome")
    rti = RtiServer(federation.config)
    federation.stack.callback(rti.stop)
    rti.start()
    rti.create("Air", [Module("air.xml", AIR)])
    subscriber, publisher = federation.subscriber(), federation.publisher()
    mine = subscriber.register_subscriber(type_name=TYPE)
    registration = publisher.register_publisher(publisher.connect_to_delegate("alpha", "rome"), SCHEMA, FIGURE_1)
    with RTIAmbassador(federation.config) as federate:
        federate.connect(FederateAmbassador())
        federate.join_federation_execution("Air", "radar")
        child = os.fork()
        if not child:
            try:
                federate.resign_federation_execution()
            except NotConnected:
                sys.exit(7)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        publisher.publish(registration, FIGURE_1)
        obj = subscriber.receive(mine, 60.0)
        federate.enable_time_constrained()  # which an RTI refuses to who is not joined
        tell(child=code, sequence=obj and obj.platform.sequence)
"""


def test_a_forked_child_opens_an_adapter_of_its_own_and_cannot_use_its_parents(field: Any) -> None:
    # Given a delegate, and a process that has a SubscriberAdapter when it forks
    field.pad()
    forking = field.script(FORKING)

    # Expect that the child's use of the parent's adapter, and a second one of its own, are refused
    assert forking.ready == {"who": "child", "refused": ["AdapterStateError"] * 13, "servers": 1}

    # When the parent publishes
    forking.process.say("publish")

    # Expect that child and parent each receive it with their own adapter
    facts = sorted((forking.fact(), forking.fact()), key=lambda fact: str(fact["who"]))
    assert facts == [{"who": "child", "sequence": 1}, {"who": "parent", "sequence": 1, "child": 0}]


def test_a_forked_child_that_ends_leaves_the_federate_and_the_federation_of_its_parent(field: Any) -> None:
    # Given a federate that is joined, in a process with a federation of its own
    # When a child of it is forked, may not resign, and ends out of both `with`
    # Expect the federation at work, and the federate joined
    leaving = field.script(f"AIR = {AIR!r}\n" + LEAVING)
    assert leaving.ready == {"child": 7, "sequence": 1}


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

"""The demo's processes: `python -m jbi_pubsub.examples.roles publisher NAME [persist] CONFIG` or
`... subscriber NAME CONFIG`.

They are ordinary applications over the public adapters. They talk to the demo in JSON lines: facts on stdout, a word
on stdin ("go": publish everything once); they end with stdin.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from lxml import etree

from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight, RegistrationUid, SubscriberAdapter
from jbi_pubsub.examples.example import DATA
from jbi_pubsub.examples.federation import application, say
from jbi_pubsub.examples.scenario import (
    LATECOMER,
    PUBLISHERS,
    SUBSCRIBERS,
    PlannedObject,
    PlannedPublisher,
    PlannedSubscriber,
    publications,
)


def publish(publisher: PlannedPublisher, config: Config, *, persist: bool) -> None:
    """Register, then publish everything at each "go". `persist`: it is archived."""
    objects = publications(publisher)
    schema = DATA / publisher.schema
    marks = DATA / publisher.marks if publisher.marks else None
    invariants = objects if publisher.separately else objects[:1]
    adapter: PublisherAdapter | PublisherAdapterLight
    registrations: list[RegistrationUid]
    if publisher.delegate is None:
        adapter = peer = PublisherAdapter(config)
        registrations = [peer.register_publisher(schema, o.metadata, marks=marks) for o in invariants]
    else:
        adapter = light = PublisherAdapterLight(config, name=publisher.name)
        delegate = light.connect_to_delegate(*publisher.delegate)
        registrations = [
            light.register_publisher(delegate, schema, o.metadata, marks=marks, persist=persist or None)
            for o in invariants
        ]
    say(ready=publisher.name, registrations=len(registrations))
    with adapter:
        for _ in iter(sys.stdin.readline, ""):
            _publish_all(adapter, objects, registrations)
            say(published=publisher.name, objects=len(objects))


def _publish_all(
    adapter: PublisherAdapter | PublisherAdapterLight,
    objects: list[PlannedObject],
    registrations: list[RegistrationUid],
) -> None:
    for number, each in enumerate(objects):
        adapter.publish(registrations[number if len(registrations) > 1 else 0], each.metadata, each.payload or None)
    adapter.flush()


def subscribe(subscriber: PlannedSubscriber, config: Config) -> None:
    """Subscribe, and tell of everything that comes until stdin ends."""
    ended = threading.Event()
    threading.Thread(target=_await_end, args=(ended.set,), name="stdin", daemon=True).start()
    with SubscriberAdapter(config, name=subscriber.name) as adapter:
        uid = adapter.register_subscriber(
            DATA / subscriber.template if subscriber.template else None,
            schema=DATA / subscriber.schema if subscriber.schema else None,
            marks=DATA / subscriber.marks if subscriber.marks else None,
            type_name="" if subscriber.schema else subscriber.type_name,
            predicate=subscriber.predicate,
            payload_filter=subscriber.payload_filter,
            namespaces=dict(subscriber.namespaces),
            recipients=subscriber.recipients,
            start=subscriber.start,
        )
        say(ready=subscriber.name, subscription=uid)
        matched = 0
        while not ended.is_set():
            now = adapter.wait_matched(uid, 0, 0.0)
            if now != matched:
                matched = now
                say(matched=subscriber.name, servers=matched)
            obj = adapter.receive(uid, 0.05)
            if obj is not None:
                parts = len(etree.fromstring(obj.payload)) if subscriber.payload_filter else 0
                say(
                    received=subscriber.name,
                    object=obj.object_id,
                    type=obj.type.name,
                    sequence=obj.platform.sequence,
                    payload=len(obj.payload),
                    published=obj.platform.payload_length,
                    parts=parts,
                )
        say(losses=adapter.losses(uid))


def _await_end(ended: Callable[[], None]) -> None:
    for _ in iter(sys.stdin.readline, ""):
        pass
    ended()


def play(config: Config, role: str, name: str, *marks: str) -> None:
    """Play one role."""
    if role == "publisher":
        publish(next(p for p in PUBLISHERS if p.name == name), config, persist="persist" in marks)
    else:
        subscribe(next(s for s in (*SUBSCRIBERS, LATECOMER) if s.name == name), config)


if __name__ == "__main__":
    sys.exit(application(play))

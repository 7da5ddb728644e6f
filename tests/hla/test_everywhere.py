"""One information object, wherever it is met: it is the same one."""

from __future__ import annotations

import queue
import struct
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.file import described
from jbi_pubsub.bridge.platform import SideSubscriber
from jbi_pubsub.capi import ConnectionManager
from jbi_pubsub.core.config import ArchiveSection, MailSection
from jbi_pubsub.examples.mailbox import mailbox
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from tests.hla.parties import Federate
from tests.hla.test_gateway import FILE, MODEL


@pytest.mark.row("X-01")
def test_an_object_has_one_id_in_a_queue_by_the_common_api_in_mail_in_a_federation_and_in_an_archive(
    federation: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    mails: queue.Queue[EmailMessage] = queue.Queue()
    with mailbox(lambda _, message: mails.put(message)) as port:
        # Given a delegate with an archive and mail, a federation behind a bridge, and somebody of each kind
        config = msgspec.structs.replace(
            federation.config,
            archive=ArchiveSection(folder=str(tmp_path / "archive"), workers=0, reserve=0.0),
            mail=MailSection(host="127.0.0.1", port=port, sender="jbi@example.org"),
        )
        federation.pad(config=config)
        rti = RtiServer(federation.config, lease=30.0)
        federation.stack.callback(rti.stop)
        rti.start()
        rti.create("Air", [Module("model.xml", MODEL)])
        (tmp_path / "gate.toml").write_text(FILE)
        bridge = described(tmp_path / "gate.toml").opened(federation.config)
        federation.stack.callback(bridge.close)
        bridge.start()
        pilot = Federate(federation.config, "pilot", "Air")
        federation.stack.callback(pilot.rti.disconnect)
        report = pilot.rti.get_interaction_class_handle("Report")
        pilot.rti.subscribe_interaction_class(report)
        subscriber = federation.stack.enter_context(SideSubscriber(federation.config))  # beside the Common API's own
        queued = subscriber.register_subscriber(type_name="acme.Note")
        mailed = subscriber.register_subscriber(type_name="acme.Note", recipients=["ops@example.org"])
        manager = ConnectionManager(federation.config)
        connection = manager.createConnection("client")
        connection.connect()
        sequence = connection.createSubscriberSequence("acme.Note", "1.0")
        sequence.activateSequence()
        light = federation.light()
        at = light.connect_to_delegate("alpha", "rome")
        notes = light.register_publisher(at, type_name="acme.Note", validate=False, persist=True)
        for each in (queued, mailed):
            assert subscriber.wait_matched(each) == 1
        # When one object is published
        object_id = light.publish(notes, b'<Note text="one"><level>1</level></Note>', b"payload")
        # Expect it to come to all, under its id
        obj = subscriber.receive(queued, 30.0)
        assert obj is not None
        assert obj.object_id == object_id
        io = sequence.getNext(30_000)
        assert (io.getInfoObjectID(), io.getPayload()) == (object_id, b"payload")
        assert mails.get(timeout=30.0)["X-JBI-Object-Id"] == object_id
        values = dict(pilot.until("receive_interaction")[2])
        text = object_id.encode("utf-16-be")
        assert values[pilot.rti.get_parameter_handle(report, "id")] == struct.pack(">i", len(object_id)) + text
        eventually(lambda: [each.object_id for each in subscriber.query("acme.Note")] == [object_id])
        manager.destroyConnection(connection)
        subscriber.cancel_subscription(mailed)

"""Bridges, links and gateways where certificates are wanted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.file import described
from jbi_pubsub.cli.status import Servers
from jbi_pubsub.core.config import Config
from jbi_pubsub.hla.link import RtiLink
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from tests.hla.bridge.test_process import FILE
from tests.hla.parties import Federate

GATE = """
poll = 0.1
name = "gate"
[side.sim]
kind = "hla"
federation = "Sea"
[side.alpha]
"""


def test_all_that_joins_federations_speaks_tls_where_it_is_set(
    fixtures: Any, air: bytes, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given certificates for all, two federations, a bridge between them, a link into the second, and a gateway there
    pytest.importorskip("cryptography")
    from certificates import Authority

    authority = Authority(tmp_path)
    with ExitStack() as stack:
        made = fixtures.Federation(msgspec.structs.replace(fixtures.test_config(), tls=authority.issue("all")), stack)
        made.lookup()
        config: Config = made.config
        made.pad()
        rti = RtiServer(config)
        stack.callback(rti.stop)
        rti.start()
        for name in ("Air", "Sea"):
            rti.create(name, [Module("air.xml", air)])
        running = []
        for name, text in (("bridge", FILE), ("gate", GATE)):
            path = tmp_path / f"{name}.toml"
            path.write_text(text)
            running.append(described(path).opened(config))
            stack.callback(running[-1].close)
            running[-1].start()
        link = RtiLink(config, config, "Sea", "Lake")
        stack.callback(link.stop)
        link.start()
        eventually(link.is_there)
        subscriber = made.subscriber()
        radios = subscriber.register_subscriber(type_name="Radio")
        subscriber.wait_matched(radios)
        a, c = Federate(config, "a", "Air"), Federate(config, "c", "Lake")
        for one in (a, c):
            stack.callback(one.rti.disconnect)
        radio = a.rti.get_interaction_class_handle("Radio")
        text_of = a.rti.get_parameter_handle(radio, "text")
        a.rti.publish_interaction_class(radio)
        c.rti.subscribe_interaction_class(radio)
        eventually(lambda: running[0].status()["state"] == "up", what=running[0].status)
        # When many small messages and some large ones are sent in the first
        sent = [bytes([n % 256]) * (1 if n % 20 else 300_000) for n in range(100)]
        for each in sent:
            a.rti.send_interaction(radio, {text_of: each})
        # Expect all of them over bridge and link, and over bridge and gateway
        assert [c.until("receive_interaction")[2][0][1] for _ in sent] == sent
        payloads = [subscriber.receive(radios, 30.0) for _ in sent]
        assert [msgspec.msgpack.decode(each.payload)["values"]["text"] for each in payloads if each] == sent
        # and all servers to answer those who ask how they are
        servers = Servers(config, ())
        try:
            kinds = {facts["kind"] for facts in servers.ask()}
        finally:
            servers.close()
        assert {"federation bridge", "rti link", "rti", "lookup"} <= kinds
        assert "unreachable" not in kinds

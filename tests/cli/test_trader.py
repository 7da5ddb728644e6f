"""`jbi trader`: services offered, found, and told of, as processes and in this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from jbi_pubsub import Config
from jbi_pubsub.cli.community import at_address
from jbi_pubsub.domains.proxy import TraderProxy
from jbi_pubsub.domains.trader import OfferQuery

OF_CAMERA = ("--property", "mandatory string name", "--property", "long pixels", "--property", "strings roles")


@pytest.mark.processes
def test_service_is_exported_found_by_a_trader_and_withdrawn(
    start: Callable[..., Any], said: Callable[..., Any], flags: list[str], eventually: Callable[..., Any]
) -> None:
    # Given an offer and a trader, each a process
    offer = start(
        *flags, "trader", "export", "demo.Camera", "name=roof", "pixels=12", "roles=a,b", "--json", *OF_CAMERA
    )
    offered = offer.fact()
    trader = start(*flags, "--set", "domain.number=7", "trader", "serve", "--json")
    served = trader.fact()
    assert served["domain"] == 7
    # When it is asked for, expect it with its properties, by a constraint and by nothing
    found = said(*flags, "trader", "query", "demo.Camera", "pixels > 8 and 'b' in roles", "--json")
    (one,) = json.loads(found.out)["offers"]
    assert (one["id"], one["properties"]) == (offered["id"], {"name": "roof", "pixels": 12, "roles": ["a", "b"]})
    # (the trader's own answer is the same)
    with closing(TraderProxy(at_address(served["address"], "trader"), Config().security())) as proxy:
        eventually(lambda: [each.id for each in proxy.query(OfferQuery("demo.Camera")).offers] == [offered["id"]])
    none = said(*flags, "trader", "query", "demo.Camera", "pixels > 12", "--follow", "always", "--json")
    assert (none.code, json.loads(none.out)) == (0, {"offers": [], "partial": []})
    types = json.loads(said(*flags, "trader", "types", "--json").out)
    assert [(each["type"], each["offers"]) for each in types] == [("demo.Camera", 1)]
    # and nothing when its process has ended
    assert offer.end() == 0
    eventually(lambda: json.loads(said(*flags, "trader", "types", "--json").out) == [])
    assert trader.end() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("query", "demo.Camera", "pixels = 3"), "position 8"),
        (("query", "demo.Camera", "--prefer", "best"), "no preference"),
        (("export", "demo.Camera", "name", *OF_CAMERA), "not NAME=VALUE"),
        (("export", "demo.Camera", "pixels=many", "name=x", *OF_CAMERA), "Its kind is long"),
        (("export", "demo.Camera", "pixels=3", *OF_CAMERA), "lacks name"),
        (("export", "demo.Camera", "name=x", "size=3", *OF_CAMERA), "has no property 'size'"),
        (("export", "demo.Camera", "--property", "integer x"), "no property"),
        (("export", "demo.Camera", "--parent", "demo.Nothing"), "no offer has service type"),
    ],
)
def test_bad_words_are_refused_in_one_line(
    said: Callable[..., Any], flags: list[str], arguments: tuple[str, ...], words: str
) -> None:
    told = said(*flags, "trader", *arguments)
    assert told.code != 0
    assert told.is_one_line(), told.err
    assert words in told.err

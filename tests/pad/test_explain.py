"""Why an object was delivered to a subscription or not, level by level."""

from __future__ import annotations

from typing import Any


def test_each_level_says_why(federation: Any, figures: Any) -> None:
    # Given a delegate with a registration of the 418th, and a subscription to it with a predicate and a filter
    pad = federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate="ImageDescriptor/Area='Kabul'", payload_filter="//name"
    )
    assert subscriber.wait_matched(uid) == 1
    # When asked about figure 1 with the target list, expect every level to say yes
    facts = pad.delegate.explain(uid, figures.figure_1, figures.figure_4)
    assert facts["delivered"] is True
    assert facts["first_level"] == {registration: {"matches": True, "misses": []}}
    assert (facts["predicate_true"], facts["selected"]) == (True, 2)
    # And with another area, the predicate to say no
    facts = pad.delegate.explain(uid, figures.metadata(Area="Rome"), b"")
    assert (facts["delivered"], facts["predicate_true"]) == (False, False)


def test_a_first_level_miss_names_field_and_values(federation: Any, figures: Any) -> None:
    pad = federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    publisher.register_publisher(delegate, figures.schema, figures.metadata(publisher="999th"))
    publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid) == 1
    levels = pad.delegate.explain(uid, figures.figure_1, b"")["first_level"].values()
    missed = [level["misses"] for level in levels if not level["matches"]]
    assert len(missed) == 1
    assert missed[0][0].endswith("RequiredMetadataEntry.publisher: wants '418th', has '999th'")

"""Why an object was delivered to a subscription or not, level by level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.pad.matching.explanation import find_subscription


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
    facts = pad.delegate.reports.explain(uid, figures.figure_1, figures.figure_4)
    assert facts["delivered"] is True
    assert facts["first_level"] == {
        registration: {
            "type": "mil.af.rl.jbi.Intel_Imagery",
            "version": "1.0",
            "matches": True,
            "document": "fits",
            "misses": [],
            "impossible": (),
        }
    }
    assert (facts["predicate_true"], facts["selected"]) == (True, 2)
    # And with another area, the predicate to say no
    facts = pad.delegate.reports.explain(uid, figures.metadata(Area="Rome"), b"")
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
    levels = pad.delegate.reports.explain(uid, figures.figure_1, b"")["first_level"].values()
    missed = [level["misses"] for level in levels if not level["matches"]]
    assert len(missed) == 1
    assert missed[0][0].endswith("RequiredMetadataEntry.publisher: wants '418th', has '999th'")


class Standing:
    """A delegate with a registration of the 418th, and a subscription to it."""

    def __init__(self, federation: Any, figures: Any) -> None:
        self.delegate = federation.pad().delegate
        self.figures = figures
        figures.register(federation.light())
        self.subscriber = federation.subscriber()

    def subscribed(self, predicate: str = "", **options: Any) -> str:
        uid = self.subscriber.register_subscriber(
            self.figures.figure_3, schema=self.figures.schema, predicate=predicate, **options
        )
        assert self.subscriber.wait_matched(uid) == 1
        return str(uid)

    def explain(self, uid: str, metadata: bytes, payload: bytes = b"") -> Any:
        return self.delegate.reports.explain(uid, metadata, payload)


@pytest.fixture
def standing(federation: Any, figures: Any) -> Standing:
    return Standing(federation, figures)


def test_a_document_of_another_type_does_not_match_at_the_first_level(standing: Standing) -> None:
    # Given a subscription without a predicate, and an alert
    facts = standing.explain(standing.subscribed(), b"<alert><status>Actual</status></alert>")
    # Expect the document to be what is wrong, not the template
    [level] = facts["first_level"].values()
    assert (facts["delivered"], level["matches"], level["misses"]) == (False, False, [])
    assert "alert" in level["document"]


def test_a_document_with_other_invariants_does_not_match_at_the_first_level(standing: Standing) -> None:
    facts = standing.explain(standing.subscribed(), standing.figures.metadata(publisher="999th"))
    [level] = facts["first_level"].values()
    assert (facts["delivered"], level["matches"]) == (False, False)
    assert "'418th'" in level["document"]
    assert "'999th'" in level["document"]


def test_each_condition_of_the_predicate_is_shown_with_the_value_found(standing: Standing) -> None:
    # Given a predicate of four conditions, one of them with two more in brackets
    uid = standing.subscribed(
        "//lat > 40 and ImageDescriptor[Area='Kabul' and ImageType='EO']"
        " and not(//zz or //lat=1) and count(//keywords)=1"
    )
    # When figure 1 is explained, expect each with its truth and its values
    facts = standing.explain(uid, standing.figures.figure_1)
    assert facts["predicate_true"] is False
    assert [(c["level"], c["joint"], c["holds"], c["text"]) for c in facts["conditions"]] == [
        (0, "", False, "//lat > 40"),
        (0, "and", False, "ImageDescriptor[Area='Kabul' and ImageType='EO']"),
        (1, "", True, "Area='Kabul'"),
        (1, "", False, "ImageType='EO'"),
        (0, "not", True, "not(//zz or //lat=1)"),
        (1, "or", False, "//zz or //lat=1"),
        (2, "", False, "//zz"),
        (2, "", False, "//lat=1"),
        (0, "", True, "count(//keywords)=1"),
    ]
    found = [
        [(f["path"], list(f["values"]), f["count"]) for f in c["found"]] for c in facts["conditions"] if not c["joint"]
    ]
    assert found == [
        [("//lat", ["33.34"], 1)],
        [("ImageDescriptor/Area", ["Kabul"], 1)],
        [("ImageDescriptor/ImageType", ["IR"], 1)],
        [("//zz", [], 0)],
        [("//lat", ["33.34"], 1)],
        [("//keywords", ["Intel"], 1)],
    ]


def test_what_fails_says_so_and_is_not_counted(standing: Standing) -> None:
    uid = standing.subscribed("position()=1", payload_filter="position()")
    facts = standing.explain(uid, standing.figures.figure_1, standing.figures.figure_4)
    assert facts["predicate_true"] is False
    assert "position" in facts["predicate_failure"]
    assert "position" in facts["filter_failure"]
    assert [c["holds"] for c in facts["conditions"]] == [None]
    assert standing.explain(uid, standing.figures.figure_1)["terms"]["failed"] == 0


def test_filter_and_queue_come_after_the_predicate(standing: Standing, eventually: Callable[..., Any]) -> None:
    uid = standing.subscribed(payload_filter="//nothing", suppress_empty=True)
    facts = standing.explain(uid, standing.figures.figure_1, standing.figures.figure_4)
    assert (facts["selected"], facts["suppressed"], facts["delivered"]) == (0, True, False)
    assert (facts["queue"]["queued"], facts["queue"]["in_flight"]) == (0, 0)
    eventually(lambda: standing.explain(uid, standing.figures.figure_1)["queue"]["connected"])
    assert standing.explain(uid, standing.figures.figure_1, b"no XML")["delivered"] is True


def test_the_beginning_of_an_id_will_do_if_it_is_no_others(standing: Standing) -> None:
    uid = standing.subscribed()
    assert standing.explain(uid[:-5], standing.figures.figure_1)["subscription"] == uid
    assert standing.explain(uid.removeprefix("subscription-")[:6], standing.figures.figure_1)["subscription"] == uid


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("subscription-ab", "subscription-ab"), ("abc", "subscription-abcd"), ("subscription-b", "subscription-bb")],
)
def test_ids_are_found_by_their_beginning(wanted: str, found: str) -> None:
    assert find_subscription(wanted, ["subscription-ab", "subscription-abcd", "subscription-bb"]) == found


def test_a_beginning_that_fits_several_ids_is_refused_with_these() -> None:
    with pytest.raises(ConfigurationError, match="2 subscriptions begin with 'a': subscription-ab, subscription-ac"):
        find_subscription("a", ["subscription-ab", "subscription-ac", "subscription-bb"])


@pytest.mark.parametrize("wanted", ["", "c", "subscription-c"])
def test_an_id_that_nobody_has_is_unknown(wanted: str) -> None:
    with pytest.raises(UnknownUidError, match="no subscription"):
        find_subscription(wanted, ["subscription-ab"])


def test_an_object_that_is_still_known_is_explained_by_its_id(federation: Any, figures: Any) -> None:
    # Given an object that was published moments ago
    delegate = federation.pad().delegate
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate="//lat > 30", payload_filter="//name"
    )
    assert subscriber.wait_matched(uid) == 1
    published = publisher.publish(registration, figures.figure_1, figures.figure_4)
    assert subscriber.receive(uid, 60.0) is not None
    # Expect the same as for its document, and a clear word when it is not known
    facts = delegate.reports.explain_object(uid, published)
    assert (facts["delivered"], facts["selected"]) == (True, 2)
    assert facts["conditions"] == delegate.reports.explain(uid, figures.figure_1, figures.figure_4)["conditions"]
    with pytest.raises(UnknownUidError, match="no object object-8 is known here any more") as caught:
        delegate.reports.explain_object(uid, "object-8")
    assert "explain its document" in caught.value.hint

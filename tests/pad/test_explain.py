"""Why an object was delivered to a subscription or not, level by level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.pad.matching import match_table
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


def test_an_object_is_explained_for_its_own_registration_alone(federation: Any, figures: Any) -> None:
    # Given a registration of another type without a schema, whose document the subscribed type would take
    delegate = federation.pad().delegate
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    wanted = publisher.register_publisher(at, type_name="wanted", validate=False)
    other = publisher.register_publisher(at, type_name="other", validate=False)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="wanted")
    assert subscriber.wait_matched(uid) == 1
    published = publisher.publish(other, b"<m/>")
    publisher.flush()
    # Expect it not to be delivered
    facts = delegate.reports.explain_object(uid, published)
    assert (facts["registration"], list(facts["first_level"]), facts["delivered"]) == (other, [other], False)
    # When its registration has ended; Expect the others, and to be told
    publisher.unregister_publisher(other)
    facts = delegate.reports.explain_object(uid, published)
    assert (facts["registration"], list(facts["first_level"])) == ("", [wanted])


@pytest.mark.parametrize("metadata", [b"", b"no XML"])
def test_what_has_no_document_is_delivered_to_who_asks_nothing_of_it(metadata: bytes, federation: Any) -> None:
    # Given a registration whose metadata need not be XML, and one that validates
    delegate = federation.pad().delegate
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, type_name="t", validate=False, well_formed=False)
    subscriber = federation.subscriber()
    every = subscriber.register_subscriber(type_name="t")
    some = subscriber.register_subscriber(type_name="t", predicate="true()")
    assert [subscriber.wait_matched(each) for each in (every, some)] == [1, 1]
    published = publisher.publish(registration, metadata, b"payload")
    assert subscriber.receive(every, 60.0) is not None
    # Expect the explanation to agree, of the object and of the document
    reports = delegate.reports
    for told in (reports.explain_object(every, published), reports.explain(every, metadata, b"payload")):
        assert told["delivered"] is True
    for told in (reports.explain_object(some, published), reports.explain(some, metadata, b"payload")):
        assert (told["predicate_true"], told["delivered"]) == (False, False)
        assert "no XML" in told["predicate_failure"]
    assert subscriber.receive(some, 0.0) is None


def test_a_document_that_is_no_xml_does_not_fit_who_validates(standing: Standing) -> None:
    for document, why in ((b"", "no metadata"), (b"<m>", "not well-formed")):
        [level] = standing.explain(standing.subscribed(), document)["first_level"].values()
        assert level["matches"] is False
        assert why in level["document"]


@pytest.fixture
def limited(federation: Any, tmp_path: Path) -> Callable[[str], tuple[Any, Any, Any, str]]:
    """A delegate with a policy, a publisher's registration and a subscriber, to its type."""

    def made(policy: str) -> tuple[Any, Any, Any, str]:
        file = tmp_path / "policy.toml"
        file.write_text(f'[[policy]]\nname = "small"\ntype = "t"\n{policy}\n')
        config = msgspec.structs.replace(
            federation.config, qos=QosSection(mode="on"), policy=PolicySection(file=str(file))
        )
        delegate = federation.pad(config=config).delegate
        publisher = federation.light()
        at = publisher.connect_to_delegate("alpha", "rome")
        return delegate, publisher, federation.subscriber(), publisher.register_publisher(
            at, type_name="t", validate=False
        )  # fmt: skip

    return made


def test_what_is_beyond_the_size_of_a_policy_is_not_delivered(
    limited: Callable[[str], tuple[Any, Any, Any, str]], eventually: Callable[..., Any]
) -> None:
    # Given a policy that lets through 1 kB, one who takes all, and one who takes a part
    delegate, publisher, subscriber, registration = limited('max_size = "1 KB"')
    every = subscriber.register_subscriber(type_name="t")
    part = subscriber.register_subscriber(type_name="t", payload_filter="//b")
    assert [subscriber.wait_matched(each) for each in (every, part)] == [1, 1]
    payload = b"<a><b/>" + b"<c/>" * 1_000 + b"</a>"
    published = publisher.publish(registration, b"<m/>", payload)
    assert subscriber.receive(part, 60.0) is not None
    eventually(lambda: subscriber.losses(every) == {"oversize": 1})
    # Expect the explanation to agree, and to tell the sizes
    for facts in (
        delegate.reports.explain_object(every, published), delegate.reports.explain(every, b"<m/>", payload),
    ):  # fmt: skip
        assert facts["delivered"] is False
        assert facts["size"] == {"bytes": len(payload) + 4, "max_size": 1000, "holds": False}
    facts = delegate.reports.explain_object(part, published)
    assert (facts["delivered"], facts["size"]["holds"]) == (True, True)


def test_what_a_shape_may_make_small_enough_is_perhaps_delivered(
    limited: Callable[[str], tuple[Any, Any, Any, str]],
) -> None:
    delegate, _, subscriber, _ = limited('max_size = "1 KB"\nshape = "truncate 100"')
    uid = subscriber.register_subscriber(type_name="t")
    assert subscriber.wait_matched(uid) == 1
    facts = delegate.reports.explain(uid, b"<m/>", bytes(2_000))
    assert (facts["delivered"], facts["size"]["holds"]) == (None, None)
    assert delegate.reports.explain(uid, b"<m/>", b"small")["delivered"] is True


def test_a_subscription_that_is_set_aside_gets_nothing_of_that_registration(
    federation: Any, figures: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription that a later registration has no room for
    delegate = federation.pad().delegate
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    first = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        type_name="mil.af.rl.jbi.Intel_Imagery", predicate="count(//*) > 1 and //*[//*[contains(., '3')]]"
    )
    assert subscriber.wait_matched(uid) == 1
    monkeypatch.setattr(match_table, "MAX_COST_OF_REGISTRATION", 0.001)
    other = figures.metadata(publisher="others")
    later = publisher.register_publisher(at, figures.schema, other)
    assert eventually(lambda: subscriber.refusal(uid)) is not None
    # Expect an object of that to be said not to come, and why
    facts = delegate.reports.explain(uid, other, b"")
    assert (facts["delivered"], facts["predicate_true"]) == (False, True)
    [miss] = facts["first_level"][later]["misses"]
    assert "not evaluated here" in miss
    assert facts["terms"].set_aside in miss
    assert delegate.reports.explain(uid, figures.figure_1, b"")["first_level"][first]["matches"] is True

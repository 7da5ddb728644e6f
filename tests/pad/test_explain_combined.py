"""Why an object is not delivered to who asks of the combined view, or does not want what its publisher publishes."""

from __future__ import annotations

from tests.conftest import Federation, eventually

OG = "http://gdc4s.com/oim/gemini"


def test_what_the_platform_says_is_among_the_conditions(federation: Federation) -> None:
    # Given a subscription that asks for large objects of a publisher, and an object that is small
    pad = federation.pad()
    publisher = federation.light(name="camera")
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, type_name="image", validate=False, owner="me")
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        type_name="image", view="combined", predicate="//og:PayloadLength > 10 and //og:PublisherID = 'camera'"
    )
    own = subscriber.register_subscriber(type_name="image", unlike="me")
    eventually(lambda: len(pad.delegate.tables.subscriptions) == 2)
    object_id = publisher.publish(registration, b"<image/>", b"small")
    publisher.flush()
    # Expect to be told which condition does not hold, of that object and of any other
    for why in (
        pad.delegate.reports.explain_object(uid, object_id),
        pad.delegate.reports.explain(uid, b"<image/>", b"small"),
    ):
        assert [each["holds"] for each in why["conditions"]] == [False, True], why  # type: ignore[attr-defined]
        assert (why["predicate_true"], why["delivered"]) == (False, False)
    large = pad.delegate.reports.explain(uid, b"<image/>", b"large enough")
    assert (large["predicate_true"], large["delivered"]) == (True, True)
    # Expect the one that does not want its own to be told so
    level = pad.delegate.reports.explain_object(own, object_id)["first_level"][registration]  # type: ignore[index]
    assert level["matches"] is False
    assert "unlike" in level["misses"][0]
    # Expect a status to say how it asks
    said = {each["uid"]: each for each in pad.delegate.status()["subscriptions"]}  # type: ignore[attr-defined]
    assert said[uid]["view"] == "combined"
    assert said[own]["unlike"] == "me"
    (terms,) = [each for each in pad.delegate.reports.terms(0, 10) if each.uid == uid]
    assert "combined" in terms.language  # which a study that knows metadata alone does not take

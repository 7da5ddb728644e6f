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
    assert (terms.language, terms.view) == ("xpath", "combined")  # which a study that knows metadata alone rejects


def test_a_document_is_asked_of_as_each_registration_would_publish_it(federation: Federation) -> None:
    # Given two types, and a subscription to the later one by what the platform says of it
    pad = federation.pad()
    publisher = federation.light(name="camera")
    at = publisher.connect_to_delegate("alpha", "rome")
    for name in ("sound", "image"):
        publisher.register_publisher(at, type_name=name, validate=False)
    subscriber = federation.subscriber()
    predicate = "//og:Name = 'image' and //n = 1"
    by_type = subscriber.register_subscriber(type_name="image", view="combined", predicate=predicate)
    of_any = subscriber.register_subscriber(view="combined", predicate=predicate)
    assert all(subscriber.wait_matched(each) for each in (by_type, of_any))
    # Expect a document to be delivered that it is true for, with its conditions, and no other
    for uid in (by_type, of_any):
        why = pad.delegate.reports.explain(uid, b"<m><n>1</n></m>", b"")
        assert (why["predicate_true"], why["delivered"]) == (True, True)
        assert [each["holds"] for each in why["conditions"]] == [True, True]  # type: ignore[attr-defined]
        assert pad.delegate.reports.explain(uid, b"<m><n>2</n></m>", b"")["delivered"] is False

"""A subscriber: what comes from around Kabul, until nothing has come for ten seconds; see the README."""

from pathlib import Path

from jbi_pubsub import SubscriberAdapter, bbox

DATA = Path(__file__).with_name("data") / "intel_imagery"
AT = "/metadata/ImageDescriptor/LocationCoord"

with SubscriberAdapter() as subscriber:
    kabul = subscriber.register_subscriber(
        DATA / "fig3-template.xml",
        schema=DATA / "Intel_Imagery.xsd",
        predicate=bbox(33.2, 65.7, 35.0, 70.0, location=AT),
    )
    for obj in subscriber.objects(kabul, timeout=10):
        print(obj.type.name, obj.platform.sequence, len(obj.payload), "bytes")

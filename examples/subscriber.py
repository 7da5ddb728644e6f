"""A subscriber: what comes from around Kabul, until nothing has come for ten seconds; see the README."""

from pathlib import Path

from jbi_pubsub import SubscriberAdapter, bbox

data = Path(__file__).with_name("data") / "intel_imagery"
where = bbox(33.2, 65.7, 35.0, 70.0, location="/metadata/ImageDescriptor/LocationCoord")


def main() -> None:
    """Print what arrives."""
    with SubscriberAdapter() as subscriber:
        kabul = subscriber.register_subscriber(
            data / "fig3-template.xml",
            schema=data / "Intel_Imagery.xsd",
            predicate=where,
        )
        for obj in subscriber.objects(kabul, timeout=10):
            print(obj.type.name, obj.platform.sequence, len(obj.payload), "bytes")


if __name__ == "__main__":
    main()

"""A publisher in three calls. Needs `jbi lookup` and `jbi pad alpha rome`; see the README."""

from pathlib import Path

from jbi_pubsub import PublisherAdapterLight

DATA = Path(__file__).with_name("data") / "intel_imagery"

with PublisherAdapterLight() as publisher:
    delegate = publisher.connect_to_delegate("alpha", "rome")
    imagery = publisher.register_publisher(delegate, DATA / "Intel_Imagery.xsd", invariants=DATA / "fig1.xml")
    object_id = publisher.publish(imagery, DATA / "fig1.xml", DATA / "image.png")
    publisher.flush()
    print("published", object_id)

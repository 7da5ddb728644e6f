"""A publisher in three calls. Needs `jbi lookup` and `jbi pad alpha rome`; see the README."""

from pathlib import Path

from jbi_pubsub import PublisherAdapterLight

data = Path(__file__).with_name("data") / "intel_imagery"


def main() -> None:
    """Publish the paper's figure 1 with an image."""
    with PublisherAdapterLight() as publisher:
        delegate = publisher.connect_to_delegate("alpha", "rome")
        imagery = publisher.register_publisher(delegate, data / "Intel_Imagery.xsd", invariants=data / "fig1.xml")
        publisher.publish(imagery, data / "fig1.xml", data / "image.png")


if __name__ == "__main__":
    main()

"""Names of adapters and types, as applications give and see them."""

from __future__ import annotations

import pytest

from jbi_pubsub.core.errors import ConfigurationError, SchemaError
from jbi_pubsub.testing import LocalFederation
from tests.conftest import Figures

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", [" ", "Van ", "\tVan", "V" * 501], ids=repr)
def test_a_type_name_that_no_type_has_is_refused_where_it_is_given(name: str, figures: Figures) -> None:
    with LocalFederation() as federation:
        federation.delegate("alpha", "rome")
        publisher, subscriber = federation.publisher(), federation.subscriber()
        at = publisher.connect_to_delegate("alpha", "rome")
        with pytest.raises(ConfigurationError, match=r"type_name is|too long for a type"):
            subscriber.register_subscriber(type_name=name)
        with pytest.raises((ConfigurationError, SchemaError), match=r"type_name is|not a name and version of a type"):
            publisher.register_publisher(at, figures.schema, figures.figure_1, type_name=name)


def test_adapters_say_what_they_are() -> None:
    # Given adapters, expect their text to name them, and to say when they are closed
    with LocalFederation() as federation:
        publisher = federation.publisher(name="van")
        peer, subscriber = federation.peer(), federation.subscriber()
        assert repr(publisher) == "<PublisherAdapterLight 'van'>"
        assert repr(subscriber).startswith("<SubscriberAdapter 'subscriber-")
        assert repr(peer).startswith("<PublisherAdapter at 127.0.0.1:")
    assert repr(publisher) == "<PublisherAdapterLight 'van', closed>"
    assert repr(peer).endswith(", closed>")
    assert repr(subscriber).endswith(", closed>")

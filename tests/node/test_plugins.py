"""What other distributions bring: where objects are kept, where types are, who may do what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapterLight
from jbi_pubsub.codegen.types.catalogue import MemoryTypes
from jbi_pubsub.core import plugins
from jbi_pubsub.core.access import AllowAll, Decision
from jbi_pubsub.core.config import ArchiveSection, Config, PolicySection, TypesSection
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError
from jbi_pubsub.node.admin import NodeProxy
from jbi_pubsub.node.identity import is_held
from jbi_pubsub.node.service import NodeService

from .conftest import of

sys.path.append(str(Path(__file__).parent.parent / "oracles"))
from keeping import MemoryKeeping


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """A distribution that is installed: `store.test`, `types.test`, `access.test`; how each was called."""
    asked: dict[str, tuple[Any, ...]] = {}

    class DenyAll(AllowAll):
        def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's
            return Decision(False, "test")

    def offered(name: str, make: Callable[[], Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            asked[name] = arguments
            return make()

        return made

    offers = {
        ("store", "test"): offered("store", MemoryKeeping),
        ("types", "test"): offered("types", MemoryTypes),
        ("access", "test"): offered("access", DenyAll),
    }
    monkeypatch.setattr(plugins, "find", lambda kind, name: offers.get((kind, name)))
    return asked


@pytest.mark.row("G-18", "G-38")
def test_an_archive_and_types_of_a_plug_in(
    node: Callable[..., NodeService], settings: Config, installed: dict[str, tuple[Any, ...]], figures: Any
) -> None:
    # Given a node whose archive and types are a plug-in's
    config = msgspec.structs.replace(
        settings, archive=ArchiveSection(folder="test://a/b"), types=TypesSection(folder="test://c")
    )
    service = node(config)
    assert installed == {"types": ("c",), "store": ("a/b",)}
    # When something is kept, expect it there
    with PublisherAdapterLight(of(service)) as publisher:
        at = publisher.connect_to_delegate("node", "home")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
        publisher.publish(registration, figures.figure_1)
        publisher.flush()
    kept = service.delegate._stages.archive.keeping
    assert isinstance(kept, MemoryKeeping)
    assert kept.end == 1


@pytest.mark.row("G-40", "X-11")
def test_a_policy_of_a_plug_in_is_asked_at_every_way_in(
    node: Callable[..., NodeService], settings: Config, installed: dict[str, tuple[Any, ...]]
) -> None:
    # Given a node whose policy is a plug-in's, which denies everything
    service = node(msgspec.structs.replace(settings, policy=PolicySection(file="test://x")))
    assert installed["access"] == ("x", "node@home")
    # Expect that clients and administrators are refused, at the lookup service as well
    proxy = NodeProxy(service.delegate.addresses[0], settings.security())
    with pytest.raises(AccessDeniedError):
        proxy.details()
    proxy.close()
    with PublisherAdapterLight(of(service)) as publisher, pytest.raises(AccessDeniedError):
        publisher.connect_to_delegate("node", "home", timeout=3.0)


@pytest.mark.row("G-19")
@pytest.mark.parametrize("setting", ["archive.folder", "types.folder", "policy.file"])
def test_one_that_is_not_installed_is_told_before_anything_starts(
    settings: Config, installed: dict[str, tuple[Any, ...]], setting: str
) -> None:
    section, key = setting.split(".")
    changed = msgspec.structs.replace(getattr(settings, section), **{key: "other://x"})
    with pytest.raises(ConfigurationError, match="no plug-in 'other'") as failed:
        NodeService(msgspec.structs.replace(settings, **{section: changed}))
    assert failed.value.facts["key"] == setting
    assert not is_held(Path(settings.node.folder))

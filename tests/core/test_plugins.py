"""Plug-ins: what other distributions add, found by their entry points."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jbi_pubsub.pad.delegate.subscribers as delegates
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import repository_of
from jbi_pubsub.core import plugins
from jbi_pubsub.core.config import Config, TypesSection
from jbi_pubsub.core.errors import ConfigurationError, PredicateError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.xpath import compile_predicate, predicate
from jbi_pubsub.core.xpath.predicate import languages

WORD = """
def compile(expression, namespaces):
    if " " in expression:
        raise ValueError("one word, please")
    return lambda root: expression in "".join(root.itertext())
"""
"""A language whose predicates are a word that the metadata must hold."""


def distribution(folder: Path, entry_points: str, **modules: str) -> None:
    """A distribution as pip would install it there."""
    info = folder / "acme_words-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-words\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[jbi_pubsub.plugins]\n{entry_points}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """installed(entry points, module=text): install a distribution for this process; the folder it is in."""

    def install(entry_points: str, **modules: str) -> Path:
        distribution(tmp_path, entry_points, **modules)
        monkeypatch.syspath_prepend(tmp_path)
        plugins._installed.cache_clear()
        plugins._loaded.cache_clear()
        return tmp_path

    yield install
    plugins._installed.cache_clear()
    plugins._loaded.cache_clear()


def test_a_predicate_language_of_an_installed_distribution_is_known(
    installed: Callable[..., Path], figures: Any
) -> None:
    with pytest.raises(PredicateError, match=r"unknown predicate language 'word'\. There (is|are) .*xpath"):
        compile_predicate("Kabul", language="word")
    # Given a distribution with a language
    installed("language.word = acme_words:compile", acme_words=WORD)
    # Expect it to be known without a word more, its refusals too
    assert languages() == ("word", "xpath")
    assert compile_predicate("Kabul", language="word").language == "word"
    with pytest.raises(PredicateError, match="one word, please"):
        compile_predicate("two words", language="word")


@pytest.mark.parametrize(
    ("module", "why"), [("1 / 0", "division by zero"), ("compile = 5", "can't be called"), ("", "no attribute")]
)
def test_a_plugin_that_cannot_be_loaded_is_told_and_left_out(
    module: str, why: str, installed: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    installed("language.broken = acme_broken:compile", acme_broken=module)
    assert languages() == ("xpath",)
    sys.modules.pop("acme_broken", None)
    assert "plug-in language.broken (acme_broken:compile) can't be loaded" in caplog.text
    assert why in caplog.text
    with pytest.raises(PredicateError, match="unknown predicate language 'broken'"):
        compile_predicate("Kabul", language="broken")


@pytest.mark.row("J-09")
@pytest.mark.processes
def test_a_delegate_loads_the_languages_that_are_installed_with_it(
    federation: Any, figures: Any, installed: Callable[..., Path]
) -> None:
    # Given a delegate in a process where a distribution with a language is installed
    folder = installed("language.word = acme_words:compile", acme_words=WORD)
    flags = ("--no-multicast", "--locator", federation.lookups[0].address)
    pad = subprocess.Popen(
        [sys.executable, "-m", "jbi_pubsub", *flags, "pad", "alpha", "rome", "--json"],
        env=os.environ | {"PYTHONPATH": str(folder)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert pad.stdout is not None
        assert json.loads(pad.stdout.readline())["languages"] == ["word", "xpath"]
        # When somebody subscribes in it
        publisher, subscriber = federation.light(), federation.subscriber()
        registration = figures.register(publisher)
        uid = subscriber.register_subscriber(predicate="418th", language="word")
        assert subscriber.wait_matched(uid) == 1
        other = subscriber.register_subscriber(predicate="999th", language="word")
        assert subscriber.wait_matched(other) == 1
        publisher.publish(registration, figures.figure_1)
        # Expect it to decide
        assert subscriber.receive(uid) is not None
        assert subscriber.receive(other, timeout=0.2) is None
    finally:
        federation.stack.close()
        pad.terminate()
        pad.communicate(timeout=60.0)


def test_a_language_that_a_delegate_does_not_know_is_told_to_the_application(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a language that the subscriber knows, and its delegate does not
    monkeypatch.setitem(predicate._languages, "secret", lambda *_: lambda root: root is not None)
    federation.pad()
    figures.register(federation.light())
    subscriber = federation.subscriber()
    notices: list[Any] = []

    class Listener:
        def arrived(self, subscription: str, obj: object) -> None: ...

        def lost(self, subscription: str, notice: Any) -> None:  # noqa: ARG002  # the listener's form
            notices.append(notice)

    refuse = delegates.compile_subscription

    def refusing(request: Any, **options: Any) -> Any:
        if request.language == "secret":
            raise PredicateError("unknown predicate language 'secret'")
        return refuse(request, **options)

    monkeypatch.setattr(delegates, "compile_subscription", refusing)
    # When it subscribes; Expect its listener, its account and its status to say so, once
    uid = subscriber.register_subscriber(predicate="x", language="secret", listener=Listener())
    [notice] = eventually(lambda: notices)
    assert (notice.cause, notice.count) == (Cause.REFUSED, 0)
    assert "unknown predicate language 'secret'" in notice.detail
    assert subscriber.losses(uid) == {"refused": 1}
    assert msgspec.json.encode(subscriber.status()["sessions"][0]["refused"]).count(b"secret") == 1


KEPT = """
from jbi_pubsub.codegen.types.catalogue import MemoryTypes
asked = []
def catalogue(address):
    asked.append(address)
    return MemoryTypes()
"""


@pytest.mark.row("G-37")
def test_a_type_repository_is_kept_where_a_plugin_says(installed: Callable[..., Path], figures: Any) -> None:
    config = Config(types=TypesSection(folder="shelf://room 5"))
    with pytest.raises(ConfigurationError, match="no plug-in 'shelf'"):
        repository_of(config)
    # Given a distribution with a store of its own; Expect types to be kept there
    installed("types.shelf = acme_shelf:catalogue", acme_shelf=KEPT)
    types = repository_of(config)
    assert types.add(read_bundle(figures.schema), by="anna").state == "active"
    assert sys.modules["acme_shelf"].asked == ["room 5"]
    assert types.registry is not None
    assert len(types.registry.all("type")) == 1


@pytest.mark.parametrize(("asked", "meant"), [("shelv", "Did you mean shelf://?"), ("xyz", "Give [types] folder")])
def test_the_name_of_one_that_is_not_installed_is_answered_with_the_nearest(
    asked: str, meant: str, installed: Callable[..., Path]
) -> None:
    installed("types.shelf = acme_shelf:catalogue", acme_shelf=KEPT)
    with pytest.raises(ConfigurationError, match="installed: shelf") as failed:
        repository_of(Config(types=TypesSection(folder=f"{asked}://x")))
    assert failed.value.hint.startswith(meant)


def test_one_that_can_not_be_loaded_is_not_taken_for_a_mistyped_name(installed: Callable[..., Path]) -> None:
    installed("types.shelf = acme_none:catalogue")
    with pytest.raises(ConfigurationError, match="no plug-in 'shelf'") as failed:
        repository_of(Config(types=TypesSection(folder="shelf://x")))
    assert "Did you mean" not in failed.value.hint


@pytest.mark.parametrize(
    ("kind", "told"), [("typs", "Did you mean types?"), ("q", f"There are {', '.join(plugins.KINDS)}")]
)
def test_one_of_an_unknown_kind_is_told(
    kind: str, told: str, installed: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    installed(f"{kind}.shelf = acme_shelf:catalogue", acme_shelf=KEPT)
    assert plugins.names("types") == ()
    assert f"plug-in {kind}.shelf is of an unknown kind. {told}" in caplog.text


def test_all_kinds_that_are_asked_for_are_known_and_described() -> None:
    # Given the source, and the page on configuration; When a kind is asked for there, expect it in both
    top = Path(plugins.__file__).parent.parent
    files = "".join(file.read_text() for room in top.iterdir() if room.is_dir() for file in room.rglob("*.py"))
    asked = set(re.findall(r"plugins\.(?:find|named|names)\(\s*\"(\w+)\"", files))
    page = (top.parent / "docs" / "configuration.md").read_text()
    assert asked == set(plugins.KINDS) == set(re.findall(r"^- `(\w+)\.NAME`", page, re.MULTILINE))

"""One schema per type, shared between threads and, as models on disk, between processes."""

from __future__ import annotations

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.opening import Opener
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.child import Children
from jbi_pubsub.core.errors import ChildError, SchemaError, TypeConflictError
from jbi_pubsub.core.info_object import TypeName

XS = b'xmlns:xs="http://www.w3.org/2001/XMLSchema"'


@pytest.fixture
def imagery_bundle(make):
    return read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd")


def test_an_identical_schema_is_accepted_and_gives_the_same_type(imagery_bundle, make):
    types = TypeRepository()
    first = types.open(imagery_bundle)
    assert types.open(imagery_bundle) is first
    assert types.open(read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd")) is first
    assert types.find(first.type) is first


def test_layout_comments_and_file_names_do_not_make_another_schema(make, imagery_bundle):
    schema = (make.fixtures / "intel_imagery/Intel_Imagery.xsd").read_bytes()
    relaid = schema.replace(b"\n  ", b"\n\n\t").replace(b"<!-- invariant -->", b"<!-- as usual -->")
    types = TypeRepository()
    first = types.open(imagery_bundle)
    assert types.open(read_bundle(relaid)) is types.open(read_bundle(schema)) is first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'name="publisher" type="xs:token"', b'name="publisher" type="xs:string"'),
        (b'minOccurs="0" jbi:variance="variant"', b'jbi:variance="variant"'),
        (b'jbi:variance="variant"', b'jbi:variance="invariant"'),
        (XS, XS + b' xmlns:y="urn:y"'),
    ],
)
def test_a_second_different_schema_for_a_type_is_refused(make, old, new):
    schema = (make.fixtures / "intel_imagery/Intel_Imagery.xsd").read_bytes().replace(b"<!-- variant -->", b"")
    types = TypeRepository()
    known = types.open(read_bundle(schema))
    assert schema != schema.replace(old, new)
    with pytest.raises(TypeConflictError, match=r"mil\.af\.rl\.jbi\.Intel_Imagery 1\.0") as refused:
        types.open(read_bundle(schema.replace(old, new)))
    assert refused.value.facts["known"] == known.digest
    assert types.find(known.type) is known


def test_other_marks_make_another_schema(make):
    schema = make.root(make.leaf("a"), make.leaf("b"))
    types = TypeRepository()
    types.open(make.bundle(schema))
    types.open(make.bundle(schema, note="notes and file names are for people"))
    with pytest.raises(TypeConflictError):
        types.open(make.bundle(schema, variant=["/r/b"]))


def test_another_version_may_have_another_schema(make):
    types = TypeRepository()
    first = types.open(read_bundle(make.root(make.leaf("a")), root="r"))
    second = types.open(read_bundle(make.root(make.leaf("b")), root="r", version="2"))
    assert [str(t.type) for t in (first, second)] == ["r 1.0", "r 2"]
    assert types.find(TypeName("r", "2")) is second
    assert types.find(TypeName("r", "3")) is None


def test_a_forgotten_type_may_come_back_with_another_schema(make):
    types = TypeRepository()
    types.open(make.bundle(make.root(make.leaf("a"))))
    types.forget(TypeName("r"))
    types.forget(TypeName("r"))
    assert types.open(make.bundle(make.root(make.leaf("b")))).model.invariants[0][0] == "/r/b"


def test_a_forgotten_type_that_somebody_holds_is_the_same_again(make):
    # Given a type that was forgotten, and is held yet
    types = TypeRepository()
    held = types.open(make.bundle(make.root(make.leaf("a"))))
    types.forget(TypeName("r"))
    # When its schema comes again, expect that one
    assert types.open(make.bundle(make.root(make.leaf("a")))) is held is types.find(TypeName("r"))
    # And none where the type has another schema by now
    types.forget(TypeName("r"))
    types.open(make.bundle(make.root(make.leaf("b"))))
    with pytest.raises(TypeConflictError):
        types.open(make.bundle(make.root(make.leaf("a"))))


def test_the_number_of_types_is_bounded(make):
    types = TypeRepository(limit=1)
    another = read_bundle(make.root(make.leaf("a")), root="r", name="another")
    types.open(make.bundle(make.root(make.leaf("a"))))
    with pytest.raises(SchemaError, match="1 information object types are known"):
        types.open(another)
    types.forget(TypeName("r"))
    assert types.open(another).type == TypeName("another")


def test_the_bytes_of_types_are_bounded(make, monkeypatch):
    monkeypatch.setattr("jbi_pubsub.codegen.repository.MAX_TYPES_BYTES", 1_000)
    types = TypeRepository()
    types.open(make.bundle(make.root(make.leaf("a" * 300))))
    with pytest.raises(SchemaError, match="1 information object types are known"):
        types.open(read_bundle(make.root(make.leaf("b" * 700)), root="r", name="another"))


def test_of_many_threads_that_open_one_type_all_get_the_same(make):
    types = TypeRepository()
    bundles = [make.bundle(make.root(make.leaf("a"))) for _ in range(8)]
    start = threading.Barrier(8)

    def work(bundle):
        start.wait()
        return types.open(bundle)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(work, bundles)))) == 1


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    """test_opening.py is about child processes; here they would only take their time."""

    def run(_self: Children, function: str, data: bytes, **_: Any) -> bytes:
        module, _, name = function.partition(":")
        return getattr(importlib.import_module(module), name)(data)

    monkeypatch.setattr(Children, "run", run)


class Refusing(Children):
    """Has no place for anybody."""

    def run(self, *_: Any, **__: Any) -> bytes:
        raise ChildError("no child process was free", cause="busy", seconds=0.0)


def test_a_cached_schema_is_used_instead_of_opening_it_again(imagery_bundle, tmp_path, figure):
    # Given a process that has opened a schema and kept it on disk
    predicate = "/metadata/RequiredMetadata/Type='x'"
    made = TypeRepository(cache_dir=tmp_path / "cache", opener=Opener()).open(imagery_bundle)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".type"]
    # When another one opens it that could not do so anew
    again = TypeRepository(cache_dir=tmp_path / "cache", opener=Opener(children=Refusing())).open(imagery_bundle)
    # Expect the same type
    assert again.model == made.model
    assert again.entries(figure(2)) == made.entries(figure(2))
    assert again.explain(predicate) == made.explain(predicate)


@pytest.mark.parametrize("damage", [b"", b"{", b"\x81\xa4type\x01", b"\xff\xfe", b"\xc0"])
def test_a_damaged_cache_file_is_made_anew(imagery_bundle, tmp_path, damage):
    opener = Opener()
    made = TypeRepository(cache_dir=tmp_path, opener=opener).open(imagery_bundle)
    [path] = tmp_path.iterdir()
    good = path.read_bytes()
    path.write_bytes(damage)
    assert TypeRepository(cache_dir=tmp_path, opener=Opener()).open(imagery_bundle).model == made.model
    again = TypeRepository(cache_dir=tmp_path, opener=Opener(children=Refusing())).open(imagery_bundle)
    assert again.model == made.model
    path.unlink()
    assert TypeRepository(cache_dir=tmp_path, opener=opener).open(imagery_bundle).model == made.model
    assert path.read_bytes() == good


def test_a_cache_that_can_not_be_written_costs_only_time(imagery_bundle, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert TypeRepository(cache_dir=tmp_path / "file" / "cache").open(imagery_bundle).root == "metadata"


def test_the_cache_goes_by_content_and_by_the_wanted_name(make, tmp_path):
    types = TypeRepository(cache_dir=tmp_path)
    types.open(read_bundle(make.root(make.leaf("a")), root="r"))
    types.open(read_bundle(make.root(make.leaf("a")), root="r", name="other"))
    types.open(read_bundle(make.root(make.leaf("b")), root="r", version="2"))
    assert len(list(tmp_path.iterdir())) == 3


def test_documentation_does_not_make_another_schema(make):
    def bundle(text):
        note = f"<xs:annotation><xs:documentation>{text}</xs:documentation></xs:annotation>"
        return make.bundle(make.schema(f'{note}<xs:element name="r" type="xs:string"/>'))

    types = TypeRepository()
    assert types.open(bundle("one")) is types.open(bundle("<b xmlns='urn:other'>another</b>"))
    with pytest.raises(TypeConflictError):
        types.open(make.bundle(make.schema('<xs:element name="r" type="xs:token"/>')))

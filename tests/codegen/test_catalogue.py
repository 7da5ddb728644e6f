"""The type repository: what is kept of types, by whom it was changed, and what a disk may do to it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.catalogue import FILE, FolderTypes, MemoryTypes
from jbi_pubsub.codegen.types.registry import Registry
from jbi_pubsub.core.descriptors import MAX_PROPERTIES, MAX_PROPERTY_BYTES, Descriptor, Key, StoredType, TypeChange
from jbi_pubsub.core.errors import (
    ConfigurationError,
    OversizeError,
    SchemaError,
    StorageError,
    TypeConflictError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import SchemaBundle, TypeName

pytestmark = pytest.mark.processes

KEY: Key = ("type", TypeName("report", "1.0"))
Opened = Callable[[], TypeRepository]


@pytest.fixture(params=["folder", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens the same repository again and again: two stores, one behaviour."""
    memory = MemoryTypes()
    standing: list[Registry] = []
    ticks = itertools.count(1000)

    def again() -> TypeRepository:
        for registry in standing:
            registry.close()
        made = memory if request.param == "memory" else FolderTypes(tmp_path / "types")
        standing[:] = [Registry(made, wall=lambda: float(next(ticks)))]
        return TypeRepository(registry=standing[0])

    yield again
    standing[0].close()


def bundle(make: Any, *leaves: str, name: str = "report", version: str = "1.0") -> SchemaBundle:
    return read_bundle(make.root(*map(make.leaf, leaves or ("a",))), root="r", name=name, version=version)


def added(types: TypeRepository, given: SchemaBundle, **said: Any) -> Descriptor:
    return types.add(given, by=said.pop("by", "anna"), **said)


@pytest.mark.row("G-37", "G-115")
def test_a_type_is_added_read_listed_changed_and_removed(opened: Opened, make: Any) -> None:
    # Given two versions of a type, one the parent of the other
    types = opened()
    first, second = bundle(make), bundle(make, "a", "b", version="2")
    told = added(types, first, description="what patrols tell")
    added(types, second, parent=TypeName("report"))
    # Expect what was said, after a restart too, and the schemas byte for byte
    registry = opened().registry
    assert registry is not None
    assert registry.find(KEY) == told
    assert (told.by, told.created, told.state, told.description) == ("anna", 1000.0, "active", "what patrols tell")
    assert [(str(d.type), d.parent) for d in registry.all("type")] == [
        ("report 1.0", None), ("report 2", TypeName("report")),
    ]  # fmt: skip
    assert (registry.schema(KEY), registry.schema(("type", TypeName("report", "2")))) == (first, second)
    # When what may change changes; Expect it so, after a restart too
    registry.describe(KEY, "what patrols have seen", "bert")
    registry.set_state(KEY, "deprecated", "bert")
    registry = opened().registry
    assert registry is not None
    now = registry.find(KEY)
    assert now is not None
    assert (now.description, now.state, now.created) == ("what patrols have seen", "deprecated", 1000.0)
    registry.set_state(KEY, "active", "carl")
    # and its history, who, when and what, also when it is gone, but not before its children
    with pytest.raises(ConfigurationError, match=r"parent of report 2"):
        registry.remove(KEY, "bert", users=())
    assert registry.remove(("type", TypeName("report", "2")), "bert", users=())
    assert registry.remove(KEY, "bert", users=())
    registry = opened().registry
    assert registry is not None
    assert registry.find(KEY) is None
    assert registry.all("type") == ()
    with pytest.raises(UnknownUidError, match=r"report 1\.0"):
        registry.schema(KEY)
    assert [(c.who, c.what.split(",")[0]) for c in registry.history(KEY)] == [
        ("anna", "added"), ("bert", "described"), ("bert", "deprecated"), ("carl", "made active again"),
        ("bert", "removed"),
    ]  # fmt: skip
    assert [c.when for c in registry.history(KEY)] == sorted(c.when for c in registry.history(KEY))


@pytest.mark.row("G-115")
def test_a_property_is_any_bytes_on_a_type(opened: Opened, make: Any) -> None:
    types = opened()
    added(types, bundle(make))
    registry = types.registry
    assert registry is not None
    picture = bytes(range(256)) * 40
    registry.set_property(KEY, "icon", picture, "anna")
    registry.set_property(KEY, "empty", b"", "anna")
    registry.set_property(KEY, "icon", picture[::-1], "anna")
    registry = opened().registry
    assert registry is not None
    assert [(p.name, p.size) for p in registry.properties(KEY)] == [("empty", 0), ("icon", len(picture))]
    assert registry.properties(KEY)[1].digest == hashlib.sha256(picture[::-1]).hexdigest()
    assert registry.property(KEY, "icon") == picture[::-1]
    registry.set_property(KEY, "empty", None, "anna")
    assert [p.name for p in registry.properties(KEY)] == ["icon"]
    # and what makes no sense has an error that says so
    for name in ("empty", "\x1b[2J"):
        with pytest.raises((UnknownUidError, ConfigurationError)):
            registry.set_property(KEY, name, None, "anna")
    with pytest.raises(UnknownUidError, match="nothing"):
        registry.property(KEY, "nothing")
    with pytest.raises(OversizeError):
        registry.set_property(KEY, "large", bytes(MAX_PROPERTY_BYTES + 1), "anna")
    with pytest.raises(ConfigurationError, match="name"):
        registry.set_property(KEY, "", b"", "anna")
    with pytest.raises(UnknownUidError, match="ghost"):
        registry.set_property(("type", TypeName("ghost")), "a", b"", "anna")
    for number in range(MAX_PROPERTIES - 1):
        registry.set_property(KEY, f"p{number}", b"", "anna")
    with pytest.raises(OversizeError, match=str(MAX_PROPERTIES)):
        registry.set_property(KEY, "one more", b"", "anna")
    # It goes with its type
    registry.remove(KEY, "anna", users=())
    added(types if registry is types.registry else TypeRepository(registry=registry), bundle(make))
    assert registry.properties(KEY) == ()


@pytest.mark.row("G-115")
def test_an_attribute_has_names_and_schemas_of_its_own(opened: Opened, make: Any) -> None:
    # An attribute called as a type is, with another schema
    types = opened()
    speed, report = bundle(make, "value"), bundle(make)
    added(types, report)
    told = added(types, speed, kind="attribute", description="knots")
    registry = opened().registry
    assert registry is not None
    assert registry.all("attribute") == (told,)
    assert (registry.schema(told.key), registry.schema(KEY)) == (speed, report)
    registry.set_state(told.key, "deprecated", "anna")
    registry.remove(told.key, "anna", users=())
    assert registry.all("attribute") == ()
    assert registry.schema(KEY) == report


def test_a_type_has_one_schema(opened: Opened, make: Any) -> None:
    # Given a type in the repository
    types = opened()
    known = added(types, bundle(make))
    # When the same is added again, laid out differently; Expect what was there
    relaid = make.root(make.leaf("a")).replace(b"><", b">\n<")
    assert added(types, read_bundle(relaid, root="r", name="report")) == known
    # When another one is added, or published; Expect both digests in the error, and nothing changed
    for take in (added, lambda types, given: types.open(given)):
        with pytest.raises(TypeConflictError) as refused:
            take(types, bundle(make, "b"))
        assert refused.value.facts["known"] == known.digest
        assert refused.value.facts["offered"] not in ("", known.digest)
        assert all(str(refused.value.facts[side]) in str(refused.value) for side in ("known", "offered"))
    assert types.registry is not None
    assert types.registry.schema(KEY) == bundle(make)
    # and one without a schema is another one, too
    with pytest.raises(TypeConflictError):
        types.untyped(KEY[1])
    # and what is published here can't be added with another schema
    types.open(bundle(make, name="other"))
    with pytest.raises(TypeConflictError, match=r"other 1\.0"):
        added(types, bundle(make, "b", name="other"))


def test_what_is_in_use_is_removed_by_force_alone(opened: Opened, make: Any) -> None:
    types = opened()
    added(types, bundle(make))
    registry = types.registry
    assert registry is not None
    users = ("2 registrations",)
    with pytest.raises(ConfigurationError, match="in use: 2 registrations"):
        registry.remove(KEY, "anna", users=users)
    # When it is removed by force; Expect nobody to find it, and its schema for those that use it
    assert not registry.remove(KEY, "anna", users=users, force=True)
    registry = opened().registry
    assert registry is not None
    assert (registry.find(KEY), registry.all("type"), registry.schema(KEY)) == (None, (), bundle(make))
    types = TypeRepository(registry=registry)
    # and no other schema in its place as long as it is used
    for take in (added, lambda types, given: types.open(given)):
        with pytest.raises(TypeConflictError, match="removed"):
            take(types, bundle(make, "b"))
    # and no copy of it from elsewhere
    held = StoredType(Descriptor("type", KEY[1], types.open(bundle(make)).digest), bundle(make))
    assert registry.keep(held, "copy of alpha").state == "removed"
    types.forget(KEY[1])
    # When nothing uses it any more; Expect it to go for good
    assert registry.remove(KEY, "anna", users=())
    assert added(types, bundle(make, "b")).state == "active"


def test_a_copy_is_kept_of_what_another_repository_holds(opened: Opened, make: Any) -> None:
    types = opened()
    elsewhere = TypeRepository(registry=Registry(MemoryTypes(), wall=lambda: 7.0))
    added(elsewhere, bundle(make, "p", name="base"))
    told = added(elsewhere, bundle(make), parent=TypeName("base"), description="theirs")
    registry = types.registry
    assert registry is not None
    kept = registry.keep(StoredType(told, bundle(make)), "copy of alpha")
    assert (kept.created, kept.by, kept.description, kept.parent) == (7.0, "anna", "theirs", None)
    assert registry.keep(StoredType(told, bundle(make)), "copy of alpha") == kept
    # whatever the other one says of it
    rude = msgspec.structs.replace(
        told, type=TypeName("rude"), by="x" * 9_999, description="x" * 9_999, state="removed"
    )
    taken = registry.keep(StoredType(rude, bundle(make, name="rude")), "copy of alpha")
    assert (len(taken.by), len(taken.description), taken.state) == (200, 4_000, "active")
    assert [(c.who, c.what.split(",")[0]) for c in registry.history(KEY)] == [("copy of alpha", "copied")]
    other = Descriptor("type", KEY[1], "another digest")
    with pytest.raises(TypeConflictError, match="another digest"):
        registry.keep(StoredType(other, bundle(make, "b")), "copy of bravo")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda t, b: t.add(b, by="a", description="x" * 5_000), OversizeError),
        (lambda t, b: t.add(b, by="a", description="\x1b[2J"), ConfigurationError),
        (lambda t, b: t.add(b, by="a", parent=TypeName("ghost")), UnknownUidError),
        (lambda t, _: t.add(SchemaBundle("a.xsd", (("a.xsd", b"<a/>"),)), by="a"), SchemaError),
        (lambda t, _: t.registry.describe(KEY, "x", "a"), UnknownUidError),
        (lambda t, _: t.registry.set_state(KEY, "active", "a"), UnknownUidError),
        (lambda t, _: t.registry.set_state(KEY, "removed", "a"), ConfigurationError),
        (lambda t, _: t.registry.remove(KEY, "a", users=()), UnknownUidError),
        (lambda t, _: t.registry.history(KEY), UnknownUidError),
    ],
)
def test_bad_input_changes_nothing(opened: Opened, make: Any, change: Callable[..., Any], kind: type) -> None:
    types = opened()
    with pytest.raises(kind):
        change(types, bundle(make))
    assert types.registry is not None
    assert types.registry.all("type") == ()


def test_a_repository_has_an_end(opened: Opened, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given bounds of three types, and of so many bytes as two of them have
    types = opened()
    for number in range(2):
        added(types, bundle(make, name=f"t{number}"))
    monkeypatch.setattr("jbi_pubsub.codegen.types.catalogue.MAX_DOCUMENTS_BYTES", 3 * len(make.root(make.leaf("a"))))
    with pytest.raises(OversizeError, match="bytes of schema documents"):
        added(types, bundle(make, *"abcdefghijklmnop", name="large"))
    monkeypatch.setattr("jbi_pubsub.codegen.types.registry.MAX_DESCRIPTORS", 3)
    added(types, bundle(make, name="t2"))
    with pytest.raises(OversizeError, match="limit of 3 types"):
        added(types, bundle(make, name="t3"))
    assert types.registry is not None
    assert [d.type.name for d in types.registry.all("type")] == ["t0", "t1", "t2"]


def test_the_history_of_a_type_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jbi_pubsub.codegen.types.catalogue.MAX_HISTORY", 20)
    for store in (MemoryTypes(), FolderTypes(tmp_path / "types")):
        monkeypatch.setattr("jbi_pubsub.codegen.types.catalogue.MAX_CHANGES", 1_000)
        store.put(Descriptor(*KEY, "d"), TypeChange(0.0, "a", "added"), SchemaBundle("a", (("a", b"x"),)))
        for number in range(30):
            store.put_property(KEY, "p", None, TypeChange(float(number), "a", "x"))
        assert [c.when for c in store.history(KEY)] == [float(n) for n in range(10, 30)]
        # and so has that of all together, which the first give up
        monkeypatch.setattr("jbi_pubsub.codegen.types.catalogue.MAX_CHANGES", 25)
        for number in range(25):
            store.drop(("type", TypeName(f"t{number}")), TypeChange(0.0, "a", "removed"))
        assert store.history(KEY) == ()
        assert len(store.history(("type", TypeName("t24")))) == 1
        store.close()


# -- a folder -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, make: Any) -> Path:
    """With two types, of one and of two documents, and a property; nobody has it open."""
    path = tmp_path / "types"
    types = TypeRepository(registry=Registry(FolderTypes(path)))
    added(types, bundle(make))
    documents = {
        "a.xsd": make.schema('<xs:include schemaLocation="b.xsd"/><xs:element name="r" type="T"/>'),
        "b.xsd": make.schema('<xs:simpleType name="T"><xs:restriction base="xs:string"/></xs:simpleType>'),
    }
    added(types, SchemaBundle("a.xsd", tuple(documents.items()), json.dumps({"root": "r"}).encode(), TypeName("two")))
    assert types.registry is not None
    types.registry.set_property(KEY, "icon", b"picture", "anna")
    types.registry.close()
    return path


def everything(path: Path) -> list[Any]:
    """All that a repository says."""
    store = FolderTypes(path, readonly=True)
    try:
        return [
            (told, store.bundle(key), store.history(key), [store.property(key, p.name) for p in store.properties(key)])
            for told in store.all()
            for key in [told.key]
        ]
    finally:
        store.close()


@pytest.mark.row("G-15")
def test_rows_and_documents_copied_elsewhere_are_the_same_repository(folder: Path, tmp_path: Path) -> None:
    # Given rows in SQLite, documents in files that they name
    names = {path.name for path in folder.iterdir()}
    assert {name for name in names if name.endswith(".xsd")} == {
        f"{hashlib.sha256(data).hexdigest()}.xsd" for _, b, _, _ in everything(folder) for _, data in b.documents
    }
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as base:
        rows = base.execute("SELECT name, version, document, sha256 FROM documents ORDER BY name, position").fetchall()
    base.close()
    assert [(name, document) for name, _, document, _ in rows] == [
        ("report", "schema.xsd"), ("two", "a.xsd"), ("two", "b.xsd"),
    ]  # fmt: skip
    # When the file and the documents are copied to another node
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for path in (folder / FILE, *folder.glob("*.xsd")):
        shutil.copy(path, copy)
    # Expect the same repository, that goes on by itself
    assert everything(copy) == everything(folder)
    registry = Registry(FolderTypes(copy))
    registry.remove(KEY, "anna", users=())
    registry.close()
    assert [str(d.type) for d, *_ in everything(copy)] == ["two 1.0"]
    assert len(list(copy.glob("*.xsd"))) == 2
    assert len(everything(folder)) == 2


def test_one_process_has_a_folder_and_any_number_read_it(folder: Path) -> None:
    store = FolderTypes(folder)
    with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
        FolderTypes(folder)
    assert len(everything(folder)) == 2
    store.close()
    FolderTypes(folder).close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    # Given a database of another program, text in its place, a later version, a file instead of the folder, no folder
    other, text, later = tmp_path / "other", tmp_path / "text", tmp_path / "later"
    for path in (other, text):
        path.mkdir()
    with closing(sqlite3.connect(other / FILE, isolation_level=None)) as base:
        base.execute("CREATE TABLE mine (a)")
    base.close()
    (text / FILE).write_text("no database at all, but long enough to be one" * 100)
    FolderTypes(later).close()
    with closing(sqlite3.connect(later / FILE, isolation_level=None)) as base:
        base.execute("PRAGMA user_version = 9")
    base.close()
    (tmp_path / "file").write_text("x")
    before = {path: (path / FILE).read_bytes() for path in (other, text, later)}
    # Expect each to be refused by name, and left as it was
    for path in (other, text, later, tmp_path / "file", Path("/proc/nowhere")):
        with pytest.raises(StorageError, match=str(path)) as refused:
            FolderTypes(path)
        assert refused.value.hint
    assert {path: (path / FILE).read_bytes() for path in before} == before
    with pytest.raises(StorageError, match="holds no type repository"):
        FolderTypes(tmp_path, readonly=True)


def test_damaged_documents_are_named_and_the_rest_goes_on(folder: Path, make: Any) -> None:
    # Given one document with a bit turned, or none any more
    document = folder / f"{hashlib.sha256(make.root(make.leaf('a'))).hexdigest()}.xsd"
    good = document.read_bytes()
    for bad in (good[:100] + bytes([good[100] ^ 4]) + good[101:], good[:-1], b"", None):
        document.unlink(missing_ok=True)
        if bad is not None:
            document.write_bytes(bad)
        registry = Registry(FolderTypes(folder))
        # Expect that file to be named with its type, and the other type as it was
        (fault,) = registry.faults()
        assert document.name in fault
        assert "report 1.0" in fault
        with pytest.raises(StorageError, match=document.name):
            registry.schema(KEY)
        assert registry.schema(("type", TypeName("two"))).main == "a.xsd"
        # When the schema is added again; Expect it to be whole
        added(TypeRepository(registry=registry), bundle(make))
        assert registry.faults() == ()
        assert registry.schema(KEY) == bundle(make)
        registry.close()


def test_any_turned_bit_of_the_rows_is_seen_or_harmless(folder: Path) -> None:
    # Given the SQLite file with a bit turned, here and there
    path = folder / FILE
    good, told = path.read_bytes(), everything(folder)
    rng = random.Random(5)
    seen = 0
    for _ in range(300):
        at = rng.randrange(len(good))
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
        # Expect no other error than ours, and never another schema, digest or property than was put
        try:
            store = FolderTypes(folder, readonly=True)
        except StorageError as exc:
            assert str(path) in str(exc)  # noqa: PT017  # one of several good ends
            seen += 1
            continue
        try:
            faults = store.faults()
            for descriptor, schema, _, properties in told:
                try:
                    found = store.find(descriptor.key)
                    if found is not None:
                        assert found == descriptor
                        assert store.bundle(descriptor.key) == schema
                        assert [store.property(found.key, p.name) for p in store.properties(found.key)] in (
                            properties,
                            [],
                        )
                except StorageError as exc:
                    assert str(path) in str(exc) or ".xsd" in str(exc)  # noqa: PT017  # as above
            seen += bool(faults)
        except StorageError:
            seen += 1
        finally:
            store.close()
    assert seen > 5
    path.write_bytes(good)


def test_a_full_disk_refuses_the_change_and_keeps_what_was_there(folder: Path, make: Any) -> None:
    # Given a folder that no file may grow in (a bound of this process's files)
    before = everything(folder)
    registry = Registry(FolderTypes(folder))
    types = TypeRepository(registry=registry)
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    more = bundle(make, *(f"leaf{n}" for n in range(50)), name="more")
    types.add(more, by="anna")  # opened once: child processes have the same bound
    registry.remove(("type", TypeName("more")), "anna", users=())
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, bounds[1]))
        # When something is added and changed; Expect the folder to be named
        with pytest.raises(StorageError, match=str(folder)):
            types.add(more, by="anna")
        with pytest.raises(StorageError, match=str(folder)):
            registry.set_property(KEY, "icon", bytes(100_000), "anna")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
        signal.signal(signal.SIGXFSZ, handler)
    # Expect all as it was, no file left behind, and the change to be taken when there is room
    assert list(folder.glob("*.tmp")) == []
    assert registry.faults() == ()
    types.add(more, by="anna")
    registry.remove(("type", TypeName("more")), "anna", users=())
    registry.close()
    assert everything(folder) == before


KILLED = """
import sys
from pathlib import Path
from jbi_pubsub.codegen.types.catalogue import FolderTypes
from jbi_pubsub.core.descriptors import Descriptor, TypeChange
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
store = FolderTypes(Path(sys.argv[1]))
print("open", flush=True)
number = int(sys.argv[2])
while True:
    number += 1
    data = f"<schema number='{number}'/>".encode() * 50
    type_ = TypeName(f"t{number}")
    store.put(Descriptor("type", type_, f"d{number}"), TypeChange(0.0, "a", "added"), SchemaBundle("m", (("m", data),)))
    store.put_property(("type", type_), "p", data, TypeChange(0.0, "a", "property"))
    if number % 3 == 0:
        store.drop(("type", type_), TypeChange(0.0, "a", "removed"))
    print(number, flush=True)
"""


@pytest.mark.processes
def test_a_kill_at_any_moment_leaves_each_change_whole(tmp_path: Path) -> None:
    # Given a process that adds, changes and removes, and is killed at a random moment, again and again
    folder, done = tmp_path / "types", 0
    rng = random.Random(7)
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), str(done)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(rng.randrange(1, 6)):
            done = int(process.stdout.readline())
        time.sleep(rng.random() * 0.02)
        process.kill()
        done = max([done, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        # Expect all that it has told of, whole, nothing half done, and nothing damaged
        store = FolderTypes(folder)
        assert store.faults() == ()
        there = {int(d.type.name[1:]) for d in store.all()}
        assert {n for n in range(1, done + 1) if n % 3} <= there
        assert not {n for n in there if n % 3 == 0 and n <= done}
        for number in there - {done + 1}:
            data = f"<schema number='{number}'/>".encode() * 50
            key: Key = ("type", TypeName(f"t{number}"))
            assert store.bundle(key).documents == (("m", data),)
            assert store.property(key, "p") == data
        assert list(folder.glob("*.tmp")) == []
        for number in there - set(range(1, done + 1)):  # begun, not told of: it may be there, whole
            store.drop(("type", TypeName(f"t{number}")), TypeChange(0.0, "a", "removed"))
        store.close()


CUT_OFF = """
import os, signal, sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("PRAGMA cache_size = 5")
base.execute("BEGIN IMMEDIATE")
for number in range(2000):
    row = (number, "type", "x", "1", 0.0, "a", "x" * 500)
    base.execute("INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", row)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_change_that_was_cut_off_is_undone_by_whoever_may(folder: Path) -> None:
    # Given a process that was killed when half of its change was in the file
    before = everything(folder)
    subprocess.run([sys.executable, "-c", CUT_OFF, str(folder / FILE)], check=False)
    assert (folder / f"{FILE}-journal").stat().st_size
    # When somebody would read it without the right to change it; Expect an error that says what to do
    with pytest.raises(StorageError) as refused:
        FolderTypes(folder, readonly=True)
    assert "repairs it" in refused.value.hint
    # When it is opened to be changed; Expect it as it was
    FolderTypes(folder).close()
    assert everything(folder) == before


def test_many_threads_at_once(opened: Opened, make: Any) -> None:
    # Given eight threads that add, change, read and remove types of their own, and one that all want
    types = opened()
    registry = types.registry
    assert registry is not None
    schema = bundle(make, name="all")
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            key: Key = ("type", TypeName(name))
            for turn in range(5):
                types.add(schema, by=name)
                types.add(msgspec.structs.replace(schema, type=key[1]), by=name)
                registry.set_property(key, "turn", str(turn).encode(), name)
                assert registry.property(key, "turn") == str(turn).encode()
                assert registry.schema(key).documents == schema.documents
                registry.all("type")
                registry.remove(key, name, users=())
        except BaseException as exc:  # noqa: BLE001  # told by the test
            failed.append(exc)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    # Expect one to be left, added once, and a whole history of each
    assert [d.type.name for d in registry.all("type")] == ["all"]
    assert len(registry.history(("type", TypeName("all")))) == 1
    assert [len(registry.history(("type", TypeName(f"t{n}")))) for n in range(8)] == [15] * 8
    assert registry.faults() == ()

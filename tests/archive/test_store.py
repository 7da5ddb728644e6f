"""All volumes together: whatever files objects lie in, they are found by position, once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.archive.items import METADATA_STORES, PAYLOAD_STORES
from jbi_pubsub.archive.log import Log
from jbi_pubsub.archive.pack import Awake, Pack, Sealable, remove, seal
from jbi_pubsub.archive.store import LOG, PACKS, VolumeStore
from jbi_pubsub.archive.volume import LogVolume
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Head, pack

ID = b"an archive's id."
SMALL = 1_500


def put(log: Log, *positions: int) -> None:
    run = []
    for position in positions:
        head = Head("", "registration-1", position, 1.0, "track", "1.0", b"<m>%d</m>" % position, 50)
        run.append((position, pack(head, b"%050d" % position).parts))
    log.append(run, 5.0)


def sealed(folder: Path, first: int) -> Path:
    """Make a pack of a volume of the log, which is taken away."""
    volume = LogVolume(folder / LOG / f"{first:020d}.log", ID)
    volume.recover()
    (folder / PACKS).mkdir(exist_ok=True)
    head = volume.head
    path = seal(
        Sealable(ID, head.first, volume.last, head.previous, head.began), list(volume.read(0, 2**62)), folder / PACKS,
        metadata=METADATA_STORES["deflated"], payloads=PAYLOAD_STORES["file"],
    )  # fmt: skip
    volume.close()
    return path


@given(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=60), data=st.data())
@settings(max_examples=40, deadline=None)
def test_objects_are_found_wherever_they_lie(
    gaps: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Given objects with gaps in their positions, some volumes packed, also while somebody looks
    folder = tmp_path_factory.mktemp("archive")
    log = Log(folder / LOG, ID, volume_bytes=SMALL)
    store = VolumeStore(folder, ID)
    positions: list[int] = []
    for gap in gaps:
        positions.append((positions[-1] if positions else 0) + gap)
        put(log, positions[-1])
        log.sync(positions[-1])
        if data.draw(st.integers(0, 9)) == 0:
            store.refresh(log.synced)
    firsts = [int(path.stem) for path in sorted((folder / LOG).glob("*.log"))][:-1]
    for first in data.draw(st.lists(st.sampled_from(firsts), unique=True)) if firsts else []:
        sealed(folder, first)
        if data.draw(st.booleans()):
            (folder / LOG / f"{first:020d}.log").unlink()  # else its sealer has died just now
    store.refresh(log.synced)
    # Expect each once, in either order, in any part, and by position
    assert store.troubles == []
    end = positions[-1] + 2
    after, up_to = sorted((data.draw(st.integers(0, end)), data.draw(st.integers(0, end))))
    here = [position for position in positions if after < position <= up_to]
    assert [record.position for record in store.read(after, up_to)] == here
    assert [record.position for record in store.read(after, up_to, newest_first=True)] == here[::-1]
    asked = sorted(data.draw(st.sets(st.integers(0, end))))
    assert [record.position for record in store.get(asked)] == [p for p in asked if p in positions]
    assert [record.position for record in store.metadata(asked[::-1])] == [p for p in asked[::-1] if p in positions]
    for record in store.get(positions):
        assert record.data.endswith(b"%050d" % record.position)
    store.close()
    log.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five volumes of some objects each."""
    log = Log(tmp_path / LOG, ID, volume_bytes=SMALL)
    for position in range(1, 30):
        put(log, position)
    log.close()
    return tmp_path


def test_a_missing_volume_is_named_and_the_others_are_there(folder: Path) -> None:
    files = sorted((folder / LOG).glob("*.log"))
    assert len(files) >= 3
    first, behind = int(files[1].stem), int(files[2].stem)
    files[1].unlink()
    store = VolumeStore(folder, ID)
    store.refresh(29)
    assert [record.position for record in store.read(0, 99)] == [p for p in range(1, 30) if not first <= p < behind]
    (trouble,) = store.troubles
    assert f"between position {first - 1} and {behind - 1}" in trouble


def test_a_volume_of_another_archive_is_named_and_passed_over(folder: Path, tmp_path: Path) -> None:
    other = Log(tmp_path / "other" / LOG, b"another archive.")
    put(other, 100)
    other.close()
    (tmp_path / "other" / LOG / f"{100:020d}.log").rename(folder / LOG / f"{100:020d}.log")
    store = VolumeStore(folder, ID)
    store.refresh(29)
    assert [record.position for record in store.read(0, 200)] == list(range(1, 30))
    assert any("another archive" in trouble for trouble in store.troubles)


def test_a_pack_that_is_made_anew_is_read_anew(folder: Path) -> None:
    store = VolumeStore(folder, ID)
    path = sealed(folder, 1)
    store.refresh(29)
    first = Pack(path, ID)
    seal(
        first.sealable, list(first.read(0, 99)), folder / PACKS,
        metadata=METADATA_STORES["plain"], payloads=PAYLOAD_STORES["folder"], gone={2},
    )  # fmt: skip
    store.refresh(29)
    assert [record.position for record in store.read(0, 99)] == [p for p in range(1, 30) if p != 2]
    assert store.troubles == []


def test_an_archive_without_volumes_is_empty(tmp_path: Path) -> None:
    store = VolumeStore(tmp_path, ID)
    store.refresh(0)
    assert (list(store.read(0, 10)), store.troubles) == ([], [])
    store.close()


def test_what_was_written_since_is_not_missing(tmp_path: Path) -> None:
    # Given volumes of which a reader is told less than there is
    log = Log(tmp_path / LOG, ID, volume_bytes=SMALL)
    for position in range(1, 30):
        put(log, position)
    log.sync(29)
    firsts = sorted(int(path.stem) for path in (tmp_path / LOG).glob("*.log"))
    store = VolumeStore(tmp_path, ID)
    for up_to in range(1, 30):
        # Expect all up to there, and no trouble
        store.refresh(up_to)
        assert [record.position for record in store.read(0, up_to)] == list(range(1, up_to + 1))
        assert store.troubles == []
    # When one is missing, expect that to be told as soon as it could be there
    store.close()
    (tmp_path / LOG / f"{firsts[1]:020d}.log").unlink()
    store.refresh(firsts[1])
    assert store.troubles == []
    store.refresh(29)
    assert len(store.troubles) == 1
    store.close()
    log.close()


def test_a_volume_that_is_sealed_while_it_is_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a volume that is sealed, and whose pack is made anew, just before each is opened
    log = Log(tmp_path / LOG, ID, volume_bytes=SMALL)
    for position in range(1, 30):
        put(log, position)
    log.close()
    first = sorted((tmp_path / LOG).glob("*.log"))[0]
    steps = ["seal", "again"]

    class Busy(LogVolume):
        def __init__(self, path: Path, archive: bytes | None = None) -> None:
            if path == first and steps[:1] == ["seal"]:
                steps.pop(0)
                sealed(tmp_path, int(first.stem))
                first.unlink()
            super().__init__(path, archive)

    class Anew(Pack):
        def __init__(self, path: Path, archive: bytes | None = None, awake: Awake | None = None) -> None:
            if steps:
                steps.pop(0)
                pack = Pack(path, archive)
                seal(
                    pack.sealable, list(pack.read(0, 2**62)), tmp_path / PACKS,
                    metadata=METADATA_STORES["plain"], payloads=PAYLOAD_STORES["file"],
                )  # fmt: skip
                raise StorageError("its parts were taken away")
            super().__init__(path, archive, awake)

    monkeypatch.setattr("jbi_pubsub.archive.store.LogVolume", Busy)
    monkeypatch.setattr("jbi_pubsub.archive.store.Pack", Anew)
    store = VolumeStore(tmp_path, ID)
    store.refresh(29)
    # Expect all objects
    assert steps == []
    assert [record.position for record in store.read(0, 29)] == list(range(1, 30))
    assert store.troubles == []
    store.close()


def test_of_many_packs_few_are_awake_and_all_are_read(tmp_path: Path) -> None:
    def files() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    # Given six packs, of which two may be awake
    log = Log(tmp_path / LOG, ID, volume_bytes=SMALL)
    for position in range(1, 61):
        put(log, position)
    log.sync(60)
    log.close()
    paths = [sealed(tmp_path, int(each.stem)) for each in sorted((tmp_path / LOG).glob("*.log"))]
    for each in (tmp_path / LOG).glob("*.log"):
        each.unlink()
    assert len(paths) > 5
    before = files()
    store = VolumeStore(tmp_path, ID, awake_most=2)
    store.refresh(60)
    # Expect all to be found, in any order, with the files of two open
    everything = list(range(1, 61))
    for _ in range(2):
        assert [record.position for record in store.read(0, 60)] == everything
        assert [record.position for record in store.read(0, 60, newest_first=True)] == everything[::-1]
        assert [record.position for record in store.metadata(everything[::7])] == everything[::7]
        assert files() - before <= 4
    # When one that rests is made anew without an object, another is taken away, a third damaged
    resting = store.volumes[:3]
    assert isinstance(resting[0], Pack)
    records = list(resting[0].read(0, 60))
    seal(
        resting[0].sealable, records, tmp_path / PACKS,
        metadata=METADATA_STORES["deflated"], payloads=PAYLOAD_STORES["file"], gone={1},
    )  # fmt: skip
    list(store.read(45, 60))
    remove(paths[1])
    paths[2].write_bytes(b"nothing")
    # Expect what is there, and the damage to be named
    gone = {1, *(p for volume in resting[1:] for p in range(volume.first, volume.last + 1))}
    assert [record.position for record in store.read(0, 60)] == [p for p in everything if p not in gone]
    (trouble,) = store.lacks(0, 60)
    assert str(paths[2]) in trouble
    store.close()
    assert files() == before

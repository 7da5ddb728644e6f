"""Rectangles: the predicate that bbox writes says what the rectangle means, hemisphere letters included."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jbi_pubsub.core.errors import ArgumentError, PredicateError
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, bbox, compile_predicate

KABUL = (33.2, 65.7, 35.0, 70.0)


def point(latitude: float, longitude: float, letters: str = "") -> Element:
    """Metadata with unsigned degrees and hemisphere letters; `letters` overrides those of the signs."""
    north, east = tuple(letters) or ("N" if latitude >= 0 else "S", "E" if longitude >= 0 else "W")
    return parse_metadata(
        f"<metadata><ImageDescriptor><LocationCoord><lat>{abs(latitude)}</lat><latord>{north}</latord>"
        f"<long>{abs(longitude)}</long><longord>{east}</longord></LocationCoord></ImageDescriptor></metadata>".encode()
    )


def inside(box: tuple[float, float, float, float], latitude: float, longitude: float) -> bool:
    """The oracle, on signed degrees: an open rectangle that may cross the antimeridian."""
    south, west, north, east = box
    across = longitude > west or longitude < east if west > east else west < longitude < east
    return south < latitude < north and across


@pytest.mark.row("J-97")
@pytest.mark.parametrize(
    "box",
    [
        KABUL,
        (-35.0, -70.0, -33.2, -65.7),
        (-10.0, -20.0, 20.0, 10.0),  # the equator and Greenwich
        (-10.0, 170.0, 10.0, -170.0),  # the antimeridian
        (50.0, 100.0, 80.0, -100.0),
        (-80.5, -0.5, -0.25, 0.5),
        (0.0, 0.0, 45.0, 90.0),
        (-45.0, -90.0, 0.0, 0.0),
        (-0.0000001, 20.0, 0.0000001, 160.0),
    ],
)
def test_a_thousand_random_points_are_told_apart(box: tuple[float, float, float, float]) -> None:
    predicate = compile_predicate(bbox(*box))
    index: PredicateIndex[int] = PredicateIndex()
    index.add(1, predicate)
    assert index.stats()["indexed"] == 1
    chance = random.Random(97)
    for _ in range(1000):
        latitude, longitude = round(chance.uniform(-90, 90), 3), round(chance.uniform(-180, 180), 3)
        if chance.random() < 0.5:  # close to the rectangle, where the errors are
            latitude = round(min(90, max(-90, chance.choice(box[::2]) + chance.uniform(-1, 1))), 3)
            longitude = round(min(180, max(-180, chance.choice(box[1::2]) + chance.uniform(-1, 1))), 3)
        root = point(latitude, longitude)
        assert predicate.matches(root) is inside(box, latitude, longitude), (latitude, longitude)
        assert bool(index.match(root)) is inside(box, latitude, longitude)


@pytest.mark.row("J-97")
def test_it_says_what_the_papers_predicate_says() -> None:
    at = "/metadata/ImageDescriptor/LocationCoord"
    paper = compile_predicate(
        f"*[({at}/lat>33.2) and ({at}/lat<35.0) and ({at}/latord='N')"
        f" and ({at}/long>65.7) and ({at}/long<70.0) and ({at}/longord='E')]"
    )
    ours = compile_predicate(bbox(*KABUL))
    chance = random.Random(3)
    for _ in range(1000):
        root = point(chance.uniform(32, 36), chance.uniform(65, 71), chance.choice(["NE", "NE", "SE", "NW", "SW"]))
        assert ours.matches(root) is paper.matches(root)


def test_the_edges_are_outside() -> None:
    predicate = compile_predicate(bbox(*KABUL))
    assert predicate.matches(point(34, 68))
    for latitude, longitude in ((33.2, 68), (35.0, 68), (34, 65.7), (34, 70.0)):
        assert not predicate.matches(point(latitude, longitude))


@pytest.mark.parametrize("letters", ["NE", "NW", "SE", "SW"])
def test_zero_degrees_are_inside_with_either_letter(letters: str) -> None:
    assert compile_predicate(bbox(-1, -1, 1, 1)).matches(point(0, 0, letters))


@pytest.mark.parametrize("letters", ["NE", "NW"])
def test_the_antimeridian_is_inside_with_either_letter(letters: str) -> None:
    assert compile_predicate(bbox(10, 170, 20, -170)).matches(point(15, 180, letters))
    assert not compile_predicate(bbox(10, 170, 20, 180)).matches(point(15, 180, letters))
    assert not compile_predicate(bbox(10, 180, 20, -170)).matches(point(15, 180, letters))


def test_the_whole_globe_holds_its_poles_and_every_meridian() -> None:
    globe = compile_predicate(bbox(-90, -180, 90, 180))
    for latitude, longitude in ((90, 0), (-90, 0), (0, 180), (0, -180), (12, 34), (0, 0)):
        assert globe.matches(point(latitude, longitude))


def test_other_paths() -> None:
    predicate = compile_predicate(bbox(1, 1, 2, 2, location="/m/at", lat="y", latord="ns", long="x", longord="ew"))
    assert predicate.matches(parse_metadata(b"<m><at><y>1.5</y><ns>N</ns><x>1.5</x><ew>E</ew></at></m>"))


def test_tiny_degrees_are_written_without_exponent() -> None:
    assert "0.0000001" in bbox(1e-7, 0, 1, 1)


@pytest.mark.parametrize(
    "box",
    [(35, 65, 33, 70), (33, 65, 33, 70), (33, 65, 35, 65), (-91, 0, 0, 1), (0, 0, 1, 181),
     (0, 180, 1, -180)],
)  # fmt: skip
def test_nonsense_is_refused(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(PredicateError):
        bbox(*box)


@pytest.mark.parametrize("degrees", ["33", None, True, float("nan")])
def test_what_is_no_number_is_refused(degrees: Any) -> None:
    with pytest.raises(ArgumentError, match="bbox: south is"):
        bbox(degrees, 65, 35, 70)


@pytest.mark.parametrize("name", ["location", "lat", "latord", "long", "longord"])
@pytest.mark.parametrize("path", ["", " ", "a b", "/m/", "a or b", "a | b", "1", "m["])
def test_a_location_that_is_no_path_is_refused(name: str, path: str) -> None:
    # Expect an error that names the argument: it would be nowhere, or a predicate that means something else
    with pytest.raises(PredicateError) as caught:
        bbox(33, 65, 35, 70, **{name: path})
    assert caught.value.facts["argument"] == name
    with pytest.raises(ArgumentError, match=f"bbox: {name} is None"):
        bbox(33, 65, 35, 70, **{name: None})  # type: ignore[arg-type]  # that is the test


def test_a_location_may_have_prefixes_and_conditions() -> None:
    where = bbox(1, 1, 2, 2, location="/c:m/c:at[@kind='a:b']", lat="c:lat", latord="@ns")
    assert compile_predicate(where, namespaces={"c": "urn:c"}).expression == where
    marked = bbox(1, 1, 2, 2, location="/कि:नाम", lat="कि:शब्द")
    assert compile_predicate(marked, namespaces={"कि": "urn:c"}).expression == marked

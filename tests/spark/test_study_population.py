"""The made-up population: a pure function of the seed, legal entries, skewed as documented."""

from __future__ import annotations

from collections import Counter

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.lookup.entry import canonical, parse
from jbi_pubsub.spark.generators import (
    CLASSES,
    MAXIMUM_ROWS,
    SHAPES,
    WIDTH,
    Population,
    hash_long,
    lineage_bits,
    xxhash64,
)


def test_the_hash_is_xxh64_of_eight_bytes() -> None:
    # XXH64 of eight zero bytes with seed 0, as published by its implementations.
    assert hash_long(0, 0) == 3803688792395291579
    assert xxhash64(5, -6) == hash_long(-6, hash_long(5, 42))


def test_rows_do_not_depend_on_which_others_are_drawn() -> None:
    whole = Population(registrations=300, templates=200, seed=3)
    larger = Population(registrations=900, templates=900, seed=3)

    assert list(whole.registration_rows(step=7)) == [r for r in larger.registration_rows() if r[0] in range(0, 300, 7)]
    assert list(whole.template_rows(start=5, step=50)) == [
        t for t in larger.template_rows() if t[0] in (5, 55, 105, 155)
    ]


def test_another_seed_is_another_population() -> None:
    first, second = (list(Population(registrations=50, templates=0, seed=s).registration_rows()) for s in (1, 2))

    assert first != second


def test_values_are_canonical_text_of_their_fields_type() -> None:
    types = {field.name: field.kind for known in CLASSES for field in known.fields}

    for _, entry in Population(registrations=2000, templates=0, seed=1).registration_rows():
        for name, text in entry.as_dict().items():
            assert canonical(parse(text, types[name])) == text


def test_there_are_32_shapes_over_8_fields_and_each_class_can_match_everything() -> None:
    assert len(set(SHAPES)) == 32
    assert max(len(known.cls.fields) for known in CLASSES) == WIDTH == 8
    assert {shape.cls for shape in SHAPES if not shape.fields} == set(range(len(CLASSES)))


def test_templates_fix_exactly_the_fields_of_their_shape() -> None:
    known = {(CLASSES[shape.cls].cls.name, shape.fields) for shape in SHAPES}

    drawn = {
        (template.cls.name, tuple(n for n, value in enumerate(template.values) if value is not None))
        for _, template in Population(registrations=0, templates=20_000, seed=4).template_rows()
    }

    assert drawn == known


def test_values_follow_the_power_law_and_one_field_in_16_is_unset() -> None:
    rows = Population(registrations=20_000, templates=0, seed=1).registration_rows()
    countries = Counter(entry.values[0] for _, entry in rows)

    total = 20_000 * 15 / 16
    assert countries[None] / 20_000 == pytest.approx(1 / 16, abs=0.01)
    assert countries["country-0"] / total == pytest.approx(1 / 4, abs=0.02)  # four octaves, one value in the first
    assert countries["country-1"] / total == pytest.approx(1 / 8, abs=0.02)  # two values in the second
    assert countries["country-14"] / total == pytest.approx(1 / 32, abs=0.01)  # eight in the last
    assert len(countries) == 1 + 15


def test_a_class_answers_to_its_superclasses_and_not_to_its_siblings() -> None:
    names = [known.cls.name for known in CLASSES]

    stereo = lineage_bits(names.index("study.StereoImagery"))

    assert [name for n, name in enumerate(names) if stereo >> n & 1] == [
        "study.Product",
        "study.Imagery",
        "study.StereoImagery",
    ]


@pytest.mark.parametrize(
    ("setting", "value"), [("registrations", -1), ("templates", MAXIMUM_ROWS + 1), ("seed", 2**63), ("seed", True)]
)
def test_numbers_out_of_range_are_refused_by_name(setting: str, value: int) -> None:
    numbers = {"registrations": 1, "templates": 1, "seed": 1, setting: value}

    with pytest.raises(ConfigurationError, match=setting) as refused:
        Population(**numbers)

    assert refused.value.facts["setting"] == setting

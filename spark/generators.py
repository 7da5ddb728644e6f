"""A made-up population of registrations and templates, the same in Python and in Spark SQL, row by row.

Every value is a pure function of (seed, stream, row number) through `xxhash64`, so neither the number of
partitions nor the engine changes it; `rand(seed)` of Spark depends on the partitioning. Only integers are used on
the way to a value: powers and logarithms differ in the last bit between a JVM and the C library.

- Four entry classes, one a superclass of the others: `study.Product` <- `study.Imagery` <- `study.StereoImagery`,
  and `study.Product` <- `study.Track`. The widest has 8 fields; the n-th field of a class is column `f<n>`.
- Values follow a stepwise power law (Zipf with exponent 1): an octave k is drawn evenly, then one of its 2^k
  values. The commonest value of a field of L octaves has share 1/L, the rarest 1/(L * 2^(L-1)).
- A registration leaves one field in 16 unset. A template has one of 32 shapes: a class and the fields it fixes.
"""

# ruff: noqa: S608
# The SQL below is put together from numbers checked on construction, names from the constants below; no text of a user.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define

# XXH64: primes and the path for an input of 8 bytes (xxHash specification, sections "XXH64 algorithm" and
# "Consume remaining input"). Spark's `xxhash64` starts from 42 and takes each result as the next column's seed.
_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5
_SPARK_SEED: Final = 42
_64_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF

MAXIMUM_ROWS: Final = 10**10
"""Largest population on either side: ten thousand times what one box was measured with (1M), below any overflow."""
MAXIMUM_SEED: Final = 2**63 - 1
"""Seeds are Spark bigints."""
WIDTH: Final = 8
"""Fields of the widest class, as in the measured set-up of the first level."""

# Streams keep draws apart: a registration's class, a template's shape, then a stream per field on each side.
_CLASS_STREAM: Final = 1
_SHAPE_STREAM: Final = 2
_REGISTRATION_STREAM: Final = 100
_TEMPLATE_STREAM: Final = 200
# Bits of a field's draw: 0-13 the value inside its octave, 28-31 whether it is unset, 32-63 the octave.
_UNSET_SHIFT: Final = 28
_UNSET_MASK: Final = 15
_OCTAVE_SHIFT: Final = 32


class _Field(msgspec.Struct, frozen=True):
    """Name, type, text before the number, and octaves: a field of L octaves has 2^L - 1 values; L <= 14."""

    name: str
    kind: type[str] | type[int]
    prefix: str
    octaves: int


_PRODUCT: Final = (
    _Field("country", str, "country-", 4),
    _Field("publisher", str, "publisher-", 6),
    _Field("keywords", str, "keyword-", 7),
    _Field("priority", int, "", 3),
)
_IMAGERY: Final = (_Field("sensor", str, "sensor-", 4), _Field("region", str, "region-", 5))
_STEREO: Final = (_Field("baseline", int, "", 4), _Field("mode", str, "mode-", 3))
_TRACK: Final = (_Field("platform", str, "platform-", 6), _Field("course", int, "", 4))


class StudyClass(msgspec.Struct, frozen=True):
    """One entry class of the population: identity, fields, share of the registrations (of 16), and the shapes of
    its templates, each the digits of the fields that are fixed."""

    cls: EntryClass
    fields: tuple[_Field, ...]
    share: int
    shapes: tuple[str, ...]


def _define(name: str, fields: tuple[_Field, ...], parent: EntryClass | None) -> EntryClass:
    return define(name, {f.name: f.kind for f in fields}, parent)


_product = _define("study.Product", _PRODUCT, None)
_imagery = _define("study.Imagery", _IMAGERY, _product)
_stereo = _define("study.StereoImagery", _STEREO, _imagery)
_track = _define("study.Track", _TRACK, _product)

CLASSES: Final = (
    StudyClass(_product, _PRODUCT, 2, ("", "0", "1", "01", "12", "013", "123", "0123")),
    StudyClass(_imagery, _PRODUCT + _IMAGERY, 6, ("", "4", "45", "14", "145", "024", "1245", "012345")),
    StudyClass(_stereo, _PRODUCT + _IMAGERY + _STEREO, 4, ("", "7", "67", "467", "1567", "2456", "01456", "01234567")),
    StudyClass(_track, _PRODUCT + _TRACK, 4, ("", "5", "45", "14", "145", "024", "1245", "012345")),
)
"""The entry classes; a row's `cls` column is the index here."""


class TemplateShape(msgspec.Struct, frozen=True):
    """Shape of a template: the index of its class and a bit per fixed field (bit n: column `f<n>`)."""

    cls: int
    bits: int

    @property
    def fields(self) -> tuple[int, ...]:
        """Numbers of the fixed fields, ascending."""
        return tuple(n for n in range(WIDTH) if self.bits >> n & 1)

    def __str__(self) -> str:
        study_class = CLASSES[self.cls]
        return f"{study_class.cls.name}({', '.join(study_class.cls.fields[n] for n in self.fields)})"


SHAPES: Final = tuple(
    TemplateShape(c, sum(1 << int(n) for n in digits)) for c, k in enumerate(CLASSES) for digits in k.shapes
)
"""The 32 template shapes; a template's `shape` column is the index here."""

# A template that fixes more is commoner, four times for each field up to three: few ask for everything.
_SHAPE_BOUNDS: Final = tuple(accumulate(4 ** min(len(s.fields), 3) for s in SHAPES))
_CLASS_BOUNDS: Final = tuple(accumulate(c.share for c in CLASSES))


def lineage_bits(cls: int) -> int:
    """The classes (bit per index) whose templates can match an entry of class `cls`: itself and its superclasses."""
    above = CLASSES[cls].cls.lineage
    return sum(1 << n for n, known in enumerate(CLASSES) if known.cls.lineage[0] in above)


def xxhash64(*values: int) -> int:
    """Spark SQL's `xxhash64` of bigint columns, as an unsigned number of 64 bits."""
    result = _SPARK_SEED
    for value in values:
        result = hash_long(value, result)
    return result


def hash_long(value: int, seed: int) -> int:
    """XXH64 of one bigint: `xxhash64(a, b)` is `hash_long(b, xxhash64(a))`."""
    lane = value * _PRIME_2 & _64_BITS
    lane = (lane << 31 | lane >> 33) * _PRIME_1 & _64_BITS
    mixed = (seed + _PRIME_5 + 8 & _64_BITS) ^ lane
    mixed = ((mixed << 27 | mixed >> 37) & _64_BITS) * _PRIME_1 + _PRIME_4 & _64_BITS
    mixed = (mixed ^ mixed >> 33) * _PRIME_2 & _64_BITS
    mixed = (mixed ^ mixed >> 29) * _PRIME_3 & _64_BITS
    return mixed ^ mixed >> 32


class Population(msgspec.Struct, frozen=True, kw_only=True):
    """`registrations` entries and `templates` templates, both numbered from 0, drawn from `seed`.

    Raises ConfigurationError when a number is negative or beyond MAXIMUM_ROWS or MAXIMUM_SEED.
    """

    registrations: int
    templates: int
    seed: int

    def __post_init__(self) -> None:
        bounds = {"registrations": MAXIMUM_ROWS, "templates": MAXIMUM_ROWS, "seed": MAXIMUM_SEED}
        for name, most in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise ConfigurationError(
                    f"{name} = {value!r} of a study is not a whole number from 0 to {most}",
                    hint=f"Give {name} in that range",
                    setting=name,
                    maximum=most,
                )

    def registration_rows(self, *, start: int = 0, step: int = 1) -> Iterator[tuple[int, EntryRep]]:
        """Number and entry of every `step`-th registration from `start`."""
        class_seed = xxhash64(self.seed, _CLASS_STREAM)
        draws = _field_seeds(self.seed, _REGISTRATION_STREAM)
        for row in range(start, self.registrations, step):
            chosen = CLASSES[_pick(_CLASS_BOUNDS, hash_long(row, class_seed))]
            hashes = [hash_long(row, seed) for seed in draws[: len(chosen.fields)]]
            texts = (
                _text(field, drawn) if drawn >> _UNSET_SHIFT & _UNSET_MASK else None
                for field, drawn in zip(chosen.fields, hashes, strict=True)
            )
            yield row, EntryRep(chosen.cls, tuple(texts))

    def template_rows(self, *, start: int = 0, step: int = 1) -> Iterator[tuple[int, EntryRep]]:
        """Number and template of every `step`-th template from `start`."""
        shape_seed = xxhash64(self.seed, _SHAPE_STREAM)
        draws = _field_seeds(self.seed, _TEMPLATE_STREAM)
        for row in range(start, self.templates, step):
            shape = SHAPES[_pick(_SHAPE_BOUNDS, hash_long(row, shape_seed))]
            chosen, bits = CLASSES[shape.cls], shape.bits
            texts = (
                _text(field, hash_long(row, draws[n])) if bits >> n & 1 else None
                for n, field in enumerate(chosen.fields)
            )
            yield row, EntryRep(chosen.cls, tuple(texts))

    def registration_sql(self, *, partitions: int) -> str:
        """Spark SQL for the same registrations: `rid`, `cls`, `f0` ... `f7` (text, NULL where unset or absent)."""
        hashes = self._hashes_sql(_REGISTRATION_STREAM)
        unset = f"(shiftrightunsigned(h{{n}}, {_UNSET_SHIFT}) & {_UNSET_MASK}) = 0"
        columns = (f"CASE WHEN {unset.format(n=n)} THEN NULL {_texts_sql(n)} END AS f{n}" for n in range(WIDTH))
        return (
            f"SELECT rid, cls, {', '.join(columns)} FROM ("
            f"SELECT *, {_pick_sql(_CLASS_BOUNDS)} AS cls FROM ("
            f"SELECT id AS rid, {self._hash_sql(_CLASS_STREAM)} AS drawn, {hashes} "
            f"FROM range(0, {self.registrations}, 1, {partitions})))"
        )

    def template_sql(self, *, partitions: int) -> str:
        """Spark SQL for the same templates: `tid`, `shape`, `cls`, `bits`, `f0` ... `f7` (NULL where not fixed)."""
        hashes = self._hashes_sql(_TEMPLATE_STREAM)
        classes, bits = (
            f"element_at(array({', '.join(str(v) for v in of)}), shape + 1)"
            for of in zip(*((s.cls, s.bits) for s in SHAPES), strict=True)
        )
        columns = (f"CASE WHEN (bits & {1 << n}) = 0 THEN NULL {_texts_sql(n)} END AS f{n}" for n in range(WIDTH))
        return (
            f"SELECT tid, shape, cls, bits, {', '.join(columns)} FROM ("
            f"SELECT *, {classes} AS cls, {bits} AS bits FROM ("
            f"SELECT *, {_pick_sql(_SHAPE_BOUNDS)} AS shape FROM ("
            f"SELECT id AS tid, {self._hash_sql(_SHAPE_STREAM)} AS drawn, {hashes} "
            f"FROM range(0, {self.templates}, 1, {partitions}))))"
        )

    def _hashes_sql(self, stream: int) -> str:
        return ", ".join(f"{self._hash_sql(stream + n)} AS h{n}" for n in range(WIDTH))

    def _hash_sql(self, stream: int) -> str:
        return f"xxhash64({self.seed}L, {stream}L, id)"


def _field_seeds(seed: int, stream: int) -> list[int]:
    return [xxhash64(seed, stream + n) for n in range(WIDTH)]


def _pick(bounds: Sequence[int], drawn: int) -> int:
    return bisect_right(bounds, (drawn >> _OCTAVE_SHIFT) % bounds[-1])


def _pick_sql(bounds: Sequence[int]) -> str:
    drawn = f"shiftrightunsigned(drawn, {_OCTAVE_SHIFT}) % {bounds[-1]}"
    return f"CASE {' '.join(f'WHEN {drawn} < {bound} THEN {n}' for n, bound in enumerate(bounds))} END"


def _text(field: _Field, drawn: int) -> str:
    octave = (drawn >> _OCTAVE_SHIFT) % field.octaves
    below = (1 << octave) - 1
    return f"{field.prefix}{below + (drawn & below)}"


def _text_sql(field: _Field, n: int) -> str:
    below = f"(shiftleft(1L, CAST(shiftrightunsigned(h{n}, {_OCTAVE_SHIFT}) % {field.octaves} AS INT)) - 1)"
    return f"concat('{field.prefix}', CAST({below} + (h{n} & {below}) AS STRING))"


def _texts_sql(n: int) -> str:
    """The WHEN clauses for column `f<n>`: classes may give the n-th field another meaning."""
    classes: dict[_Field, list[str]] = {}
    for index, known in enumerate(CLASSES):
        if n < len(known.fields):
            classes.setdefault(known.fields[n], []).append(str(index))
    return " ".join(f"WHEN cls IN ({', '.join(c)}) THEN {_text_sql(field, n)}" for field, c in classes.items())

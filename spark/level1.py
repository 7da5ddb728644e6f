"""First-level matching as Spark SQL: the factorised mask key.

One pass over the registrations. Each is probed once per template shape of its class and superclasses, by the key

    hash of the shape  XOR  the hash of (text, field number) of every field that the shape fixes,

against the templates grouped by shape and values. Keys only find candidates; shape and text are compared after the
join, so a collision costs time and never a wrong match. The result stays factorised, registration x group of equal
templates: pairs are never built, a template that matches everything costs one row per registration.

XOR, because Spark's ANSI arithmetic raises on an overflowing sum. SQL text, because Column objects take twice as
long. Shapes are data (one `inline` of constants): as expressions, 128 of them passed the size up to which HotSpot
compiles a method.
"""

# ruff: noqa: S608
# The SQL below is put together from names of this package's own views and columns, and numbers; no text of a user.

from __future__ import annotations

from typing import Final

from jbi_pubsub.spark.generators import CLASSES, SHAPES, WIDTH, lineage_bits, xxhash64

HIT_STREAM: Final = 0
"""First argument of the hash in the checksum for (stream, rid, gid) rows."""
MEMBER_STREAM: Final = 1
"""The same for (stream, gid, tid) rows: which templates are equal."""
LARGEST_BROADCAST: Final = 2_000_000
"""Templates up to which their groups are sent to every executor: so many (0.9M distinct) were measured within a heap of
4 GB; above, both sides shuffle."""

_FIELDS: Final = ", ".join(f"f{n}" for n in range(WIDTH))


def groups_sql(templates: str) -> str:
    """Equal templates of view `templates` as one row: gid, entry_class, shape, f0 ... f7, tids (ascending)."""
    names = ", ".join(f"'{known.cls.name}'" for known in CLASSES)
    return (
        f"SELECT min(tid) AS gid, element_at(array({names}), cls + 1) AS entry_class, shape, {_FIELDS}, "
        f"array_sort(collect_list(tid)) AS tids FROM {templates} GROUP BY cls, shape, {_FIELDS}"
    )


def hits_sql(registrations: str, groups: str, *, broadcast: bool) -> str:
    """(rid, gid) for every registration and group of templates that matches it."""
    hashes = ", ".join(f"xxhash64(f{n}, {n}) AS h{n}" for n in range(WIDTH))
    set_bits = " | ".join(f"IF(f{n} IS NULL, 0, {1 << n})" for n in range(WIDTH))
    chosen = " ^ ".join(f"IF((m.bits & {1 << n}) = 0, 0L, h{n})" for n in range(WIDTH))
    equal = " AND ".join(f"((p.bits & {1 << n}) = 0 OR p.f{n} = t.f{n})" for n in range(WIDTH))
    hint = "/*+ BROADCAST(t) */ " if broadcast else ""
    return (
        f"WITH r AS (SELECT rid, cls, {_FIELDS}, {hashes}, {set_bits} AS set_bits FROM {registrations}), "
        f"p AS (SELECT rid, {_FIELDS}, m.shape AS shape, m.bits AS bits, m.hash ^ {chosen} AS key "
        f"FROM r LATERAL VIEW inline({_shapes_of_class()}) m AS shape, bits, hash "
        # An unset field of a registration equals nothing: shapes that fix it can't match.
        f"WHERE (set_bits & m.bits) = m.bits), "
        f"t AS (SELECT gid, shape, {_FIELDS}, {_group_key()} AS key FROM {groups}) "
        # XOR of the shapes, not `=`: a second equality would turn the bigint hash table into a slower general one.
        f"SELECT {hint}p.rid, t.gid FROM p JOIN t ON p.key = t.key AND (p.shape ^ t.shape) = 0 AND {equal}"
    )


def counts_sql(hits: str) -> str:
    """gid, the number of registrations it matches, and the checksum of those rows."""
    return (
        f"SELECT gid, count(*) AS registrations, bit_xor(xxhash64({HIT_STREAM}L, rid, gid)) AS checksum "
        f"FROM {hits} GROUP BY gid"
    )


def cells_sql(groups: str, counts: str) -> str:
    """Sums per shape and bucket (bits of the number of matches): shape, bucket, groups, templates, hits, pairs."""
    return (
        "SELECT shape, bucket, count(*) AS groups, sum(size(tids)) AS templates, sum(n) AS hits, "
        "sum(n * size(tids)) AS pairs FROM (SELECT shape, tids, n, IF(n = 0, 0, length(bin(n))) AS bucket FROM ("
        f"SELECT shape, tids, coalesce(registrations, 0L) AS n FROM {groups} LEFT JOIN {counts} USING (gid))) "
        "GROUP BY shape, bucket"
    )


def checksum_sql(groups: str, counts: str) -> str:
    """One row, two numbers: the XOR over all hits, and over all memberships in groups."""
    return (
        f"SELECT (SELECT coalesce(bit_xor(checksum), 0L) FROM {counts}) AS hits, "
        f"(SELECT coalesce(bit_xor(xxhash64({MEMBER_STREAM}L, gid, tid)), 0L) "
        f"FROM {groups} LATERAL VIEW explode(tids) m AS tid) AS groups"
    )


def _shapes_of_class() -> str:
    """Per class of a registration, the constant array of the shapes that can match it."""
    cases = []
    for index in range(len(CLASSES)):
        rows = [
            f"named_struct('shape', {n}, 'bits', {s.bits}, 'hash', {signed(xxhash64(n))}L)"
            for n, s in enumerate(SHAPES)
            if lineage_bits(index) >> s.cls & 1
        ]
        cases.append(f"WHEN {index} THEN array({', '.join(rows)})")
    return f"CASE cls {' '.join(cases)} END"


def _group_key() -> str:
    # A field that the shape leaves open is NULL here.
    fixed = " ^ ".join(f"IF(f{n} IS NULL, 0L, xxhash64(f{n}, {n}))" for n in range(WIDTH))
    return f"xxhash64(CAST(shape AS BIGINT)) ^ {fixed}"


def signed(value: int) -> int:
    """The same 64 bits as the signed number that Spark and Parquet hold."""
    return value - (1 << 64) if value >> 63 else value

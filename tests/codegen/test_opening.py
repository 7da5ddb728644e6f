"""What opening a schema may cost, and what is remembered of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from jbi_pubsub.codegen import opening
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.opening import Opener
from jbi_pubsub.codegen.repository import TypeRepository, open_type
from jbi_pubsub.core.child import CallerAllowance, Children, Limits
from jbi_pubsub.core.errors import ChildError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle

pytestmark = [pytest.mark.processes, pytest.mark.children]

TIGHT = Limits(seconds=2.0, memory=256 << 20, clock=120.0)  # however busy the machine is
SHORT = Limits(seconds=1.0, memory=256 << 20, clock=120.0)
"""For what is refused in any case."""
GOOD = '<xs:element name="r" type="xs:int"/>'


def schema(body: str) -> SchemaBundle:
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
    return read_bundle(f"<xs:schema {names}>{body}</xs:schema>".encode(), root="r")


def doubling_unions(levels: int) -> SchemaBundle:
    """Unions of two restrictions of the union below: 2 to the power of `levels` member types in the end."""
    types = '<xs:simpleType name="u0"><xs:restriction base="xs:int"/></xs:simpleType>'
    member = '<xs:simpleType><xs:restriction base="u{}"/></xs:simpleType>'
    for level in range(1, levels + 1):
        types += f'<xs:simpleType name="u{level}"><xs:union>{member.format(level - 1) * 2}</xs:union></xs:simpleType>'
    return schema(types + f'<xs:element name="r" type="u{levels}"/>')


def doubling_groups(levels: int) -> SchemaBundle:
    groups = "".join(
        f'<xs:group name="g{level}"><xs:sequence><xs:group ref="g{level + 1}"/><xs:group ref="g{level + 1}"/>'
        "</xs:sequence></xs:group>"
        for level in range(levels)
    )
    last = f'<xs:group name="g{levels}"><xs:sequence><xs:element name="e" minOccurs="0"/></xs:sequence></xs:group>'
    return schema(
        f'{groups}{last}<xs:element name="r"><xs:complexType><xs:group ref="g0"/></xs:complexType></xs:element>'
    )


def named_unions(levels: int) -> SchemaBundle:
    types = '<xs:simpleType name="u0"><xs:restriction base="xs:int"/></xs:simpleType>'
    for level in range(1, levels + 1):
        types += f'<xs:simpleType name="u{level}"><xs:union memberTypes="u{level - 1} u{level - 1}"/></xs:simpleType>'
    return schema(types + f'<xs:element name="r" type="u{levels}"/>')


@pytest.mark.parametrize(
    "bundle",
    [
        pytest.param(doubling_unions(22), id="unions of restrictions of unions"),
        pytest.param(doubling_groups(40), id="groups that refer twice to the next"),
        pytest.param(named_unions(60), id="unions that name another twice", marks=pytest.mark.slow),
    ],
)
def test_a_small_schema_that_costs_without_end_is_refused_and_leaves_nothing_behind(
    bundle: SchemaBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a schema of a few thousand bytes, and a second
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    opener = Opener(limits=SHORT)
    # When it is opened
    with pytest.raises(SchemaError, match=r"takes more than|ended its process|member types") as refused:
        opener.open(bundle)
    # Expect a refusal in one line that says how to mend it, no process and no file
    assert "\n" not in str(refused.value)
    assert refused.value.hint
    assert not [child for child in psutil.Process().children() if "core.child" in " ".join(child.cmdline())]
    assert list(tmp_path.iterdir()) == []
    # And the second time to cost nothing
    monkeypatch.setattr(opener, "_children", None)
    with pytest.raises(SchemaError) as again:
        opener.open(bundle)
    assert str(again.value) == str(refused.value)


def test_a_stranger_with_many_costly_schemas_is_put_off_and_the_others_are_not() -> None:
    # Given callers who may use less than half a second
    children = Children(allowance=CallerAllowance(most=0.3, regained=0.001))
    opener = Opener(limits=SHORT, children=children)
    # When a stranger comes with one costly schema after the other
    refusals = []
    for levels in range(40, 43):
        with pytest.raises((SchemaError, ChildError)) as refused:
            opener.open(doubling_groups(levels), caller="stranger")
        refusals.append(refused.value.facts.get("cause"))
    # Expect all but the first to be refused without a look, and an honest one to be served
    assert refusals[0] != "allowance"
    assert refusals[1:] == ["allowance", "allowance"]
    assert Opener(limits=TIGHT, children=children).open(schema(GOOD), caller="honest").model.root == "r"
    # And what was refused for want of time alone not to be remembered as bad
    with pytest.raises(SchemaError, match=r"takes more|ended its process"):
        opener.open(doubling_groups(42), caller="another")


def test_nobody_waits_for_a_schema_of_somebody_else() -> None:
    # Given a schema that takes a second
    opener = Opener(limits=TIGHT)
    types = TypeRepository(opener=opener)
    good = schema(GOOD)
    types.open(good)
    opener._limits = SHORT
    begun = threading.Event()

    def costly() -> float:
        begun.set()
        with pytest.raises(SchemaError):
            types.open(doubling_groups(40))
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(costly)
        begun.wait()
        # When another one opens a type that is known
        known = types.open(good)
        answered = time.monotonic()
    # Expect it to be served before
    assert known.root == "r"
    assert answered < ended.result()


def test_of_many_threads_with_one_schema_one_has_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counting(Children):
        def run(self, function: str, data: bytes, **options: Any) -> bytes:
            asked.append(function)
            return super().run(function, data, **options)

    opener = Opener(children=Counting())
    bundle = schema(GOOD)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: opener.open(bundle).digest, range(8)))
    assert len(set(found)) == 1
    assert len(asked) == 1


def test_in_a_child_the_same_comes_out_as_here(make: Any) -> None:
    bundle = read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd")
    here, there = open_type(bundle), TypeRepository(opener=Opener()).open(bundle)
    assert here.model == there.model
    assert here.digest == there.digest


def test_a_schema_that_is_invalid_is_refused_as_it_would_be_here() -> None:
    bundle = schema('<xs:element name="r" type="xs:strin"/>')
    with pytest.raises(SchemaError) as here:
        open_type(bundle)
    with pytest.raises(SchemaError) as there:
        Opener().open(bundle)
    assert str(here.value) == str(there.value)
    assert here.value.facts == there.value.facts


def _at_work() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "core.child" in " ".join(each.cmdline())]


class Killed(Children):
    """Children of which the first ones are ended from outside."""

    def __init__(self, count: int, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "core"))
        self.eventually = eventually
        self.count = count
        self.begun = 0

    def run(self, function: str, data: bytes, **options: Any) -> bytes:
        self.begun += 1
        if self.begun > self.count:
            return super().run(function, data, **options)

        def kill() -> None:
            self.eventually(_at_work)[0].kill()

        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            try:
                return super().run("child_work:rest", b"60", **options)
            finally:
                killing.result()


def test_a_child_that_is_killed_once_is_not_noticed(eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a good schema, when its child is ended from outside, then another one opens it."""
    children = Killed(1, eventually, monkeypatch)
    assert Opener(children=children).open(schema(GOOD)).model.root == "r"
    assert children.begun == 2


def test_what_was_ended_from_outside_is_no_verdict_on_the_schema(
    eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a good schema, when all its children are ended from outside, then it has to wait, and is opened when they
    are not any more; nobody says that something is wrong with it."""
    opener = Opener(children=Killed(2, eventually, monkeypatch))
    with pytest.raises(ChildError, match="has to wait: ended its process by signal 9") as told:
        opener.open(schema(GOOD))
    assert not told.value.is_final
    assert told.value.hint == "Try again"
    assert opener.open(schema(GOOD)).model.root == "r"


def test_who_comes_with_a_schema_that_another_has_no_time_left_for_has_it_opened() -> None:
    """Given somebody who has used up its time, whoever comes with the same schema at the same moment is served."""
    come = threading.Barrier(2)

    class Slow(Children):
        def run(self, function: str, data: bytes, *, caller: str = "", **options: Any) -> bytes:
            if caller == "stranger":
                come.wait()
                time.sleep(0.2)  # the other one waits for us by then, or comes for itself
                raise ChildError("stranger used up the time", cause="allowance")
            return super().run(function, data, caller=caller, **options)

    opener, bundle = Opener(children=Slow()), schema(GOOD)

    def honest() -> str:
        come.wait()
        return opener.open(bundle, caller="honest").model.root

    with ThreadPoolExecutor(2) as pool:
        refused, served = pool.submit(opener.open, bundle, caller="stranger"), pool.submit(honest)
        assert served.result() == "r"
        with pytest.raises(ChildError, match="has to wait: stranger"):
            refused.result()


def family(folder: Path, count: int, size: int = 0) -> Path:
    """A schema that includes so many others."""
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
    for number in range(count):
        (folder / f"part{number}.xsd").write_text(f"<xs:schema {names}><!--{'x' * size}--></xs:schema>")
    includes = "".join(f'<xs:include schemaLocation="part{number}.xsd"/>' for number in range(count))
    (folder / "main.xsd").write_text(f"<xs:schema {names}>{includes}{GOOD}</xs:schema>")
    return folder / "main.xsd"


def test_a_family_that_is_too_large_is_told_how_large_it_is_and_may_be(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"schema main\.xsd has 417 documents, the limit is 200\.") as many:
        read_bundle(family(tmp_path, 416), root="r")
    assert (many.value.facts["amount"], many.value.facts["limit"]) == (417, 200)
    with pytest.raises(SchemaError, match=r"schema main\.xsd has 9,\d+,\d+ bytes, the limit is 8,388,608\.") as large:
        read_bundle(family(tmp_path, 9, 1_000_000), root="r")
    assert large.value.hint


def test_a_schema_that_takes_too_long_to_compile_is_told_how_long_and_how_long_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a schema over the time for libxml2 alone, then that is said, before the time for all of it runs out."""
    clock = iter([1.0, 6.4])
    monkeypatch.setattr(opening.time, "process_time", lambda: next(clock))
    with pytest.raises(SchemaError, match=r"takes 5\.4 s to compile, the limit is 2 s\.") as told:
        opening.work(msgspec.msgpack.encode(schema(GOOD)))
    assert told.value.hint


def test_who_imports_a_namespace_from_two_documents_is_told_that_the_first_counts(tmp_path: Path) -> None:
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
    for part in ("A", "B"):
        body = f'<xs:simpleType name="{part}"><xs:restriction base="xs:int"/></xs:simpleType>'
        (tmp_path / f"{part}.xsd").write_text(f'<xs:schema {names} targetNamespace="urn:n">{body}</xs:schema>')
    links = "".join(f'<xs:import namespace="urn:n" schemaLocation="{part}.xsd"/>' for part in ("A", "B"))

    def main(kind: str) -> SchemaBundle:
        (tmp_path / "main.xsd").write_text(
            f'<xs:schema {names} xmlns:n="urn:n">{links}<xs:element name="r" type="{kind}"/></xs:schema>'
        )
        return read_bundle(tmp_path / "main.xsd", root="r")

    with pytest.raises(SchemaError, match=r"'n:B'; namespace urn:n is imported from A\.xsd, B\.xsd, of which") as told:
        open_type(main("n:B"))
    assert "xs:include" in told.value.hint
    assert open_type(main("n:A")).root == "r"

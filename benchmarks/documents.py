"""Documents: what it takes to check one, and to match it with 1,000 rectangles, against lxml parsing and validating it.

python benchmarks/documents.py [--count 400] [--predicates 1000] [--text 20000] [--json FILE]

Styles: `rect` documents differ in the texts of their leaves alone, `comment` have a comment with another text each,
`varied` have optional parts and repeated ones or not, `wide` have 1,000 leaves and 4,000, `odd` have
a comment within a leaf, so that every one is parsed. Microseconds of CPU time a document, for each hundred of them the
least of five rounds; the registration has seen 2,000 such documents before. `--count 0`: the second table alone.

The second table is of `--text` different documents as people write them (peers/workload.py, style text): plain ones;
with one kind of what the plain ones have not; with all of it; with some of it at random. `ratio` is to the plain ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lxml import etree
from peers import workload  # beside this script

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, open_type
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.pad.matching.dissemination import Judgement
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.model.subscription import compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest

SCHEMA = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
<xs:element name="metadata"><xs:complexType><xs:sequence>
 <xs:element name="RequiredMetadata" jbi:variance="invariant"><xs:complexType><xs:sequence>
  <xs:element name="Type" type="xs:token"/><xs:element name="publisher" type="xs:token"/>
  <xs:element name="keywords" type="xs:token" maxOccurs="unbounded"/></xs:sequence></xs:complexType></xs:element>
 <xs:element name="Image" jbi:variance="variant"><xs:complexType><xs:sequence>
  <xs:element name="ImageType"><xs:simpleType><xs:restriction base="xs:token"><xs:enumeration value="IR"/>
   <xs:enumeration value="EO"/><xs:enumeration value="SAR"/></xs:restriction></xs:simpleType></xs:element>
  <xs:element name="Area" type="xs:string" minOccurs="0"/>
  <xs:element name="LocationCoord"><xs:complexType><xs:sequence>
   <xs:element name="lat"><xs:simpleType><xs:restriction base="xs:decimal"><xs:minInclusive value="-90"/>
    <xs:maxInclusive value="90"/></xs:restriction></xs:simpleType></xs:element>
   <xs:element name="long" type="xs:decimal"/></xs:sequence></xs:complexType></xs:element>
  <xs:element name="Acquired" type="xs:dateTime" minOccurs="0"/>
  <xs:element name="Sensor" type="xs:token" minOccurs="0"/>
  <xs:element name="Target" minOccurs="0" maxOccurs="unbounded"><xs:complexType><xs:sequence>
   <xs:element name="name" type="xs:token"/><xs:element name="speed" type="xs:decimal" minOccurs="0"/>
   <xs:element name="remark" type="xs:string" minOccurs="0"/></xs:sequence>
   <xs:attribute name="n" type="xs:int"/></xs:complexType></xs:element>
  <xs:element name="sample" type="xs:decimal" minOccurs="0" maxOccurs="unbounded"/>
 </xs:sequence></xs:complexType></xs:element>
</xs:sequence></xs:complexType></xs:element></xs:schema>"""

STYLES = ("rect", "comment", "varied", "odd", "wide")
ROUNDS = 5
PART = 100
"""Documents that are timed together: of so few most are done in one go, whatever else the machine does."""
SEEN = 2_000


def document(style: str, targets: int, chance: random.Random) -> bytes:
    """One document; `targets`: how many parts it has, or may have."""
    varies = style == "varied"

    def maybe(text: str) -> str:
        return "" if varies and chance.random() < 0.5 else text

    lat, lon = chance.uniform(0, 60), chance.uniform(20, 120)
    comment = f"<!-- frame {chance.randrange(10**6)} -->" if style == "comment" else ""
    odd = "<!-- seen -->" if style == "odd" else ""
    count = chance.randrange(targets + 1) if varies else targets
    parts = "".join(
        f'  <Target n="{chance.randrange(10**6)}">\n   <name>{odd}track {chance.randrange(1000)}</name>\n'
        + maybe(f"   <speed>{chance.uniform(0, 300):.1f}</speed>\n")
        + maybe("   <remark>seen again</remark>\n")
        + "  </Target>\n"
        for _ in range(count)
    )
    samples = targets * 100 if style == "wide" else 0
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<metadata>\n <RequiredMetadata>\n  <Type>Imagery</Type>\n'
        "  <publisher>418th</publisher>\n  <keywords>Intel</keywords>\n </RequiredMetadata>\n <Image>\n"
        f"  <ImageType>{chance.choice(('IR', 'EO', 'SAR'))}</ImageType>\n  {comment}\n"
        + maybe(f"  <Area>{chance.choice(('Kabul', 'Herat', 'Ghazni'))}</Area>\n")
        + f"  <LocationCoord>\n   <lat>{lat:.4f}</lat>\n   <long>{lon:.4f}</long>\n  </LocationCoord>\n"
        + maybe(f"  <Acquired>2003-0{chance.randrange(1, 10)}-17T10:00:00Z</Acquired>\n")
        + maybe("  <Sensor>UAV-07</Sensor>\n")
        + parts
        + "".join(f"  <sample>{chance.uniform(0, 9):.3f}</sample>\n" for _ in range(samples))
        + " </Image>\n</metadata>\n"
    )
    return text.encode()


def predicates(count: int, chance: random.Random) -> list[str]:
    """Rectangles of which about one matches."""
    side = count**-0.5
    place = "/metadata/Image/LocationCoord"
    made = []
    for _ in range(count):
        lat, lon = chance.uniform(0, 60 * (1 - side)), chance.uniform(20, 120 - 100 * side)
        made.append(
            f"*[({place}/lat>{lat:.5f}) and ({place}/lat<{lat + 60 * side:.5f}) and "
            f"({place}/long>{lon:.5f}) and ({place}/long<{lon + 100 * side:.5f})]"
        )
    return made


def timed(work: Callable[[bytes], Any], documents: list[bytes]) -> float:
    """Microseconds of CPU time a document."""
    parts = [documents[begin : begin + PART] for begin in range(0, len(documents), PART)]
    best = [float("inf")] * len(parts)
    for _ in range(ROUNDS):
        for place, part in enumerate(parts):
            start = time.process_time()
            for each in part:
                work(each)
            best[place] = min(best[place], time.process_time() - start)
    return sum(best) / len(documents) * 1e6


def judgement(kind: InformationType, first: bytes, wanted: list[str]) -> Judgement:
    """That of a registration."""
    table = MatchTable()
    for number, predicate in enumerate(wanted, 1):
        request = SubscriptionRequest(str(number), predicate=predicate)
        table.add(compile_subscription(request, owner="s", number=number))
    return Judgement(kind, kind.entries(parse_metadata(first)), table, validate=True)


def measured(kind: InformationType, style: str, documents: list[bytes], wanted: list[str]) -> dict[str, Any]:
    """One row; of the documents `SEEN` were seen before."""
    count = len(documents) - SEEN
    made = judgement(kind, documents[0], wanted)
    for metadata in documents[:SEEN]:
        made.match(metadata, made.check(metadata))
    documents = documents[SEEN:]
    schema = etree.XMLSchema(etree.fromstring(kind.bundle.documents[0][1]))

    def plain(metadata: bytes) -> None:
        schema.validate(etree.fromstring(metadata))

    lxml = timed(plain, documents)
    check = timed(made.check, documents)
    both = timed(lambda metadata: made.match(metadata, made.check(metadata)), documents)
    known = sum(isinstance(made._conformity.check(metadata), Traced) for metadata in documents)
    return {
        "style": style,
        "bytes": sum(map(len, documents)) // count,
        "lxml": round(lxml, 1),
        "check": round(check, 1),
        "check+match": round(both, 1),
        "check/lxml": round(check / lxml, 2),
        "both/lxml": round(both / lxml, 2),
        "known": f"{known / count:.0%}",
    }


def text_rows(count: int, predicates: int) -> Iterator[dict[str, Any]]:
    """The second table."""
    kind = open_type(read_bundle(workload.schema("text")))
    objects, rectangles, _ = workload.generate(count + SEEN, predicates)
    wanted = [predicate.xpath for predicate in rectangles]
    kinds: dict[str, Callable[[random.Random], set[str]]] = {"plain": lambda _: set()}
    kinds |= {each: lambda _, each=each: {each} for each in workload.TEXT_KINDS}
    kinds["all"] = lambda _: set(workload.TEXT_KINDS)
    kinds["some"] = lambda chance: {each for each in workload.TEXT_KINDS if chance.random() < 0.5}
    plain = 0.0
    for name, some in kinds.items():
        chance = random.Random(name)
        end = b"</CloudCover>"
        documents = [
            obj.metadata.replace(end, end + workload.text_part(chance, some(chance)).encode()) for obj in objects
        ]
        row = measured(kind, name, documents, wanted)
        plain = plain or row["check+match"]
        yield {**row, "ratio": round(row["check+match"] / plain, 2)}


def show(row: dict[str, Any], *, is_first: bool) -> None:
    """Print a row, below the names of its columns if it is the first."""
    if is_first:
        print("".join(f"{name:>13}" for name in row))
    print("".join(f"{value!s:>13}" for value in row.values()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--predicates", type=int, default=1000)
    parser.add_argument("--text", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = open_type(read_bundle(SCHEMA))
    wanted = predicates(options.predicates, random.Random(1))
    rows = []
    for style in STYLES if options.count else ():
        for targets in (10, 40) if style == "wide" else (3, 30):
            chance = random.Random(f"{style} {targets}")
            documents = [document(style, targets, chance) for _ in range(SEEN + options.count)]
            rows.append(measured(kind, style, documents, wanted))
            show(rows[-1], is_first=len(rows) == 1)
    for place, row in enumerate(text_rows(options.text, options.predicates) if options.text else ()):
        show(row, is_first=not place)
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

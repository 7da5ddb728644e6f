"""Schema bundles: a schema with all it includes and imports, as data.

Rules:
- `read_bundle` is the only function that opens files. What a bundle says is never opened: documents are found by name
  inside the bundle, http and https names among them, and nothing is fetched.
- XSD 1.0 only. xs:assert, xs:alternative, xs:openContent and xs:override are refused with their place.
- Mark comments are turned into mark attributes before anything else looks, so both forms mean the same and give the
  same digest.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
from lxml import etree

from jbi_pubsub.codegen.marks import JBI, Marks, check_marks, comments_to_attributes, fault_at, parse_marks
from jbi_pubsub.codegen.model import XML
from jbi_pubsub.core.errors import MetadataError, OversizeError, SchemaError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, SchemaBundle, TypeName
from jbi_pubsub.core.xml import XSD, Element, parse_metadata

PLACE: Final = f"{{{JBI}}}place"
"""Attribute by which a normalised declaration remembers "document:line"; whatever a document says there is replaced."""

MAX_SCHEMA_BYTES: Final = 8 << 20
"""All documents together; NewsML-G2 2.34, the largest schema looked at, has 1.6 MB."""

MAX_DOCUMENTS: Final = 200
"""Documents of one bundle; NewsML-G2 has 3, GML 3.2 with all it imports 64."""
COUNTED: Final = 10
"""Up to so many times what is allowed it is looked how much there is."""

XML_NAMESPACE_SCHEMA: Final = (
    b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="http://www.w3.org/XML/1998/namespace">'
    b'<xs:attribute name="lang" type="xs:language"/><xs:attribute name="space"><xs:simpleType><xs:restriction '
    b'base="xs:NCName"><xs:enumeration value="default"/><xs:enumeration value="preserve"/></xs:restriction>'
    b'</xs:simpleType></xs:attribute><xs:attribute name="base" type="xs:anyURI"/><xs:attribute name="id" type="xs:ID"/>'
    b'<xs:attributeGroup name="specialAttrs"><xs:attribute ref="xml:base"/><xs:attribute ref="xml:lang"/>'
    b'<xs:attribute ref="xml:space"/><xs:attribute ref="xml:id"/></xs:attributeGroup></xs:schema>'
)
"""The attributes of the XML namespace (W3C, http://www.w3.org/2001/xml.xsd), so that nobody has to supply them."""

MAX_PARTICLES: Final = 1_000
"""Particles of one model group; libxml2 takes 1.3 s for 1,000 optional ones, and 35 s for 3,000."""

_VERSIONING: Final = "{http://www.w3.org/2007/XMLSchema-versioning}"
_COMMENT: Final = rb"(?><!--(?s:.*?)-->)"
_DOCTYPE: Final = re.compile(rb"<!DOCTYPE\s[^\[>]*(\[(" + _COMMENT + rb"|<(?!!--)|[^\]<])*+\]\s*)?>")
_VERBATIM: Final = re.compile(_COMMENT + rb"|<!\[CDATA\[(?s:.*?)\]\]>")
_ENTITY: Final = re.compile(rb"&(?!#|(lt|gt|amp|quot|apos);)")
_LINKS: Final = tuple(f"{{{XSD}}}{name}" for name in ("include", "import", "redefine"))
_XSD_11: Final = tuple(
    f"{{{XSD}}}{name}"
    for name in ("assert", "assertion", "alternative", "openContent", "defaultOpenContent", "override")
)


@dataclass(frozen=True)
class Sources:
    """A bundle made ready for the schema processors: parsed, checked, links resolved to `documents` names d<n>.xsd.

    `marked` says whether any document carries a mark. `digest` is of the meaning: canonical XML of the documents
    (comments do not count, marks do, of file names the order alone) and the marks file.
    """

    documents: Mapping[str, Element]
    main: str
    names: Mapping[str, str]
    marks: Marks
    marked: bool
    digest: str


def read_bundle(
    schema: str | Path | bytes,
    *,
    marks: str | Path | bytes | None = None,
    root: str = "",
    name: str = "",
    version: str = DEFAULT_VERSION,
    locations: Mapping[str, Path] = {},
    within: Path | None = None,
) -> SchemaBundle:
    """A bundle from a schema file with what it includes and imports, or from one document.

    `schema` is a path, or bytes that are a self-contained document. `marks` is a marks file (path, or bytes of JSON);
    `root` names the document element instead of the marks file. `name` and `version` set the type name explicitly.
    `locations` maps a namespace or a schemaLocation to a local copy, or the beginning of schemaLocations to the folder
    that holds the copies of all of them; nothing is ever fetched. `within` is the folder that no document lies outside
    of; if None the one above the schema's, but not that of the whole system. Raises SchemaError.
    """
    if isinstance(schema, bytes):
        main, files = "schema.xsd", _Files(locations)
        files.follow(main, schema)
    else:
        if str(schema).lstrip().startswith("<"):
            raise SchemaError("the schema is given as text", hint="Give a document as bytes, a file as its path")
        path = Path(schema)
        if urlsplit(str(schema)).scheme in ("http", "https"):
            raise SchemaError(f"schema {schema} would have to be fetched", hint="Give a local copy of it")
        data = _plain(_read(path, "schema"))
        folder = path.parent.resolve()
        above = folder.parent if folder.parent != Path(folder.anchor) else folder
        top = (within or above).resolve()
        main, files = path.name, _Files(locations, folder, top)
        files.follow(main, data)
        if files.has_aliases and folder.is_relative_to(top):
            main, files = (folder / path.name).relative_to(top).as_posix(), _Files(locations, top, top)
            files.follow(main, data)
    return SchemaBundle(main, tuple(files.found.items()), _marks_bytes(marks, root), TypeName(name, version))


class _Files:
    """The documents of a bundle while it is being read: follows links, within one folder only."""

    def __init__(self, locations: Mapping[str, Path], folder: Path = Path(), within: Path | None = None) -> None:
        """`folder`: where names begin. Without `within` there are no files but those of `locations`."""
        self.found: dict[str, bytes] = {}
        self.has_aliases = False
        """Whether a file is included twice, by two names, as "a.xsd" and "../here/a.xsd": names that begin at a folder
        which holds all would be one."""
        self._parts: set[tuple[Path, str]] = set()
        self._locations = locations
        self._within = within
        self._folder = folder
        self._waiting: list[str] = []

    def _add(self, name: str, data: bytes) -> None:
        self.found[name] = data
        self._waiting.append(name)
        _check_size(self.found, COUNTED)  # further ones are only counted, for who is told

    def follow(self, main: str, data: bytes) -> None:
        """Read what the main document refers to, and these."""
        if self._within is not None:  # the main document is a file
            self._parts.add(((self._folder / main).resolve(), parse_schema(main, data).get("targetNamespace", "")))
        self._add(main, data)
        while self._waiting:
            base = self._waiting.pop()
            for link in _links(parse_schema(base, self.found[base])):
                self._take(base, link)
        _check_size(self.found)

    def _take(self, base: str, link: Element) -> None:
        target = _target(base, link)
        if target in self.found:
            return
        local = self._local(base, link, target)
        if local is not None:
            self._add(target, _plain(_read(local, f"{target}, which {base} refers to,")))
            part = local.resolve(), link.getroottree().getroot().get("targetNamespace", "")
            if link.tag != f"{{{XSD}}}import":
                self.has_aliases = self.has_aliases or part in self._parts
                self._parts.add(part)

    def _local(self, base: str, link: Element, target: str) -> Path | None:
        namespace, location = link.get("namespace", ""), link.get("schemaLocation", "").strip()
        for key in (target, location, namespace):
            if key and key in self._locations:
                return self._locations[key]
        for beginning, folder in self._locations.items():
            rest = target.removeprefix(beginning)
            if rest != target and folder.is_dir():
                return self._inside(folder, rest.lstrip("/"), folder, base, link)
        if namespace == XML or not location:
            return None  # our own copy, or an import that leaves the place open: legal, and nothing to read
        if urlsplit(target).scheme:
            hint = f"Give a local copy: locations={{{target!r}: Path(...)}}, or --locations {target}=FILE; "
            hint += "for the beginning of such addresses a folder of copies will do"
            raise fault_at(base, link, f" refers to {target}, which would have to be fetched", hint)
        return self._inside(self._folder, target, self._within, base, link)

    def _inside(self, folder: Path, rest: str, within: Path | None, base: str, link: Element) -> Path:
        """A file of a folder, which does not lie outside another one, wherever symbolic links lead. Its name may be
        written as that of an address is ("my%20types.xsd")."""
        path = folder / rest
        try:
            path = path if path.is_file() else folder / unquote(rest)
            inside = within is not None and path.resolve().is_relative_to(within.resolve())
        except (OSError, RuntimeError, ValueError):  # symbolic links in a circle; what no file can be called
            inside = False
        if not inside:
            raise self._outside(base, link, within)
        return path

    def _outside(self, base: str, link: Element, within: Path | None) -> SchemaError:
        target = _target(base, link)
        where, hint = "which is not given with it", ""
        if within is not None:
            where = f"which lies outside of {within}"
            hint = "; or move it there (`jbi codegen` and `jbi types add` take another folder: --within)"
        hint = f"Give the document: locations={{{target!r}: Path(...)}}, --locations {target}=FILE{hint}"
        return fault_at(base, link, f" refers to {target}, {where}", hint)


def normalize(bundle: SchemaBundle) -> Sources:
    """The documents of `bundle` made ready. Raises SchemaError (malformed, XSD 1.1, a missing document, bad marks)."""
    raw = dict(bundle.documents)
    if bundle.main not in raw:
        raise SchemaError(f"the bundle has no document {bundle.main!r}", hint="`main` must name one of `documents`")
    _check_size({bundle.main: b"", **raw})
    order = [bundle.main, *sorted(name for name in raw if name != bundle.main)]
    roots = {name: parse_schema(name, raw[name]) for name in order}
    names = {name: f"d{number}.xsd" for number, name in enumerate(order)}
    marks = parse_marks(bundle.marks)
    for name, root in roots.items():
        _settle_versions(root)
        _refuse_11(name, root)
        _refuse_large_groups(name, root)
        comments_to_attributes(name, root)
    marked = any(check_marks(name, root) for name, root in roots.items())
    _resolve_links(roots, names)
    digest = _digest(roots, names, marks)
    for name, root in roots.items():
        _note_places(name, root)
    documents = {names.get(name, "xml.xsd"): root for name, root in roots.items()}
    return Sources(documents, names[bundle.main], {v: k for k, v in names.items()}, marks, marked, digest)


def _check_size(documents: Mapping[str, bytes], leave: int = 1) -> None:
    """Raises SchemaError for more than is allowed, `leave` times. The first is the main one."""
    main, size = next(iter(documents)), sum(map(len, documents.values()))
    for count, most, what in ((len(documents), MAX_DOCUMENTS, "documents"), (size, MAX_SCHEMA_BYTES, "bytes")):
        if count > most * leave:
            raise SchemaError(
                f"schema {main} has {'at least ' * (leave > 1)}{count:,} {what}, the limit is {most:,}",
                hint="Split the type, or leave out what the metadata do not use",
                limit=most,
                amount=count,
            )


def several(sources: Sources) -> tuple[str, tuple[str, ...]]:
    """A namespace that is imported from several documents, and these; of such validators may read the first alone
    (XML Schema part 1, 4.2.3). ("", ()) for none."""
    found: dict[str, dict[str, None]] = {}
    for root in sources.documents.values():
        for link in root.iterchildren(f"{{{XSD}}}import"):
            target = str(link.get("schemaLocation", ""))
            if target in sources.documents:
                found.setdefault(str(link.get("namespace", "")), {})[sources.names.get(target, target)] = None
    return next(((name, tuple(targets)) for name, targets in found.items() if len(targets) > 1), ("", ()))


def circle(sources: Sources, document: str) -> tuple[str, ...]:
    """The documents, by their names in the bundle, of a circle of includes and imports that `document` lies on, which
    begins and ends with it; of any circle if it is no name of one; () for none."""
    links = {
        name: [
            str(link.get("schemaLocation")) for link in _links(root) if link.get("schemaLocation") in sources.documents
        ]
        for name, root in sources.documents.items()
    }
    own = {known: name for name, known in sources.names.items()}.get(document)
    for start in [own] if own is not None else list(links):
        ways: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
        seen: set[str] = set()
        for at, way in ways:  # breadth first: the shortest
            for target in links[at]:
                if target == start:
                    return tuple(sources.names.get(name, name) for name in (*way, target))
                if target not in seen:
                    seen.add(target)
                    ways.append((target, (*way, target)))
    return ()


def _marks_bytes(marks: str | Path | bytes | None, root: str) -> bytes:
    data = b"" if marks is None else marks if isinstance(marks, bytes) else _read(Path(marks), "marks file")
    parsed = parse_marks(data)
    return msgspec.json.encode(msgspec.structs.replace(parsed, root=root)) if root else data


def _read(path: Path, what: str) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SchemaError(f"{what} {path} is not a file", hint="Check the path", path=str(path))
        if status.st_size > MAX_SCHEMA_BYTES:
            much = f"{status.st_size:,} bytes, the limit is {MAX_SCHEMA_BYTES:,}"
            raise SchemaError(f"{what} {path} has {much}", path=str(path))
        return path.read_bytes()
    except OSError as exc:
        raise SchemaError(
            f"{what} {path} can't be read: {exc.strerror}", hint="Check the path", path=str(path)
        ) from exc


def _plain(data: bytes) -> bytes:
    """A file without a DOCTYPE that nothing in it needs, as those of the W3C begin with. Where an entity is used it
    stays, and is refused."""
    rest, count = _DOCTYPE.subn(lambda found: b"\n" * found[0].count(b"\n"), data, count=1)
    return rest if count and _ENTITY.search(_VERBATIM.sub(b"", rest)) is None else data


def parse_schema(name: str, data: bytes) -> Element:
    """A schema document. Raises SchemaError."""
    try:
        root = parse_metadata(data, what=f"schema {name}", limit=MAX_SCHEMA_BYTES)
    except (MetadataError, OversizeError) as exc:
        raise SchemaError(exc.message, hint=exc.hint, **{**exc.facts, "document": name}) from exc
    if root.tag != f"{{{XSD}}}schema":
        raise SchemaError(
            f"{name} is not an XML Schema: its document element is {root.tag!s}",
            hint=f"The document element of a schema is xs:schema in {XSD}",
            document=name,
        )
    return root


def _links(root: Element) -> Iterator[Element]:
    return root.iterchildren(*_LINKS)


def _target(base: str, link: Element) -> str:
    """Where a link leads: the schemaLocation resolved against `base`, or the namespace of an import without one."""
    location = link.get("schemaLocation", "").strip()
    if not location:
        return str(link.get("namespace", ""))
    if urlsplit(location).scheme:
        return location
    if urlsplit(base).scheme:
        return urljoin(base, location)
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), location))


def _resolve_links(roots: dict[str, Element], names: Mapping[str, str]) -> None:
    xml_needed = False
    for name, root in roots.items():
        for link in _links(root):
            target = names.get(_target(name, link), names.get(link.get("namespace") or "\0"))
            if target is not None:
                link.set("schemaLocation", target)
            elif link.get("namespace") == XML:
                link.set("schemaLocation", "xml.xsd")
                xml_needed = True
            elif not link.get("schemaLocation", "").strip():
                continue  # legal: the components may come from elsewhere, or are not used
            else:
                hint = "Read the bundle with locations= for documents that lie elsewhere"
                raise fault_at(name, link, f" refers to {_target(name, link)}, which is not in the bundle", hint)
    if xml_needed:
        roots["xml.xsd "] = parse_schema("xml.xsd", XML_NAMESPACE_SCHEMA)  # the blank: no name of a bundle


def _settle_versions(root: Element) -> None:
    """Conditional inclusion (XML Schema 1.1 part 1, section 4.2.2) as a processor of version 1.0 that knows it: what is
    for later versions alone goes, and so do the conditions, of which only one of our two processors knows. That of a
    whole document is taken for a remark: what it declares is looked at for what is 1.1 in it."""
    for part in list(root.iter(f"{{{XSD}}}*")):
        conditions = {name: part.attrib.pop(name) for name in list(part.attrib) if str(name).startswith(_VERSIONING)}
        least, most = conditions.get(f"{_VERSIONING}minVersion"), conditions.get(f"{_VERSIONING}maxVersion")
        above = part.getparent()
        if above is not None and (_version(least, 1.0) > 1.0 or _version(most, 1.1) <= 1.0):
            above.remove(part)


def _version(text: Any, otherwise: float) -> float:
    try:
        return otherwise if text is None else float(text)
    except ValueError:
        return otherwise  # no number: it is no condition


def _refuse_11(name: str, root: Element) -> None:
    found = next(root.iter(*_XSD_11), None)
    if found is not None:
        hint = "Express it in XML Schema 1.0, or as a predicate of the subscription"
        local = etree.QName(found).localname
        raise fault_at(name, found, f": xs:{local} is XML Schema 1.1; 1.0 is supported", hint)


def _refuse_large_groups(name: str, root: Element) -> None:
    for group in root.iter(f"{{{XSD}}}sequence", f"{{{XSD}}}choice", f"{{{XSD}}}all"):
        if len(group) > MAX_PARTICLES:
            hint = "Split the type: checking that a content model is deterministic takes cubic time"
            raise fault_at(name, group, f": a group of {len(group)} particles; {MAX_PARTICLES} are allowed", hint)


def _digest(roots: Mapping[str, Element], names: Mapping[str, str], marks: Marks) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name, root in roots.items():
        hashed.update(names.get(name, name).encode())
        for word in _meaning(root):
            hashed.update(word.encode(errors="surrogatepass") + b"\0")
    people = msgspec.structs.replace(marks, schema="", note="")
    hashed.update(msgspec.json.encode(people, order="deterministic"))
    return hashed.hexdigest()


def _meaning(root: Element) -> Iterator[str]:
    """Content of a schema document, without comments, annotations, layout and the prefix of the marks."""
    notes = 0
    walk: Iterator[tuple[str, Any]] = iter(etree.iterwalk(root, events=("start", "end", "start-ns")))
    for event, thing in walk:
        if event in ("start", "end") and thing.tag == f"{{{XSD}}}annotation":
            notes += 1 if event == "start" else -1
        elif notes:
            continue
        elif event == "start-ns":
            if thing[1] != JBI:
                yield f"{thing[0]}={thing[1]}"
        elif event == "end":
            yield ">"
        else:
            yield str(thing.tag)
            yield from (f"{key!s}={value!s}" for key, value in sorted(thing.attrib.items()))
            yield " ".join((thing.text or "").split())


def _note_places(name: str, root: Element) -> None:
    for declaration in root.iter(f"{{{XSD}}}*"):
        if declaration.tag != f"{{{XSD}}}schema":
            declaration.set(PLACE, f"{name}:{declaration.sourceline}")

"""The index against lxml: random predicates and documents, every answer compared. What lxml says is said of documents
that it has parsed in its own way: an oracle that used our parser would not see what that does.

The grammar covers what the index understands and, on purpose, its borders: several nodes at a path, absent nodes, odd
numbers, mixed content, attributes, namespaces, positions, unions of unions, functions of the first node, nested
conditions, absolute paths (of this document element, another, or any) inside conditions, arithmetic, paths to any
depth, any name and the parent, elements within ones of their own name, and documents with other document elements.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath.index.predicate_index import PredicateIndex
from jbi_pubsub.core.xpath.predicate import Predicate, compile_predicate, compiled_xpath

BATCH_EXPRESSIONS: Final = 120
BATCH_DENSE: Final = 300
"""Every fourth batch has so many expressions over three paths, enough for grids, levels and sorted pieces."""

BATCH_DOCUMENTS: Final = 40
"""A batch compares each expression with each document, once with all predicates and once with a half removed."""

NAMESPACES: Final = {"q": "urn:q"}

_NUMBERS: Final = (
    "5",
    "6",
    "7",
    "5.5",
    "0",
    "-3",
    "12.358816",
    "33.2",
    "007",
    "1000000",
    "-0",
    "5.0",
    ".5",
    "4.999999999",
)
_ODD: Final = (
    "",
    " 7",
    "7 ",
    "n/a",
    "1e3",
    "+5",
    "5.",
    ".",
    "x",
    "N",
    " N ",
    "N N",
    "é",
    "1e",
    "-",
    "Infinity",
    "1e400",
    "NaN",
)
_TEXTS: Final = ("x", "N", "7", "5", "", "N N", "é", " 7", "xx")
_NAMES: Final = ("a", "b", "c")


class Mismatch(msgspec.Struct, frozen=True):
    """An answer that differs from lxml's; with these three anybody can repeat it."""

    expression: str
    document: bytes
    lxml: bool


class Comparison(msgspec.Struct, frozen=True):
    """How many answers were compared, how many expressions rows stood for, and every mismatch (at most 20 kept)."""

    compared: int
    expressions: int
    indexed: int
    true: int
    mismatches: tuple[Mismatch, ...]


def compare(comparisons: int, *, seed: int = 1, progress: Callable[[int], None] | None = None) -> Comparison:
    """Compare at least `comparisons` answers; the same `seed` makes the same comparisons."""
    chance = random.Random(seed)  # reproducible cases, no secret
    compared = expressions = indexed = true = 0
    found: list[Mismatch] = []
    while compared < comparisons and len(found) < 20:
        one = _batch(chance, dense=chance.random() < 0.25)
        compared, expressions = compared + one.compared, expressions + one.expressions
        indexed, true = indexed + one.indexed, true + one.true
        found.extend(one.mismatches)
        if progress is not None:
            progress(compared)
    return Comparison(compared, expressions, indexed, true, tuple(found[:20]))


def _batch(chance: random.Random, *, dense: bool) -> Comparison:
    if dense:
        texts = list(dict.fromkeys(_dense(chance) for _ in range(BATCH_DENSE)))
    else:
        texts = list(dict.fromkeys(filter(is_taken, (expression(chance) for _ in range(BATCH_EXPRESSIONS)))))
    documents = [document(chance) for _ in range(BATCH_DOCUMENTS)]
    roots = [(parse_metadata(d), etree.fromstring(d)) for d in documents]
    oracles = [compiled_xpath(f"boolean({t})", NAMESPACES) for t in texts]
    index: PredicateIndex[int] = PredicateIndex()
    predicates = [compile_predicate(text, namespaces=NAMESPACES) for text in texts]
    for key, predicate in enumerate(predicates):
        index.add(key, predicate)
    indexed = index.stats()["indexed"]
    kept = set(range(len(texts)))
    compared = true = 0
    found: list[Mismatch] = []
    for _ in range(2):
        for source, (root, as_lxml_parses) in zip(documents, roots, strict=True):
            answered = index.match(root)
            expected = {k for k in kept if oracles[k](as_lxml_parses)}
            compared, true = compared + len(kept), true + len(expected)
            wrong = expected.symmetric_difference(answered)
            found.extend(Mismatch(texts[k], source, k in expected) for k in wrong if not _is_costly(predicates[k]))
            if len(answered) != len(set(answered)):
                found.append(Mismatch("a key was answered twice", source, lxml=False))
        for key in sorted(kept)[::2]:
            index.remove(key)
            kept.discard(key)
    return Comparison(compared, len(texts), indexed, true, tuple(found))


def is_taken(text: str, namespaces: Mapping[str, str] = NAMESPACES) -> bool:
    """Whether the expression is none of the few that are refused as too costly."""
    try:
        compile_predicate(text, namespaces=namespaces)
    except PredicateError as exc:
        if "cost" not in exc.facts:
            raise
        return False
    return True


def _is_costly(predicate: Predicate) -> bool:
    """Whether it was not evaluated for a document, for what it may cost."""
    return predicate.last_error == str(predicate.too_costly())


def document(chance: random.Random) -> bytes:
    """A small random document; every second one has no path twice."""
    repeats = chance.random() < 0.5
    name = chance.choices(["m", "n", "q:m", "P", "a"], [14, 3, 1, 1, 1])[0]
    inside = "".join(_child(chance, repeats, 0, n) for n in _picked(chance, [*_NAMES, "P", "q:a"], repeats))
    return f'<{name} xmlns:q="urn:q"{_attributes(chance)}>{inside}</{name}>'.encode()


def _picked(chance: random.Random, names: list[str], repeats: bool) -> list[str]:
    chosen = [n for n in names if chance.random() < 0.7]
    if repeats:
        chosen += [chance.choice(names) for _ in range(chance.randrange(4))]
    chance.shuffle(chosen)
    return chosen


def _child(chance: random.Random, repeats: bool, depth: int, name: str) -> str:
    if name == "P" and depth < 2:
        inside = "".join(_child(chance, repeats, depth + 1, n) for n in _picked(chance, [*_NAMES, "P"], repeats))
        return f"<P{_attributes(chance)}>{inside}</P>"
    return f"<{name}{_attributes(chance)}>{_content(chance)}</{name}>"


def _attributes(chance: random.Random) -> str:
    return "".join(f' {n}="{_value(chance)}"' for n in ("id", "q:id") if chance.random() < 0.3)


def _value(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.55:
        return chance.choice(_NUMBERS)
    if kind < 0.85:
        return chance.choice(_TEXTS)
    return chance.choice(_ODD)


def _content(chance: random.Random) -> str:
    value = _value(chance)
    kind = chance.random()
    if kind > 0.2:
        return value
    middle = len(value) // 2
    head, tail = value[:middle], value[middle:]
    between = chance.choice(
        ["<!--c-->", "<?p i?>", f"<![CDATA[{tail}]]>", "<z/>", f"<z>{head}</z>", "&#53;", f"<a>{head}</a>"]
    )
    return f"{head}{between}" if "CDATA" in between else f"{head}{between}{tail}"


def expression(chance: random.Random, depth: int = 0, context: str = "") -> str:
    """A random expression. `context` is "" at the top, else the reader is inside a condition on a step."""
    kind = chance.random()
    if depth < 3 and kind < 0.42:
        joint = chance.choice([" and ", " and ", " or "])
        parts = [expression(chance, depth + 1, context) for _ in range(chance.choice([2, 2, 3]))]
        return "(" + joint.join(parts) + ")"
    if depth < 3 and kind < 0.5:
        return f"not({expression(chance, depth + 1, context)})"
    if depth < 2 and kind < 0.6:
        return _conditional(chance, depth, context)
    if kind < 0.66:
        return _range(chance, context)
    if kind < 0.69:
        return _arithmetic(chance, context)
    if kind < 0.72:
        return _evaluated(chance, context)
    if kind < 0.78:
        return _relative(chance, depth, context)
    if kind < 0.9:
        return _comparison(chance, context)
    return _border(chance, depth, context)


def _dense(chance: random.Random) -> str:
    """Ranges of all sizes close to the numbers that documents hold, with and without an equality; over terms, relative
    paths and parts of texts as well."""
    if chance.random() < 0.2:
        joint = chance.choice((" and ", " or "))
        kinds = chance.sample((_sum, _anywhere, _part, _shared, _shared), chance.choice((1, 1, 2)))
        return joint.join(kind(chance) for kind in kinds)
    found = []
    for path in chance.sample(("/m/a", "/m/b", "/m/P/a"), chance.choice((1, 2, 2, 3))):
        low = float(chance.choice(_NUMBERS)) - chance.choice((0, 0, 0.001, 1, 3))
        size = chance.choice((0, 0.002, 1, 4, 4.5, 1000))
        found.append(f"{path}{chance.choice(('>', '>='))}{low:.9f}")
        if chance.random() < 0.8:
            found.append(f"{path}{chance.choice(('<', '<='))}{low + size:.9f}")
    if chance.random() < 0.3:
        found.append(f"/m/c='{chance.choice(_TEXTS)}'")
    if chance.random() < 0.1:
        found.append(_comparison(chance, ""))
    return chance.choice((" and ", " and ", " and ", " or ")).join(found)


def _sum(chance: random.Random) -> str:
    operator = chance.choice(("<", "<=", ">", ">=", "=", "!="))
    term = chance.choice(
        (
            "a+b",
            "/m/a*/m/b",
            "a - 5",
            "-a",
            "a div 2",
            "/m/P/a - b",
            "count(//a)",
            "a mod 5",
            "P/a*2+a",
            "sum(//a)*2",
            "sum(/m/a)",
            "sum(//@id)-b",
        )
    )
    return f"{term}{operator}{_literal_number(chance)}"


def _shared(chance: random.Random) -> str:
    """A condition on an operand that is no path, as many others ask for it with other constants."""
    operand = chance.choice(
        (
            *("substring-after(a,'N')", "substring(/m/a,1,2)", "translate(b,'N.','x')", "concat(a,'/',b)", "(a|b)[1]"),
            *("string-length(a)", "floor(a)", "round(/m/b)", "count(*[.>5])", "count(//a[b])", "sum(//a//b)", "a|b"),
            *("name(*)", "local-name()", "normalize-space(b)", "//P//a", "a[2]", "P/a[last()]", "b/text()", "/m/P/@*"),
            *("a*string-length(b)", "number(translate(a,'x','5'))", "//a/@id|//b/@id", "string(P[b])", "a/.."),
        )
    )
    kind = chance.random()
    if kind < 0.5:
        condition = f"{operand}{chance.choice(('=', '=', '!=', '<', '>='))}{_literal(chance)}"
    elif kind < 0.7:
        condition = f"{operand}>{chance.choice(_NUMBERS)} and {operand}<={chance.choice(_NUMBERS)}"
    elif kind < 0.8:
        condition = f"contains({operand},'{chance.choice(_TEXTS)[:1]}')"
    else:
        condition = chance.choice(
            (f"{operand}", f"{operand}=/m/c", f"{operand}<b", f"a={operand}", f"lang('{operand[0]}')")
        )
        condition = condition if "'" not in operand or "lang" not in condition else operand
    inside = chance.random()
    return (
        f"not({condition})"
        if inside < 0.2
        else f"{chance.choice(('/m', '/m/P', '/*', '*'))}[boolean({condition})]"
        if inside < 0.4
        else f"({condition})"
    )


def _evaluated(chance: random.Random, context: str) -> str:
    """A comparison of what a function of texts, numbers or nodes gives."""
    operand = chance.choice((_made_text, _made_text, _made_number))(chance, context, 0)
    kind = chance.random()
    if kind < 0.75:
        operator = chance.choice(("=", "=", "!=", "<", "<=", ">", ">="))
        return f"{operand}{operator}{_literal(chance) if kind < 0.6 else _made_number(chance, context, 1)}"
    if kind < 0.9:
        return f"{chance.choice(('contains', 'starts-with'))}({operand},'{chance.choice(_TEXTS)[:2]}')"
    return chance.choice((f"not({operand})", f"boolean({operand})", f"{operand}=true()", f"string({operand})='5'"))


def _made_text(chance: random.Random, context: str, depth: int) -> str:
    if depth > 2 or chance.random() < 0.25:
        return _named(chance, context)
    text, other = _made_text(chance, context, depth + 1), _made_text(chance, context, depth + 2)
    literal = f"'{chance.choice(_TEXTS)[:2]}'"
    return chance.choice(
        (
            *(
                f"substring-after({text},{literal})",
                f"substring-before({text},{other})",
                f"concat({text},{literal},{other})",
            ),
            f"substring({text},{chance.choice(('1', '2', '-1', '1.5', '0', '1,1', '2,2', '0,0 div 0'))})",
            *(
                f"translate({text},'Nx7.',{literal})",
                f"normalize-space({text})",
                f"string({_made_number(chance, context, depth + 1)})",
            ),
            *(
                f"name({_named(chance, context)})",
                f"local-name({_named(chance, context)})",
                "name()",
                "namespace-uri(*)",
            ),
        )
    )


def _made_number(chance: random.Random, context: str, depth: int) -> str:
    if depth > 2 or chance.random() < 0.15:
        return chance.choice((_named(chance, context), "5", "-.5"))
    text, number = _made_text(chance, context, depth + 1), _made_number(chance, context, depth + 1)
    nodes = _named(chance, context) + chance.choice(("", "", f"[.>{chance.choice(_NUMBERS)}]", "[b]"))
    return chance.choice(
        (
            *(
                f"string-length({text})",
                f"number({text})",
                f"floor({number})",
                f"ceiling({number})",
                f"round({number})",
            ),
            *(f"({number}+{_made_number(chance, context, depth + 1)})", f"-{number}", f"({number}*{text})"),
            *(f"count({nodes})", f"sum({nodes})", "string-length()", "number()", "count(*)"),
        )
    )


def _named(chance: random.Random, context: str) -> str:
    path = _path(chance, context) if chance.random() < 0.7 else _deep(chance, context)
    return "self::node()" if path.endswith(".") else path


def _anywhere(chance: random.Random) -> str:
    path = chance.choice(("//a", "//P/b", "/m/*/a", ".//a", "//a/../b", "//q:a", "//P//a", "/*/*", "//P/@id"))
    return f"{path}{chance.choice(('<', '<=', '>', '>=', '=', '!='))}{_literal(chance)}"


def _part(chance: random.Random) -> str:
    path = chance.choice(("a", "/m/b", "/m/P/a", "//a", "//c"))
    text = chance.choice((*_TEXTS, *_NUMBERS, *_ODD))[: chance.randrange(4)]
    return f"{chance.choice(('contains', 'starts-with'))}({path},'{text}')"


def _literal_number(chance: random.Random) -> str:
    return chance.choice(_NUMBERS) if chance.random() < 0.8 else chance.choice(("1e400", "0.5", "12", "-0.5", "'7'"))


def _arithmetic(chance: random.Random, context: str) -> str:
    """A calculation, compared with a constant."""
    term = _operation(chance, context)
    operator = chance.choice(("=", "!=", "<", "<=", ">", ">="))
    return (
        f"{_literal_number(chance)}{operator}{term}" if chance.random() < 0.2 else f"{term}{operator}{_literal(chance)}"
    )


def _operation(chance: random.Random, context: str, depth: int = 0) -> str:
    kind = chance.random()
    if kind < (0.1 if depth < 1 else 0.3):
        path = _path(chance, context) if chance.random() < 0.8 else _deep(chance, context)
        path = "self::node()" if path == "." else path
        return f"{chance.choice(('number', 'number', 'count', 'sum'))}({path})" if chance.random() < 0.4 else path
    if kind < 0.45 and depth:
        return chance.choice((*_NUMBERS, "2", "1e300", "3", "-2", "0"))
    if kind < 0.55:
        return f"-{_operation(chance, context, depth + 1)}" if depth < 3 else "-a"
    if kind < 0.65 and depth < 3:
        return f"({_operation(chance, context, depth + 1)})"
    if depth > 2:
        return chance.choice(("a", "b", "5"))
    operator = chance.choice((" + ", " - ", "*", " div ", " mod "))
    return f"{_operation(chance, context, depth + 1)}{operator}{_operation(chance, context, depth + 1)}"


def _deep(chance: random.Random, context: str) -> str:
    """A relative path: to any depth, to any name, to the parent."""
    name = chance.choice(("a", "b", "P", "q:a", "z", "m", "c"))
    start = chance.choice(
        ("//", "//", "/m//", "//P/", "/m/*/", "/*/*/", ".//", "*/", "descendant::", "/m/P/.//", "/m/a/../")
    )
    if context:
        start = chance.choice(("../", "../", "../../", ".//", "*/", "descendant::", "//", "../*/", "P/../"))
    tail = chance.choice(("", "", "", "/@id", "/..", "/../b", "/*", "/a", "/../@id", "/../../c", "//a", "/."))
    return f"{start}{name}{tail}"


def _relative(chance: random.Random, depth: int, context: str) -> str:
    """A relative path, with conditions on it or without."""
    path = _deep(chance, context)
    kind = chance.random()
    if kind < 0.4:
        return f"{path}{_tested(chance)}"
    if kind < 0.5:
        return f"count({path}){chance.choice(('>', '<', '=', '!='))}{chance.randrange(4)}"
    path += "/b" if path.endswith(".") else ""  # an abbreviated step has no conditions
    text = chance.choice(_TEXTS + _ODD)[:2]
    within = chance.choice(
        (
            f"starts-with(.,'{text}') and ../b<{chance.choice(_NUMBERS)}",
            f"contains(.,'{text}')",
            f".{_tested(chance) or '=5'}",
            f"../a{_tested(chance)}",
            f"{_deep(chance, 'inside')}{_tested(chance)}",
            _arithmetic(chance, "inside"),
            expression(chance, min(depth + 2, 3), "inside"),
        )
    )
    inverted = chance.choice(("", "", "", "not"))
    return f"{inverted}({path}[{within}]{chance.choice(('', '', '/../a', '[1]'))})" if depth else f"{path}[{within}]"


def _path(chance: random.Random, context: str) -> str:
    tail = chance.choice(["a", "b", "c", "a", "P/a", "P/b", "P/P/a", "q:a", "@id", "P/@id", "a/@q:id", "P", "zz"])
    start = (
        chance.choice(["/m/", "/m/", "/m/", "/*/", "", "./", "/n/", "/q:m/"])
        if not context
        else chance.choice(["", "", "", "", "/m/", "./", "/*/", "/n/", "/P/"])
    )
    if context and chance.random() < 0.1:
        return "."
    return start + tail


def _absolute(chance: random.Random) -> str:
    """A path from the document element, whichever that is."""
    return chance.choice(("/m/", "/m/", "/*/", "/n/", "/P/")) + chance.choice(("a", "b", "c", "P/a", "@id", "P", "zz"))


def _tested(chance: random.Random) -> str:
    """What may stand behind a path to make a condition of it."""
    return chance.choice(("", "='N'", "='7'", ">5", "<=6", "!='x'", "=5"))


def _set(chance: random.Random, context: str, depth: int = 0) -> str:
    """An expression for a set of nodes: unions of unions, in brackets and out of them, cut and continued."""
    kind = chance.random()
    if depth > 2 or kind < 0.3:
        path = _path(chance, context)
        return "self::node()" if path == "." else path
    inner = _set(chance, context, depth + 1)
    if kind < 0.65:
        return f"{inner}{chance.choice(('|', ' | '))}{_set(chance, context, depth + 1)}"
    if kind < 0.8:
        return f"({inner})"
    return f"({inner}){chance.choice(('[1]', '[2]', '[last()]', '[.>5]', '[a]', '/a', '//a', '/..', '/@id', '[b][1]'))}"


def _literal(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(_NUMBERS)
    if kind < 0.58:
        return chance.choice(["1e1", "1e400", "0.5", "5.", "-.5"])
    quote = chance.choice("'\"")
    return quote + chance.choice(_TEXTS + _NUMBERS + _ODD) + quote


def _comparison(chance: random.Random, context: str) -> str:
    operator = chance.choice(["=", "=", "=", "!=", "<", "<=", ">", ">="])
    left, right = _path(chance, context), _literal(chance)
    if chance.random() < 0.15:
        left = f"{chance.choice(['string', 'number', 'normalize-space'])}({left})"
    if chance.random() < 0.2:
        left, right = right, left
    space = chance.choice(["", " "])
    return f"{left}{space}{operator}{space}{right}"


def _range(chance: random.Random, context: str) -> str:
    path = _path(chance, context)
    other = path if chance.random() < 0.8 else _path(chance, context)
    low, high = chance.choice(_NUMBERS), chance.choice(_NUMBERS)
    return f"({path}{chance.choice(['>', '>='])}{low} and {other}{chance.choice(['<', '<='])}{high})"


def _conditional(chance: random.Random, depth: int, context: str) -> str:
    step = chance.choice(
        ("/m", "*", "/m/P", "P", "/m/P/P", "a", "/m/a", "/*", "/m/P[1]", "self::node()", "/m/*", "/n/*", "/*/*", "/n")
    )
    if context and step == "*":
        step = "P"
    inside = expression(chance, depth + 1, "inside")
    if step.endswith("*") and chance.random() < 0.6:  # what stands on any name is understood with absolute paths alone
        inside = " and ".join(f"{_absolute(chance)}{_tested(chance)}" for _ in range(chance.choice((1, 1, 2))))
    tail = chance.choice(["", "", "", "/a", "/b", "/@id", "/a='N'", "/a>5"])
    return f"{step}[{inside}]{tail}"


def _border(chance: random.Random, depth: int, context: str) -> str:
    path, other = (p if p != "." else "self::node()" for p in (_path(chance, context), _path(chance, context)))
    literal = _literal(chance)
    text = "'" + chance.choice(_TEXTS) + "'"
    return chance.choice(
        [
            path,
            f"boolean({path})",
            f"{path}=true()",
            f"{path}!=true()",
            f"{path}=false()",
            f"contains({path},{text})",
            f"starts-with({path},{text})",
            f"contains(string({path}),{text})",
            f"string-length({path})>1",
            f"count({path})>1",
            f"count({path})=0",
            f"{path}={other}",
            f"{path}+1=6",
            f"1<{path}<7",
            f"//a={literal}",
            f"{path}|{other}",
            f"({path}|{other})={literal}",
            _set(chance, context),
            f"({_set(chance, context)}){_tested(chance)}",
            f"count({_set(chance, context)})={chance.randrange(4)}",
            f"{path}[1]={literal}",
            f"/m/a[2]={literal}",
            f"/m/*={literal}",
            f"/m/text()={literal}",
            f"{path}/text()={literal}",
            f"sum({path})>5",
            f"position()={literal}" if context else f"/m/P[position()=2]/a={literal}",
            f"{path}/..={literal}",
            f"/m/P[last()]/a={literal}",
            f"translate({path},'N','x')={text}",
            f"{path}>{text}",
            f"true() and {path}",
            f"false() or {path}={literal}",
            literal,
            f"not({expression(chance, depth + 2, context)})",
            "*",
            "@id",
            f"*[1]={literal}",
            "/m[count(a)]",
            f"following::a={literal}",
        ]
    )


def probe(text: str, source: bytes) -> tuple[bool, bool]:
    """The index's and lxml's answer for one expression and document: to look into a mismatch."""
    index: PredicateIndex[int] = PredicateIndex()
    index.add(1, compile_predicate(text, namespaces=NAMESPACES))
    compiled: etree.XPath = compiled_xpath(f"boolean({text})", NAMESPACES)
    return bool(index.match(parse_metadata(source))), bool(compiled(etree.fromstring(source)))

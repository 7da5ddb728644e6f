"""Cost of evaluating an expression, known before it is evaluated: an upper bound in seconds for a document's extent.

Nobody can end an evaluation of libxml2's once it runs, and whoever publishes waits for it. So the bound is computed
from the tree of the expression, and an evaluation above its limit is not made.

Rules:
- The bound is a sum, over all parts of the expression, of terms c * n^i * t^j * f^k * d^l * p^m nanoseconds: n nodes of
  the document, t bytes of it, f children, attributes or namespaces of one element at most, d levels of elements, p
  characters of the expression's longest literal.
- Every part is charged for how often it is evaluated, and for how often one node is the context node of that: all
  nodes once, with the texts below each, are n * d nodes and t * d characters, not n * n and n * t.
- The model follows libxml2's algorithms (xpath.c of 2.14): what a step finds from several nodes is held against all it
  has found before, one by one (but for child, attribute and self); a set that is an argument, or stands in brackets, is
  sorted, where one comparison may walk along all siblings; `=` between two sets compares each with each; contains()
  tries its pattern at each place; translate() looks each character up in a list.
- The factors are measured (tests/core/test_xpath_cost.py does it again), and rounded up to about twice what was seen.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from lxml import etree

from jbi_pubsub.core.xml import MAX_DEPTH, SHORTEST_LEVEL, Element

from .grammar import (
    CONSTANTS,
    SELF,
    Chain,
    Expression,
    Filter,
    FunctionCall,
    LocationStep,
    Negate,
    Path,
    parts_of,
    selects,
)

MAX_SECONDS: Final = 0.1
"""Limit of one evaluation of a predicate on the document at hand; above that it is not made."""

MAX_SECONDS_OF_OBJECT: Final = 0.5
"""Limit of all evaluations that one object's metadata need, the cheapest first; those beyond it are not made."""

MAX_SECONDS_OF_FILTER: Final = 1.0
MAX_SECONDS_OF_FILTERS: Final = 2.0
"""Limit of one evaluation of a payload filter, and of all of one object, the cheapest first: payloads are larger, and
each distinct filter runs once for an object."""

MAX_SECONDS_OF_BYTE: Final = 250e-9
"""More than that for each byte of the payload: a filter that reads it once is in proportion to parsing it (50 ns)."""

MAX_COST: Final = 0.02
"""Highest cost of an expression that is taken at all: seconds on a document of REFERENCE's extent."""

MAX_COST_OF_EVALUATION: Final = 0.0005
"""Highest cost of a part of an expression that the index has evaluated for each document, whoever asks."""

USUAL_LITERAL: Final = 16
"""Characters that the longest literal of an expression is taken to have at least."""

LOOK_EVERY: Final = 64
"""Terms, after which it is looked whether there are too many by now."""

MAX_REMEMBERED: Final = 16
"""Extents for which a bound is remembered; extents are rounded, so that there are few."""


class Extent(NamedTuple):
    """Size of a document: its nodes (attributes included), its bytes, the levels of its elements, and its fan: the
    children or attributes of one element at most, or the namespaces declared."""

    nodes: int
    size: int
    depth: int
    fan: int

    def rounded(self) -> Extent:
        """Each figure rounded up to a power of two: bounds are remembered for these."""
        return Extent(*(1 << (figure - 1).bit_length() if figure > 1 else 1 for figure in self))


REFERENCE: Final = Extent(nodes=64, size=1024, depth=4, fan=16)
"""A document of the kind that metadata are: figure 1 of the paper has 47 nodes, 641 bytes and 4 levels."""


def rough_extent(size: int) -> Extent:
    """The largest extent that `size` bytes can have: `x<a/>` are two nodes, `<a></a>` around it is a level."""
    return Extent(size // 2, size, min(MAX_DEPTH, size // SHORTEST_LEVEL + 1), size // 2).rounded()


def exact_extent(root: Element, size: int) -> Extent:
    """The extent of the document with document element `root`; linear in the document (15 ms for 50,000 nodes)."""
    try:
        nodes = int(_measures.nodes(root))
        declarations = etree.tostring(root, encoding="UTF-8").count(b"xmlns")
        depth = next((levels for levels, is_deeper in _measures.deeper if not is_deeper(root)), MAX_DEPTH)
        fan = next((width for width, is_wider in _measures.wider if not is_wider(root)), nodes)
    except etree.XPathError:  # more nodes than libxml2 has room for in a set
        return rough_extent(size)
    return Extent(nodes, size, depth, max(min(fan, nodes), declarations)).rounded()


def size_of(root: Element) -> int:
    """The bytes of a document of which only the tree is at hand (2 us for figure 1)."""
    return len(etree.tostring(root, encoding="UTF-8"))


class _Measures(threading.local):
    """Expressions that measure documents, each thread's own: lxml locks an expression while it is evaluated."""

    def __init__(self) -> None:
        self.nodes = etree.XPath("count(//node()) + count(//@*)")
        self.deeper = [(n, etree.XPath("boolean(" + "/*" * (n + 1) + ")")) for n in (4, 8, 16, 32, 64, 128)]
        self.wider = [
            (n, etree.XPath(f"boolean(self::node()[//*[node()[{n + 1}] or @*[{n + 1}]]])"))
            for n in (8, 16, 32, 64, 256, 1024, 4096)
        ]


_measures: Final = _Measures()


Term = tuple[int, int, int, int, int]
"""Exponents of n, t, f, d and p."""

_N: Final[Term] = (1, 0, 0, 0, 0)
_T: Final[Term] = (0, 1, 0, 0, 0)
_F: Final[Term] = (0, 0, 1, 0, 0)
_D: Final[Term] = (0, 0, 0, 1, 0)
_P: Final[Term] = (0, 0, 0, 0, 1)
_ONE: Final[Term] = (0, 0, 0, 0, 0)

Sum = dict[Term, float]


class CostBound:
    """The bound for an expression. Immutable but for what it remembers; any thread may use it."""

    def __init__(self, terms: Callable[[], Sum]) -> None:
        """`terms` makes them, when they are first asked for: of most predicates they never are, as nothing is evaluated
        for what the index takes."""
        self._make: Final = terms
        self._terms: tuple[tuple[Term, float], ...] | None = None
        self._known: dict[tuple[Extent, int], float] = {}

    def seconds(self, extent: Extent, literal: int) -> float:
        """For a document of that extent, and a longest literal of so many characters (rounded as well)."""
        key = extent, literal
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known = {}
            if self._terms is None:
                self._terms = tuple(self._make().items())
            known = self._known[key] = _seconds(self._terms, extent, literal)
        return known


def _seconds(terms: Iterable[tuple[Term, float]], extent: Extent, literal: int) -> float:
    n, t, f, d, p = float(extent.nodes), float(extent.size), float(extent.fan), float(extent.depth), float(literal)
    try:
        return 1e-9 * math.fsum(c * n**i * t**j * f**k * d**m * p**q for (i, j, k, m, q), c in terms)
    except OverflowError:
        return math.inf


def longest(holes: Iterable[str]) -> int:
    """The length of the longest literal, rounded up to a power of two."""
    return 1 << (max(USUAL_LITERAL, max(map(len, holes), default=0)) - 1).bit_length()


class TooCostlyError(Exception):
    """More than was to be found out; `seconds` of the reference document so far."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def terms_of(tree: Expression, *, is_sorted: bool, most: float = math.inf, literal: int = 0) -> Sum:
    """The bound for an expression evaluated with the document element as context node. `is_sorted`: the nodes that it
    selects are wanted in document order. Raises TooCostlyError soon after it comes to more than `most` seconds of the
    reference document, with a longest literal of so many characters."""
    model = _CostWalk(most, literal)
    model._add(_BEGIN, _ONE)
    model.evaluate(tree, _ONE, _ONE, is_sorted=is_sorted)
    model.check()
    return model.terms


def costliest(tree: Expression, literal: int) -> Expression:
    """The smallest part of the expression that takes more than half of its cost, for people."""
    part = tree
    while True:
        whole = _alone(part, literal)
        heavy = [p for p in parts_of(part) if _alone(p, literal) > whole / 2]
        if len(heavy) != 1:
            return part
        part = heavy[0]


def _alone(part: Expression, literal: int) -> float:
    return _seconds(terms_of(part, is_sorted=False).items(), REFERENCE, literal)


# -- the model, in nanoseconds ----------------------------------------------------------------------------------------

_BEGIN: Final = 2_000.0
"""The call of lxml with all that it sets up."""
_EVALUATE: Final = 150.0
"""One operator, function or path, with its result made and freed; also what a predicate costs for one node."""
_VISIT: Final = 30.0
"""One node looked at by a step, and put into its set."""
_COMPARE_NODE: Final = 130.0
"""One node compared with a constant: its text made a number."""
_TEXT_NODE: Final = 40.0
"""One node below an element whose text is put together."""
_CHARACTER: Final = 0.8
"""One character copied, counted or compared."""
_MERGE: Final = 0.8
"""One node found held against one found before."""
_PAIR: Final = 3.0
"""One node of a set compared with one of another."""
_PAIR_CHARACTER: Final = 0.1
"""One character of that, where their hashes are the same."""
_SORT: Final = 6.0
"""One comparison of neighbours that are in order already, for each level above them."""
_SORT_WALK: Final = 3.5
"""One sibling walked over by a comparison."""
_SEARCH: Final = 14.0
_SEARCH_CHARACTER: Final = 0.8
"""contains() and its kin: one place tried, and one character of the pattern there."""
_TRANSLATE: Final = 22.0
_TRANSLATE_CHARACTER: Final = 4.0
"""translate(): one character, and one that it is compared with."""
_WIDEST: Final = 4
"""Bytes that translate() may make of one."""
_DOWN: Final = ("descendant", "descendant-or-self")
_NAMESPACES: Final = 8.0
"""Declarations in scope are found by comparing each with each."""

_UNIQUE_AXES: Final = frozenset(["child", "attribute", "self", "namespace"])
"""From different nodes they lead to different nodes, and libxml2 knows it."""


class _NodeCount(NamedTuple):
    """A set of nodes that a part selects: how many nodes in all its evaluations, how often one and the same among them
    at most, how many in one evaluation; whether that is a single node, is in document order as it stands, has no node
    above another."""

    total: Term
    often: Term
    size: Term
    single: bool = False
    orderly: bool = False
    flat: bool = False
    document: bool = False


class _CostWalk:
    """Adds up the terms of an expression, in one walk.

    `times` is how often a part is evaluated, `often` how often at most with one and the same context node.
    """

    def __init__(self, most: float, literal: int) -> None:
        self.terms: Sum = {}
        self._most, self._literal = most, literal
        self._added = 0

    def _add(self, factor: float, one: Term, other: Term = _ONE, third: Term = _ONE) -> None:
        term = one if other is _ONE else _times(one, other, third)
        self.terms[term] = self.terms.get(term, 0.0) + factor
        self._added += 1
        if not self._added % LOOK_EVERY:
            self.check()

    def check(self) -> None:
        """Raises TooCostlyError if there is more by now than there may be."""
        if self._most < math.inf:
            seconds = _seconds(self.terms.items(), REFERENCE, self._literal)
            if seconds > self._most:
                raise TooCostlyError(seconds)

    def evaluate(self, part: Expression, times: Term, often: Term, *, is_sorted: bool = False) -> None:
        """Charge for a part; with `is_sorted` for the sorting of the nodes that it selects too."""
        if selects(part):
            found = self._select(part, times, often)
            if is_sorted:
                self._sort(found, times)
            return
        self._add(_EVALUATE, times)
        if isinstance(part, CONSTANTS):
            self._add(_CHARACTER, times, _P)
        elif isinstance(part, Negate):
            self._scalar(part.operand, times, often)
        elif isinstance(part, FunctionCall):
            self._call(part, times, often)
        elif isinstance(part, Chain):
            self._chain(part, times, often)
        else:
            raise AssertionError(part)

    def _chain(self, chain: Chain, times: Term, often: Term) -> None:
        operator = chain.operators[0]
        if operator in ("and", "or"):
            for operand in chain.operands:
                self.evaluate(operand, times, often)
        elif operator in _COMPARISONS:
            sets = [self._compared(o, times, often) for o in chain.operands]
            for one, other in itertools.pairwise(sets):
                if one is not None and other is not None:
                    self._add(_PAIR, times, one.size, other.size)
                    self._add(_PAIR_CHARACTER, _times(times, _less(one.size, other.size)), _T, _D)
            texts = [length for operand in chain.operands if not selects(operand) for length in _lengths(operand)]
            for found in filter(None, sets):  # a text on the other side is copied for each node
                for length in texts:
                    self._add(_CHARACTER, found.total, length)
        else:
            for operand in chain.operands:
                self._scalar(operand, times, often)

    def _compared(self, part: Expression, times: Term, often: Term) -> _NodeCount | None:
        """An operand of a comparison: of a set every node's text is made, perhaps as a number."""
        if not selects(part):
            self._scalar(part, times, often)
            return None
        found = self._select(part, times, often)
        self._add(_COMPARE_NODE, found.total)
        self._texts(_times(found.often, _D) if not found.flat else _less(times, _times(found.often, _D)))
        return found

    def _texts(self, often: Term) -> None:
        """The text of the whole document, so often."""
        self._add(_TEXT_NODE, often, _N)
        self._add(_CHARACTER, often, _T)

    def _scalar(self, part: Expression, times: Term, often: Term, *, is_sorted: bool = False) -> None:
        """A part whose value is wanted as a text or number: of a set its first node's."""
        if not selects(part):
            self.evaluate(part, times, often)
            return
        found = self._select(part, times, often)
        if is_sorted:
            self._sort(found, times)
        self._add(_COMPARE_NODE, times)
        self._texts(_less(times, _times(found.often, _D)))

    def _call(self, call: FunctionCall, times: Term, often: Term) -> None:
        name, arguments = call.name, call.arguments
        if name in ("count", "boolean", "not", "local-name", "namespace-uri", "name", "sum", "id"):
            for argument in arguments:
                self.evaluate(argument, times, often, is_sorted=True)
            if name in ("sum", "id") and arguments and selects(arguments[0]):
                self._add(_COMPARE_NODE, times, _N)
                self._texts(_times(times, _D))
            if name == "id":
                self._add(_MERGE, times, _N, _N)
                self._add(_TRANSLATE, times, _T, _D)
            return
        for argument in arguments:
            self._scalar(argument, times, often, is_sorted=True)
        if not arguments and name in _OF_THE_CONTEXT:
            self._texts(_less(times, _times(often, _D)))
        if name == "lang":
            self._add(_EVALUATE, times, _D)
        text = arguments[0] if arguments else None
        width = _WIDEST if _is_widened(text) else 1
        for characters in self._characters(text, times, often):
            self._add(2 * _CHARACTER * width, characters)
            if name in _SEARCHES:
                self._add(_SEARCH * width, characters)
                for pattern in _lengths(arguments[1]):
                    self._add(_SEARCH_CHARACTER * width, characters, pattern)
            elif name == "translate":
                self._add(_TRANSLATE * width, characters)
                for listed in _lengths(arguments[1]):
                    self._add(_TRANSLATE_CHARACTER * width, characters, listed)

    def _characters(self, part: Expression | None, times: Term, often: Term) -> list[Term]:
        """The characters of a part's text, in all its evaluations."""
        if part is None:
            return [_times(_less(times, _times(often, _D)), _T)]
        if selects(part):
            return [_times(_less(times, _times(_selected(part, times, often).often, _D)), _T)]
        if isinstance(part, FunctionCall) and part.name == "concat":
            return [c for argument in part.arguments for c in self._characters(argument, times, often)]
        if isinstance(part, FunctionCall) and part.name in _OF_A_TEXT:
            return self._characters(part.arguments[0] if part.arguments else None, times, often)
        return [_times(times, _P)]

    def _select(self, part: Expression, times: Term, often: Term) -> _NodeCount:
        self._add(_EVALUATE, times)
        if isinstance(part, Path):
            return self._walk(part, times, often)
        if isinstance(part, Filter):
            found = self._select(part.primary, times, often)
            self._sort(found, times)
            for predicate in part.predicates:
                self._predicate(predicate, found.total, found.often)
            return found
        if isinstance(part, Chain):
            for operand in part.operands:
                found = self._select(operand, times, often)
                self._sort(found, times)  # if it stands in brackets
                self._add(_MERGE, times, found.size, _N)
        else:
            assert isinstance(part, FunctionCall)
            self._call(part, times, often)
        return _selected(part, times, often)

    def _walk(self, path: Path, times: Term, often: Term) -> _NodeCount:
        if not isinstance(path.start, str):
            self._sort(self._select(path.start, times, often), times)
        found = _start(path, times, often)
        for step in path.steps:
            visits, seen = _reached(step.axis, found)
            self._add(_VISIT, visits)
            if step.axis == "namespace":
                self._add(_NAMESPACES, found.total, _F, _F)
            for predicate in step.predicates:
                self._predicate(predicate, visits, seen)
            if not found.single and step.axis not in _UNIQUE_AXES:
                self._add(_MERGE, visits, _step(step, found, times).size)
            found = _step(step, found, times)
        return found

    def _predicate(self, predicate: Expression, times: Term, often: Term) -> None:
        self._add(_EVALUATE, times)
        self.evaluate(predicate, times, often)

    def _sort(self, found: _NodeCount, times: Term) -> None:
        most = _less(found.total, _times(times, found.size))
        self._add(_SORT, most, _D)
        if not found.orderly:
            self._add(_SORT_WALK, most, _F)


_COMPARISONS: Final = frozenset(["=", "!=", "<", "<=", ">", ">="])
_SEARCHES: Final = frozenset(["contains", "substring-before", "substring-after"])
_OF_THE_CONTEXT: Final = frozenset(["string", "string-length", "normalize-space", "number"])
_OF_A_TEXT: Final = frozenset(
    ["string", "substring", "substring-before", "substring-after", "normalize-space", "translate"]
)
"""Functions whose value is no longer than their first argument."""


def _is_widened(text: Expression | None) -> bool:
    """Whether translate() has a part in making a text."""
    return isinstance(text, FunctionCall) and (text.name == "translate" or any(map(_is_widened, text.arguments)))


def _selected(part: Expression, times: Term, often: Term) -> _NodeCount:
    """Nodes that a part selects; its predicates may only leave less."""
    if isinstance(part, Filter):
        return _selected(part.primary, times, often)
    if isinstance(part, Path):
        found = _start(part, times, often)
        for step in part.steps:
            found = _step(step, found, times)
        return found
    return _NodeCount(_times(times, _N), times, _N)


def _start(path: Path, times: Term, often: Term) -> _NodeCount:
    if path.start == "/":
        return _NodeCount(times, times, _ONE, single=True, orderly=True, flat=True, document=True)
    if path.start == "":
        return _NodeCount(times, often, _ONE, single=True, orderly=True, flat=True)
    assert not isinstance(path.start, str)
    return _selected(path.start, times, often)._replace(single=False, orderly=False, flat=False)


def _step(step: LocationStep, found: _NodeCount, times: Term) -> _NodeCount:
    """Nodes selected after a further step: each node once for each evaluation."""
    axis = step.axis
    if found.document and axis == "child" and step.test[-1] != ")":
        return found._replace(document=False)  # the document element
    total, often = _reached(axis, found)
    size = _reached(axis, _NodeCount(found.size, _ONE, _ONE))[0]
    if axis != "namespace":
        size = _less(size, _N)
    if axis == "child":
        orderly = found.orderly and found.flat
    else:
        orderly = found.orderly and (axis in ("attribute", "self") or (found.single and axis in _DOWN))
    if step.test[-1] == ")" and step is not SELF:  # texts are compared by walking to the next element
        orderly = False
    return _NodeCount(
        _less(total, _times(times, size)),
        _less(often, times),
        size,
        single=found.single and axis in ("self", "parent"),
        orderly=orderly,
        flat=found.flat and axis in ("child", "self", "attribute"),
    )


def _reached(axis: str, found: _NodeCount) -> tuple[Term, Term]:
    """Number of nodes that a step looks at, and how often at one and the same."""
    total, often = found.total, found.often
    if axis == "namespace":  # declarations in scope, which are no nodes of the document
        return _times(total, _F), total
    if axis in ("child", "attribute"):  # a node has one parent
        return _less(_times(often, _N), _times(total, _F)), often
    if axis == "self":
        return total, often
    if axis == "parent":
        return total, _less(total, _times(often, _F))
    if axis in ("ancestor", "ancestor-or-self"):
        return _times(total, _D), total
    if axis in ("descendant", "descendant-or-self"):  # a node has d nodes above it
        return _less(_times(total, _N), _times(often, _N, _D)), _less(total, _times(often, _D))
    if axis in ("following-sibling", "preceding-sibling"):
        return _times(total, _F), _less(total, _times(often, _F))
    return _times(total, _N), total


def _lengths(part: Expression) -> list[Term]:
    """The characters that the text of a part has at most, in one evaluation."""
    if selects(part):
        return [_T]
    if isinstance(part, FunctionCall):
        if part.name == "concat":
            return [length for argument in part.arguments for length in _lengths(argument)]
        if part.name in _OF_A_TEXT or part.name in ("local-name", "name", "namespace-uri"):
            return [_T]
    return [_P]


def _times(one: Term, other: Term, third: Term = _ONE) -> Term:
    i, j, k, m, p = one
    a, b, c, d, e = other
    if third is _ONE:
        return i + a, j + b, k + c, m + d, p + e
    u, v, w, x, y = third
    return i + a + u, j + b + v, k + c + w, m + d + x, p + e + y


def _less(one: Term, other: Term) -> Term:
    """The smaller of two bounds, for most documents; either is right."""
    return one if one == other or _weight(one) <= _weight(other) else other


def _weight(term: Term) -> tuple[int, int, int]:
    nodes, size, fan, depth, _ = term
    return nodes + size + fan, nodes + size, depth

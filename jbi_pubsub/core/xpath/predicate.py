"""Predicate: a condition over the metadata of an information object (paper section 2.3.2).

Rules:
- Default language XPath 1.0, evaluated by lxml with the document element as context node; the predicate is true when
  boolean(expression) is (XPath 1.0 section 4.3: a node-set that is not empty, a number that is neither 0 nor NaN, a
  text that is not empty).
- Everything that can be refused without a document is refused when the predicate is made.
- A predicate whose evaluation fails on a document is false for it; that is counted, and disturbs nobody else.
- Comparisons are lxml's: numeric with a number on either side and for < <= > >= always, else of texts; over a set of
  nodes they hold if they hold for one node.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Final, cast

import msgspec
from lxml import etree

from jbi_pubsub.core import plugins
from jbi_pubsub.core.cache import InUse, SizedCache
from jbi_pubsub.core.errors import JbiError, OversizeError, PredicateError
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.wire.places import in_turn
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language import analysis, conditions
from jbi_pubsub.core.xpath.language.budget import CHARGED, Charge
from jbi_pubsub.core.xpath.language.conditions import ConditionPlan
from jbi_pubsub.core.xpath.language.cost import (
    MAX_COST,
    MAX_SECONDS,
    REFERENCE,
    USUAL_LITERAL,
    CostBound,
    Extent,
    Sum,
    TooCostlyError,
    costliest,
    exact_extent,
    longest,
    rough_extent,
    size_of,
    terms_of,
)
from jbi_pubsub.core.xpath.language.grammar import (
    Parsed,
    around,
    asks_position,
    check_namespaces,
    check_text,
    is_boolean,
    parse,
    selects,
)

NO_NAMESPACES: Final[Mapping[str, str]] = {}

XPATH: Final = "xpath"
"""Name of the default language."""
TCL: Final = "tcl"
"""Name of the constraint language of the trader, which adapters put into XPath."""

MAX_SHAPES_BYTES: Final = 32 << 20
"""Memory of the shapes of expressions remembered; a shape is an expression without its literals. Some 10,000 usual."""

MAX_THREADS: Final = 64
"""Threads whose compiled copy of a predicate is kept; then all copies are dropped and compiled anew."""

Evaluator = Callable[[Element], bool]
Compiler = Callable[[str, Mapping[str, str]], Evaluator]

FOREIGN_ERRORS: Final = (
    JbiError,
    etree.LxmlError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    RecursionError,
    MemoryError,
)
"""Errors that an evaluator may raise about a document (MemoryError is libxml2's word for sets beyond its own limit);
anything else is a fault of the program and is not hidden."""

_tally: Final = threading.Lock()


class PredicateShape(msgspec.Struct, frozen=True, eq=False):
    """Common part of expressions that differ in their literals only.

    `frame` is the text around what lxml evaluates to make a boolean of it, `between` what stands there between the
    literals (expression.py; () if that is the expression as written), `cost` a bound for its time.
    """

    plan: ConditionPlan
    cost: CostBound
    frame: tuple[str, str] = ("boolean(", ")")
    between: tuple[str, ...] = ()

    def evaluated(self, expression: str, holes: list[str]) -> str:
        """Expression of this shape that lxml is to evaluate, without the frame. `holes`: its literals."""
        if not self.between:
            return expression
        return "".join(itertools.chain(*zip(self.between, [*holes, ""], strict=True)))


Identity = tuple[str, tuple[tuple[str, str], ...], str]
"""Expression, namespaces and language."""


class EvaluatedExpression(ABC):
    """An expression that lxml evaluates. Immutable but for its error counter; any thread may use it.

    `expression` and `namespaces` (prefix and URI, sorted) are as given. `errors` counts the evaluations that failed,
    `last_error` says why the last one did. lxml locks a compiled expression while it is evaluated, so each thread
    compiles its own copy on first use (3 us).
    """

    __slots__ = ("__weakref__", "_evaluators", "_literal", "_shape", "errors", "expression", "last_error", "namespaces")

    def __init__(
        self, expression: str, namespaces: tuple[tuple[str, str], ...], shape: PredicateShape, literal: int
    ) -> None:
        """`literal`: length of the longest literal, as the cost takes it."""
        self.expression: Final = expression
        self.namespaces: Final = namespaces
        self.errors = 0
        self.last_error = ""
        self._shape: Final = shape
        self._literal: Final = literal
        self._evaluators: dict[int, etree.XPath] | None = None

    @property
    def cost(self) -> float:
        """Most that one evaluation takes, in seconds on a document of cost.py's REFERENCE."""
        return self.seconds(REFERENCE)

    def seconds(self, extent: Extent) -> float:
        """Most that one evaluation takes on a document of that extent."""
        return self._shape.cost.seconds(extent, self._literal)

    def failed(self, reason: object) -> None:
        """Count an evaluation that failed, and keep why."""
        with _tally:
            self.errors += 1
            self.last_error = str(reason) or type(reason).__name__

    def _compiled(self) -> etree.XPath:
        """This thread's copy; what it raises is one of FOREIGN_ERRORS."""
        return (self._evaluators or {}).get(threading.get_ident()) or self._compile()

    def _compile(self) -> etree.XPath:
        compiled = compiled_xpath(self._text(), dict(self.namespaces))
        if self._evaluators is None or len(self._evaluators) >= MAX_THREADS:
            self._evaluators = {}
        self._evaluators[threading.get_ident()] = compiled
        return compiled

    @abstractmethod
    def _text(self) -> str:
        """Text that lxml evaluates."""


class Predicate(EvaluatedExpression):
    """A condition over metadata, in a `language`. Equal predicates that lxml evaluates are one object."""

    __slots__ = ("_affordable", "_shared", "constants", "is_lenient", "language", "plan")

    def __init__(
        self,
        expression: str,
        namespaces: tuple[tuple[str, str], ...],
        language: str,
        shape: PredicateShape,
        constants: tuple[str | float, ...],
        literal: int,
        shared: Evaluator | None = None,
    ) -> None:
        """`shared`: what decides it, if that is not lxml."""
        super().__init__(expression, namespaces, shape, literal)
        self.language: Final = language
        self.plan: Final = shape.plan
        self.constants: Final = constants
        self.is_lenient = False
        """Whether it counts as true where it can't be decided: for whoever asks again for each part of it."""
        self._shared = shared
        self._affordable = 0
        """Bytes of a document for which an evaluation is known not to cost too much, whatever is in it."""

    def __repr__(self) -> str:
        return f"<Predicate {self.expression!r}>"

    @property
    def evaluates(self) -> bool:
        """Whether lxml has a part in every decision, if not for the documents that other conditions rule out. Else it
        looks only where one condition is about one of several nodes at a path."""
        return self.plan.is_opaque

    @property
    def meaning(self) -> Hashable:
        """Key by which predicates of the same plan mean the same: the constants, if all that it says is in the plan."""
        return self.identity if self.evaluates else self.constants

    @property
    def identity(self) -> Identity:
        """Key by which it equals others: equal ones are evaluated once."""
        return self.expression, self.namespaces, self.language

    @property
    def charge(self) -> Charge:
        """The charge to a budget, if it `evaluates`."""
        plan = self.plan
        shares = conditions.shares_of(plan, tuple([self.constants[number] for number in plan.fixed]))
        return Charge(self.identity, CHARGED * self.cost, shares, plan.is_shared)

    def copy(self) -> Predicate:
        """The same, with no errors counted, and none to be counted for others."""
        made = Predicate(
            self.expression, self.namespaces, self.language, self._shape, self.constants, self._literal, self._shared
        )
        made.is_lenient = self.is_lenient
        return made

    def under(self, evaluator: Evaluator, what: str) -> Predicate:
        """Predicate that `evaluator` decides, with this one and `what` else there is to it: not equal to this one."""
        language = f"{self.language} under {what}"
        return Predicate(self.expression, self.namespaces, language, self._shape, (), USUAL_LITERAL, evaluator)

    def matches(self, root: Element) -> bool:
        """Whether the predicate is true for the document whose document element is `root`."""
        return self.decide(root, size_of(root)) is True

    def decide(self, root: Element, size: int) -> bool | None:
        """As `matches`, but None when the evaluation failed. `size`: bytes of the document."""
        if size > self._affordable:
            if self.seconds(rough_extent(size)) <= MAX_SECONDS:
                self._affordable = size
            elif self.seconds(exact_extent(root, size)) > MAX_SECONDS:
                self.failed(self.too_costly())
                return self.is_lenient or None
        return self.evaluate(root)

    def evaluate(self, root: Element) -> bool | None:
        """Whether it is true, whatever that costs; None when the evaluation failed."""
        try:
            return bool(self.evaluator()(root))
        except FOREIGN_ERRORS as exc:
            self.failed(exc)
            return None

    def evaluator(self) -> Evaluator:
        """This thread's compiled copy; what it raises is one of FOREIGN_ERRORS."""
        return self._compiled() if self._shared is None else self._shared

    def too_costly(self) -> OversizeError:
        """Why it was not evaluated."""
        return OversizeError(f"may take more than {MAX_SECONDS:g} s on this document", limit=MAX_SECONDS)

    def _text(self) -> str:
        before, behind = self._shape.frame
        return before + self._shape.evaluated(self.expression, analysis.skeleton(self.expression)[1]) + behind


def compiled_xpath(expression: str, namespaces: Mapping[str, str]) -> etree.XPath:
    """The only way lxml's XPath is made here: no extension functions, plain strings as results."""
    return etree.XPath(expression, namespaces=dict(namespaces) or None, regexp=False, smart_strings=False)


_shapes: SizedCache[tuple[tuple[str, ...], tuple[tuple[str, str], ...], int], PredicateShape] = SizedCache(
    MAX_SHAPES_BYTES
)
_languages: dict[str, Compiler] = {}


def register_language(name: str, compiler: Compiler) -> None:
    """Make a further predicate language known (paper 2.3.2 names XQL beside XPath).

    `compiler(expression, namespaces)` returns a function from the document element to bool, or raises ValueError (or
    one of our errors) for an expression it refuses. The function is shared by threads. Raises PredicateError for
    "xpath", which can't be replaced. Known in this process alone: to have it in delegates as well, install a plug-in
    `language.NAME` with them (core/plugins.py).
    """
    if name == XPATH or not name:
        raise PredicateError(f"the language name {name!r} is taken", hint="Choose another name", argument="name")
    _languages[name] = compiler


def languages() -> tuple[str, ...]:
    """The predicate languages known here: XPath, those registered, those of installed plug-ins, which are loaded."""
    installed = (name for name in plugins.names("language") if plugins.find("language", name) is not None)
    return tuple(sorted({XPATH, *_languages, *installed}))


def compiler_of(language: str, argument: str = "language") -> Compiler:
    """That of a further language. Raises PredicateError for one that is not known here."""
    compiler = _languages.get(language) or cast("Compiler | None", plugins.find("language", language))
    if compiler is None:
        raise PredicateError(
            f"{argument}: unknown predicate language {language[:MAX_SHOWN]!r}",
            hint="Adapters put it into XPath: write XPath here"
            if language == TCL
            else near_hint(language, (*languages(), TCL)),
            argument=argument,
            expression="",
            position=0,
        )
    return compiler


def compile_predicate(
    expression: str,
    *,
    namespaces: Mapping[str, str] = NO_NAMESPACES,
    language: str = XPATH,
    argument: str = "predicate",
    most: int = analysis.MAX_CONJUNCTS,
) -> Predicate:
    """The predicate that `expression` stands for; `namespaces` binds its prefixes; `most`: conjuncts of its plan;
    of who may have more of them than usual it counts as true where it costs too much: that is for many at once, of whom
    each would have been asked alone, and is asked again.

    Raises PredicateError (facts `argument`, `expression`, `position` in characters from 0) for bad syntax, an unbound
    prefix, an unknown function or number of arguments, a variable, an expression that is too long, too deep or too
    costly, and for an unknown language. `argument` names the offending argument of the caller in the message.
    """
    check_text(expression, argument)
    bound = tuple(sorted(namespaces.items())) if namespaces else ()
    if language != XPATH:
        return _foreign(expression, bound, language, argument)
    cut, holes = analysis.skeleton(expression)
    shape = _shapes.get((cut, bound, most)) if expression.isascii() else None
    if shape is None:
        shape, seen = analysed(expression, namespaces, argument, is_filter=False, most=most)
        if seen != holes:  # the literals can't be told from the text alone: it stands for itself
            shape, holes = msgspec.structs.replace(shape, between=()), seen
        elif expression.isascii():
            with _tally:
                _shapes.put((cut, bound, most), shape, shape.plan.size + 3 * len(expression) + SHAPE_BYTES)
    constants = shape.plan.constants(holes)
    if constants is None:
        shape, constants = msgspec.structs.replace(shape, plan=_IRREGULAR), ()
    predicate = Predicate(expression, bound, XPATH, shape, constants, longest(holes))
    predicate.is_lenient = most > analysis.MAX_CONJUNCTS
    if not predicate.evaluates:
        return predicate
    if predicate.cost > MAX_COST:  # by its literals: its shape alone was not too costly
        raise _costly(expression, argument, parse(expression, namespaces, argument), predicate.cost)
    return predicate if predicate.is_lenient else _evaluated.one(predicate.identity, predicate)


_evaluated: InUse[Identity, Predicate] = InUse()
"""Those that lxml evaluates."""


SHAPE_BYTES: Final = 3 << 10
"""Size of a shape besides its text and plan (measured: terms of the cost and what they came to, keys, the struct)."""

_IRREGULAR: Final = conditions.opaque_plan("a constant that is not a finite number, or an empty text")
_FOREIGN: Final = PredicateShape(
    conditions.opaque_plan("another language"), CostBound(lambda: {(0, 0, 0, 0, 0): 100_000.0})
)
"""Nobody knows what a foreign evaluator takes: 0.1 ms is what a budget is charged for one."""


def analysed(
    expression: str,
    namespaces: Mapping[str, str],
    argument: str,
    *,
    is_filter: bool,
    most: int = analysis.MAX_CONJUNCTS,
) -> tuple[PredicateShape, list[str]]:
    """The shape of an XPath expression, and its literals as written; what is no XPath raises PredicateError.

    lxml compiles it as well: it is the reference, and refuses the little that the grammar here lets through.
    """
    if namespaces:
        check_namespaces(namespaces, expression, argument)
    with in_turn() if len(expression) > LONG else contextlib.nullcontext():
        return _analysed(expression, namespaces, argument, is_filter=is_filter, most=most)


LONG: Final = 512
"""Characters of an expression that is read in its peer's turn: it takes up to 50 ms."""


def _analysed(
    expression: str, namespaces: Mapping[str, str], argument: str, *, is_filter: bool, most: int
) -> tuple[PredicateShape, list[str]]:
    parsed = parse(expression, namespaces, argument)
    tree = parsed.tree
    try:
        compiled_xpath(expression, namespaces)
    except (etree.XPathError, ValueError) as exc:
        log = getattr(exc, "error_log", None)
        position = log[0].column if log else 0
        raise PredicateError(
            f"{argument}: {exc}, at position {position} of {around(expression, position)}",
            argument=argument,
            expression=expression,
            position=position,
        ) from exc
    plan = analysis.analyse(parsed, namespaces, most)
    if is_filter or plan.is_opaque:
        literal = longest(parsed.holes)
        try:
            terms = terms_of(tree, is_sorted=is_filter, most=MAX_COST, literal=literal)
        except TooCostlyError as exc:
            raise _costly(expression, argument, parsed, exc.seconds) from exc
        cost = CostBound(lambda: terms)
    else:
        cost = CostBound(functools.partial(_terms_again, expression, dict(namespaces)))
    if is_filter or is_boolean(tree):
        frame = ("", "")
    elif selects(tree) and not asks_position(tree):
        frame = _FIRST_IS_ENOUGH
    else:
        frame = ("boolean(", ")")
    return PredicateShape(plan, cost, frame, parsed.between), parsed.holes


def _terms_again(expression: str, namespaces: Mapping[str, str]) -> Sum:
    """The cost of what the index takes, which is evaluated only where several nodes are at one path."""
    return terms_of(parse(expression, namespaces, "predicate").tree, is_sorted=False)


_FIRST_IS_ENOUGH: Final = ("boolean(self::node()[", "])")
"""Whether a set has nodes: in a condition libxml2 ends with the first, and sorts nothing."""


def _costly(expression: str, argument: str, parsed: Parsed, seconds: float) -> PredicateError:
    is_long = len(expression) > LONG  # to find the part takes longer than to find out that it is too much
    part = expression if is_long else parsed.text_of(costliest(parsed.tree, longest(parsed.holes)))
    position = max(expression.find(part), 0)
    shown = part if len(part) <= MAX_SHOWN else part[:MAX_SHOWN] + "..."
    told = "in" if is_long else "most of it"
    return PredicateError(
        f"{argument}: may take {seconds * 1000:.0f} ms or more on a document of {REFERENCE.size} bytes, the limit is "
        f"{MAX_COST * 1000:.0f} ms; {told} {shown} at position {position}",
        hint="Name paths by child steps instead of // within conditions, or make several subscriptions of it",
        argument=argument,
        expression=expression,
        position=position,
        cost=seconds,
    )


MAX_SHOWN: Final = 100
"""Characters of a part of an expression in a message."""


def _foreign(expression: str, bound: tuple[tuple[str, str], ...], language: str, argument: str) -> Predicate:
    try:
        evaluator = compiler_of(language, argument)(expression, dict(bound))
    except PredicateError:
        raise
    except FOREIGN_ERRORS as exc:
        raise PredicateError(
            f"{argument}: {exc}", hint=f"Language {language}", argument=argument, expression=expression, position=0
        ) from exc
    return Predicate(expression, bound, language, _FOREIGN, (), USUAL_LITERAL, evaluator)

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

import threading
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec
from lxml import etree

from jbi_pubsub.core import plugins
from jbi_pubsub.core.errors import JbiError, OversizeError, PredicateError
from jbi_pubsub.core.xml import Element

from . import fragment
from .expression import around, check_namespaces, check_text, is_boolean, parse
from .fragment import Plan

NO_NAMESPACES: Final[Mapping[str, str]] = {}

XPATH: Final = "xpath"
"""Name of the default language."""

MAX_EVALUATION: Final = 20_000_000
"""Node visits one evaluation may need, estimated as nodes ** degree. The worst found at the bound took 1.3 s, with
three nested // and elements nested 190 deep. A predicate quadratic in the document may see 4,400 nodes."""

MAX_SHAPES: Final = 4096
"""Shapes of expressions remembered; a shape is an expression without its literals. Then all are forgotten."""

MAX_THREADS: Final = 64
"""Threads whose compiled copy of a predicate is kept; then all copies are dropped and compiled anew."""

Evaluator = Callable[[Element], bool]
Compiler = Callable[[str, Mapping[str, str]], Evaluator]

_COUNT_NODES: Final = "count(//node()) + count(//@*)"
FOREIGN_ERRORS: Final = (
    JbiError,
    etree.LxmlError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    RecursionError,
)
"""What an evaluator may raise about a document; anything else is a fault of the program and is not hidden."""

_tally: Final = threading.Lock()


class Shape(msgspec.Struct, frozen=True, eq=False):
    """What expressions have in common that differ in their literals only.

    `degree` is their cost (expression.py), `boolean` whether their value is a boolean as it stands.
    """

    plan: Plan
    degree: int
    boolean: bool = False


class Predicate:
    """A condition over metadata. Immutable but for its error counter; any thread may use it.

    `expression`, `namespaces` (prefix and URI, sorted) and `language` are as given. `errors` counts the evaluations
    that failed, `last_error` says why the last one did. lxml locks a compiled expression while it is evaluated, so
    each thread compiles its own copy on first use (3 us).
    """

    __slots__ = (
        "_boolean",
        "_evaluators",
        "_shared",
        "constants",
        "degree",
        "errors",
        "expression",
        "language",
        "last_error",
        "namespaces",
        "plan",
    )

    def __init__(
        self,
        expression: str,
        namespaces: tuple[tuple[str, str], ...],
        language: str,
        shape: Shape,
        constants: tuple[str | float, ...],
        shared: Evaluator | None,
    ) -> None:
        self.expression: Final = expression
        self.namespaces: Final = namespaces
        self.language: Final = language
        self.plan: Final = shape.plan
        self.degree: Final = shape.degree
        self._boolean: Final = shape.boolean
        self.constants: Final = constants
        self.errors = 0
        self.last_error = ""
        self._shared = shared
        self._evaluators: dict[int, etree.XPath] | None = None

    def __repr__(self) -> str:
        return f"<Predicate {self.expression!r}>"

    def matches(self, root: Element) -> bool:
        """Whether the predicate is true for the document whose document element is `root`."""
        return self.decide(root) is True

    def decide(self, root: Element, nodes: int = 0) -> bool | None:
        """As `matches`, but None when the evaluation failed. `nodes` is count_nodes(root) if known, else 0."""
        try:
            if self._shared is not None:
                return bool(self._shared(root))
            if self.degree > 1 and (nodes or count_nodes(root)) ** self.degree > MAX_EVALUATION:
                raise OversizeError(f"may need more than {MAX_EVALUATION} node visits on this document")
            evaluators = self._evaluators
            compiled = evaluators.get(threading.get_ident()) if evaluators is not None else None
            return bool((compiled or self._compile())(root))
        except FOREIGN_ERRORS as exc:
            self.failed(exc)
            return None

    def compiled(self) -> etree.XPath | None:
        """This thread's compiled copy, if nothing but its evaluation is needed to decide; else None."""
        if self._shared is not None or self.degree > 1:
            return None
        return (self._evaluators or {}).get(threading.get_ident()) or self._compile()

    def failed(self, reason: Exception) -> None:
        """Count an evaluation that failed, and keep why."""
        with _tally:
            self.errors += 1
            self.last_error = str(reason) or type(reason).__name__

    def _compile(self) -> etree.XPath:
        compiled = compiled_xpath(
            self.expression if self._boolean else f"boolean({self.expression})", dict(self.namespaces)
        )
        if self._evaluators is None or len(self._evaluators) >= MAX_THREADS:
            self._evaluators = {}
        self._evaluators[threading.get_ident()] = compiled
        return compiled


def count_nodes(root: Element) -> int:
    """Nodes of the document, attributes included."""
    return int(root.xpath(_COUNT_NODES, smart_strings=False))


def compiled_xpath(expression: str, namespaces: Mapping[str, str]) -> etree.XPath:
    """The only way lxml's XPath is made here: no extension functions, plain strings as results."""
    return etree.XPath(expression, namespaces=dict(namespaces) or None, regexp=False, smart_strings=False)


_shapes: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], Shape] = {}
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


def compile_predicate(
    expression: str,
    *,
    namespaces: Mapping[str, str] = NO_NAMESPACES,
    language: str = XPATH,
    argument: str = "predicate",
) -> Predicate:
    """The predicate that `expression` stands for; `namespaces` binds its prefixes.

    Raises PredicateError (facts `argument`, `expression`, `position` in characters from 0) for bad syntax, an unbound
    prefix, an unknown function or number of arguments, a variable, an expression that is too long, too deep or too
    costly, and for an unknown language. `argument` names the offending argument of the caller in the message.
    """
    check_text(expression, argument)
    bound = tuple(sorted(namespaces.items())) if namespaces else ()
    if language != XPATH:
        return _foreign(expression, bound, language, argument)
    cut, holes = fragment.skeleton(expression)
    shape = _shapes.get((cut, bound)) if expression.isascii() else None
    if shape is None:
        shape, seen = analysed(expression, namespaces, argument)
        if seen == holes and expression.isascii():
            if len(_shapes) >= MAX_SHAPES:
                _shapes.clear()
            _shapes[cut, bound] = shape
        holes = seen
    constants = shape.plan.constants(holes)
    if constants is None:
        shape, constants = Shape(_IRREGULAR, shape.degree, shape.boolean), ()
    return Predicate(expression, bound, XPATH, shape, constants, None)


_IRREGULAR: Final = fragment.opaque_plan("a constant that is no finite number, or an empty text")
_FOREIGN: Final = Shape(fragment.opaque_plan("another language"), 0)


def analysed(expression: str, namespaces: Mapping[str, str], argument: str) -> tuple[Shape, list[str]]:
    """The shape of an XPath expression, and its literals as written; what is no XPath raises PredicateError.

    lxml compiles it as well: it is the reference, and refuses the little that the grammar here lets through.
    """
    if namespaces:
        check_namespaces(namespaces, expression, argument)
    tree, holes, degree = parse(expression, namespaces, argument)
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
    return Shape(fragment.analyse(tree), degree, is_boolean(tree)), holes


def _foreign(expression: str, bound: tuple[tuple[str, str], ...], language: str, argument: str) -> Predicate:
    compiler = _languages.get(language) or cast("Compiler | None", plugins.find("language", language))
    if compiler is None:
        raise PredicateError(
            f"{argument}: unknown predicate language {language!r}",
            hint=f"Known: {', '.join(languages())}",
            argument=argument,
            expression=expression,
            position=0,
        )
    try:
        evaluator = compiler(expression, dict(bound))
    except PredicateError:
        raise
    except FOREIGN_ERRORS as exc:
        raise PredicateError(
            f"{argument}: {exc}", hint=f"Language {language}", argument=argument, expression=expression, position=0
        ) from exc
    return Predicate(expression, bound, language, _FOREIGN, (), evaluator)

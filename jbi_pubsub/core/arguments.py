"""Arguments of public calls: each is checked where the call is made, by the annotation that is there.

Rules:
- `@checked` reads the annotations of a call once, at its first use, and then looks at each argument. What does not fit
  is an ArgumentError that names the call, the argument, what came and what is taken.
- None is taken where the annotation says so, and means "none".
- A listener or function is looked at too: one that can't be called with what it would be called with is refused, as
  every object would be lost in it; and one that does nothing when it is called, as an `async def` or a generator.
  `called` finds those that nobody can know before.
- A value of a type that is derived from str, bytes or float is taken as one of that.
- Text and numbers have to be fit for their use: no half of a surrogate pair, no NaN, nothing to wait for longer than a
  year.

An own checker, for typeguard (2 us an argument) and beartype (80 ms at import, one item of a list, and neither tells
bool from int or a text from a list of texts) take more and see less: publish() is called 30,000 times a second.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NewType, ParamSpec, Protocol, TypeVar

from .errors import ArgumentError, MetadataError
from .xml import MAX_METADATA_BYTES, Element, to_bytes

if TYPE_CHECKING:

    class XmlElement(Protocol):
        """An lxml element, as far as a type checker has to know: without stubs of lxml that is Any, and whatever is in
        a union with it, too."""

        @property
        def nsmap(self) -> Any:
            """Its prefixes."""

        def getroottree(self) -> Any:
            """Tree that it belongs to."""
else:
    XmlElement = Element

Document = bytes | str | Path | XmlElement
"""An XML document: its bytes, its text, a file that holds it (a Path, or a text that does not begin with `<`), or an
lxml element."""

Source = bytes | str | Path
"""A schema or marks file: the bytes or text of one document, or the path of a file, with those that it refers to."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_KNOWN: Final = 64
"""Combinations of types remembered of one call: it has a few."""

LARGEST: Final = 31_536_000
"""Limit, which is of seconds nearly always: a year, as in settings. A thread can't wait 2^63 ns, and NaN is none."""

SHOWN: Final = 60
"""Characters of a wrong value that a message shows."""

_BASIC: Final = (str, bytes, float)

MADE: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
"""Marks of code whose call only makes what is to be awaited or iterated."""

HAND_OVER: Final = (
    "A call only makes what nobody awaits or iterates. Give a plain function, which hands over to an event loop by "
    "loop.call_soon_threadsafe; or no listener, and take objects by `async for` (jbi_pubsub.aio), or by "
    "`await asyncio.to_thread(adapter.receive, ...)`"
)
"""Advice on what to do instead of an `async def` as a callback."""


def source(given: Source) -> bytes | Path:
    """A schema or marks file as it was given: a text that begins with `<` or `{` is the document, any other a path."""
    if isinstance(given, str):
        return to_bytes(given) if _is_content(given) else Path(given)
    return given


def path_of(given: Document | None) -> Path | None:
    """The file that holds a document, if it was given as one."""
    found = Path(given) if isinstance(given, str) and not _is_content(given) else given
    return found if isinstance(found, Path) else None


def content(given: Document, *, what: str, limit: int = MAX_METADATA_BYTES) -> bytes:
    """A document's bytes; of a file one more than `limit` at most, so that whoever looks at their number sees that it
    is too large. Raises MetadataError, which names `what`, for a file that can't be read."""
    if isinstance(given, bytes):
        return given
    if given == "":
        raise MetadataError(f"{what} is an empty text", hint="Give a document, or the path of one")
    path = path_of(given)
    if path is None:
        assert not isinstance(given, Path)
        return to_bytes(typing.cast("str | Element", given))
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as exc:  # ValueError: a zero byte
        hint = "" if isinstance(given, Path) else "A text is a path unless it begins with <, as XML does"
        reason = getattr(exc, "strerror", None) or exc
        raise MetadataError(f"{what} {str(given)[:200]!r}: {reason}", hint=hint or "Check the path") from exc


def _is_content(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n")[:1] in ("<", "{")


# -- callbacks ------------------------------------------------------------------------------------------------------

_besides: Final[dict[type, tuple[str, ...]]] = {}
"""Methods of protocols that an object may have."""


def may_have(*methods: str) -> Callable[[T], T]:
    """Note methods that an object may have besides those of a protocol of callbacks, and that are called then."""

    def noted(protocol: T) -> T:
        assert isinstance(protocol, type)
        _besides[protocol] = methods
        return protocol

    return noted


def check_callbacks(call: str, argument: str, value: object, methods: Iterable[str], *, answers: bool = False) -> None:
    """Raises ArgumentError when a call of one of the methods that `value` has would do nothing: it is an `async def`,
    or a generator, unless what it `answers` is used. "__call__" stands for the value itself."""
    for method in methods:
        if _does_nothing(value if method == "__call__" else getattr(value, method, None), answers=answers):
            what = _shown(value) if method == "__call__" else f"{method} of {_shown(value)}"
            raise ArgumentError(
                f"{call}: {argument}: {what} is an `async def` or a generator", hint=HAND_OVER, call=call,
                argument=argument,
            )  # fmt: skip


def called(callback: Callable[..., object], *given: object) -> None:
    """Call an application's callback. Raises what it raises, and ArgumentError when it has done nothing but made what
    would have to be awaited or iterated, as a lambda around an `async def` does."""
    made = callback(*given)
    if made is not None and isinstance(made, Coroutine | Generator | AsyncGenerator):
        if not isinstance(made, AsyncGenerator):
            made.close()
        raise ArgumentError(f"the callback {_shown(callback)} returned a {type(made).__name__}", hint=HAND_OVER)


def _plain(function: object) -> FunctionType | None:
    """The Python function that is called, where nothing is said of it beside its code; `inspect` takes 4 us to look."""
    behind = function.__func__ if type(function) is MethodType else function
    return behind if type(behind) is FunctionType and not behind.__dict__ else None


def _does_nothing(function: object, *, answers: bool) -> bool:
    if function is None or ((plain := _plain(function)) is not None and not plain.__code__.co_flags & MADE):
        return False
    while isinstance(function, functools.partial):
        function = function.func
    code = type(function).__call__ if callable(function) and not inspect.isroutine(function) else function
    is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
    return is_async or (not answers and inspect.isgeneratorfunction(code))


# -- the check ------------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """Rule on what one annotation takes. `exact`: types of which every value fits, looked at first. `calls`: methods
    that are called of what is given, "__call__" for itself; `asks`: those whose answers are used."""

    text: str
    fits: Callable[[Any], bool]
    exact: frozenset[type] = frozenset()
    calls: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Have the arguments of `call`, a function or method, checked each time. Raises ArgumentError; a wrong number of
    arguments is Python's own TypeError."""
    parameters = inspect.signature(call).parameters
    bound = next(iter(parameters), "") == "self"
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    spoken = call.__qualname__.removesuffix(".__init__")
    rules: dict[str, _Rule] = {}
    known: dict[tuple[object, ...], tuple[list[tuple[str, int | None, _Rule]], bool]] = {}
    """By the types of the arguments in order, then names and types of those that are given by name: the name, place
    and rule of each of which not every value of its type fits; and whether one is of a derived type."""

    @functools.wraps(call)
    def made(*given: P.args, **named: P.kwargs) -> R:
        nonlocal rules
        kinds = (*map(type, given), *named, *map(type, named.values()))
        doubtful, has_derived = known.get(kinds, (None, False))
        if doubtful is None:
            rules = rules or rules_of(call)  # at first use: annotations may name what is defined later
            places: list[tuple[str, int | None]] = [*zip(rules, range(bound, len(given)), strict=False)]
            places += [(name, None) for name in named if name in rules]
            if takes_any and (unknown := next((name for name in named if name not in rules), None)):
                raise TypeError(f"{call.__qualname__}() got an unexpected keyword argument {unknown!r}")
            values = ((name, at, named[name] if at is None else given[at]) for name, at in places)
            doubtful = [(name, at, rules[name]) for name, at, value in values if type(value) not in rules[name].exact]
            has_derived = any(type(each) is not type(_basic(each)) for each in (*given, *named.values()))
        for name, at, rule in doubtful:
            _check(spoken, name, named[name] if at is None else given[at], rule)
        if len(known) < MAX_KNOWN:
            known[kinds] = doubtful, has_derived
        if has_derived:
            alike: Any = call
            return typing.cast("R", alike(*map(_basic, given), **{name: _basic(each) for name, each in named.items()}))
        return call(*given, **named)

    return made


def _basic(value: object) -> object:
    """A value of a type that is derived from str, bytes or float, as one of that: numpy has such, and no encoder takes
    them. Enumerations stay."""
    if type(value) in _BASIC or not isinstance(value, _BASIC) or isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    return bytes(memoryview(value)) if isinstance(value, bytes) else float(value)


def _check(spoken: str, name: str, value: object, rule: _Rule) -> None:
    if not rule.fits(value):
        raise _refusal(spoken, name, value, rule)
    check_callbacks(spoken, name, value, rule.calls)
    check_callbacks(spoken, name, value, rule.asks, answers=True)


class Argument:
    """One argument that is looked at by itself: of a call that takes many at once."""

    def __init__(self, call: str, name: str, hint: Any) -> None:
        self._call = call
        self._name = name
        self._rule = _rule(hint)

    def check(self, value: object) -> None:
        """Raises ArgumentError."""
        if type(value) not in self._rule.exact:
            _check(self._call, self._name, value, self._rule)


def rules_of(call: Callable[..., object]) -> dict[str, _Rule]:
    """A rule for each parameter but `self`, and for each that a TypedDict lists for the others. Raises TypeError for an
    annotation that is not understood."""
    hints = typing.get_type_hints(call)
    rules: dict[str, _Rule] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:  # **given: Unpack[a TypedDict]
            (named,) = typing.get_args(hints[name])
            rules |= {each: _rule(hint) for each, hint in typing.get_type_hints(named).items()}
        elif name != "self":
            rules[name] = _rule(hints[name])
    return rules


def _refusal(spoken: str, name: str, value: object, rule: _Rule) -> ArgumentError:
    hint = f"It takes {rule.text}"
    if isinstance(value, str) and not _is_text(value):
        hint += "; half a surrogate pair is not a character"
    return ArgumentError(
        f"{spoken}: {name} is {_shown(value)}, of type {type(value).__name__}", hint=hint, call=spoken, argument=name
    )


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def _rule(hint: Any) -> _Rule:
    """The rule of an annotation."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, NewType):
        return _IDENTIFIER if hint.__supertype__ is str else _rule(hint.__supertype__)
    if origin in (typing.Union, types.UnionType):
        return _union([_rule(part) for part in parts])
    if origin is Literal:
        return _Rule(_listed([repr(part) for part in parts]), lambda value: isinstance(value, str) and value in parts)
    if origin is Callable or hint is Callable:
        return _function(parts)
    if isinstance(origin or hint, type):
        return _class(origin or hint, parts)
    raise TypeError(f"no rule for {hint!r}")


def _union(rules: Sequence[_Rule]) -> _Rule:
    exact = frozenset[type]().union(*(rule.exact for rule in rules))
    calls, asks = (tuple(name for rule in rules for name in getattr(rule, each)) for each in ("calls", "asks"))
    text = _listed([rule.text for rule in rules])
    return _Rule(text, lambda value: any(rule.fits(value) for rule in rules), exact, calls, asks)


def _class(kind: type, parts: tuple[Any, ...]) -> _Rule:
    known = _PLAIN.get(kind)
    if known is not None:
        return known
    if getattr(kind, "_is_protocol", False) and not kind.__module__.startswith("collections"):
        return _protocol(kind)
    if parts and issubclass(kind, Mapping):
        key, value = map(_rule, parts)
        return _Rule(
            f"a mapping of {key.text} to {value.text}",
            lambda given: isinstance(given, Mapping) and all(key.fits(k) and value.fits(v) for k, v in given.items()),
        )
    if parts and issubclass(kind, Sequence):
        item = _rule(parts[0])
        return _Rule(
            f"a list or tuple of {item.text}",
            lambda given: (
                isinstance(given, Sequence)
                and not isinstance(given, str | bytes | bytearray | memoryview)
                and all(map(item.fits, given))
            ),
        )
    return _Rule(kind.__name__.lstrip("_"), lambda value: isinstance(value, kind), frozenset([kind]))


def _function(parts: tuple[Any, ...]) -> _Rule:
    arguments = [getattr(part, "__name__", str(part)) for part in parts[0]]
    text = f"a function that takes ({', '.join(arguments)})"
    return _Rule(text, lambda value: callable(value) and _can_be_called(value, len(arguments)), calls=("__call__",))


def _protocol(kind: type) -> _Rule:
    """An object with the protocol's methods, each of which can be called as the protocol says."""
    methods = {
        name: len(inspect.signature(member).parameters) - 1
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }

    def fits(value: object) -> bool:
        found = ((getattr(value, name, None), count) for name, count in methods.items())
        return not isinstance(value, type) and all(callable(m) and _can_be_called(m, count) for m, count in found)

    shapes = [f"{name}{_parameters(getattr(kind, name))}" for name in methods]
    text = f"an object with {' and '.join(shapes)} (a {kind.__name__})"
    asks = tuple(
        name for name in methods if typing.get_type_hints(getattr(kind, name)).get("return") is not types.NoneType
    )
    calls = tuple(name for name in (*methods, *_besides.get(kind, ())) if name not in asks)
    return _Rule(text, fits, calls=calls, asks=asks)


def _parameters(method: Callable[..., object]) -> str:
    return f"({', '.join(list(inspect.signature(method).parameters)[1:])})"


def _can_be_called(function: Callable[..., object], count: int) -> bool:
    plain = _plain(function)
    if plain is not None and not plain.__code__.co_flags & inspect.CO_VARARGS:
        code, given = plain.__code__, count + (plain is not function)
        if not code.co_kwonlyargcount:
            return code.co_argcount - len(plain.__defaults__ or ()) <= given <= code.co_argcount
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:
        return True  # one written in C that does not tell
    except TypeError:
        return False
    return True


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= LARGEST


def _listed(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


_IDENTIFIER: Final = _Rule("text", lambda value: isinstance(value, str), frozenset([str]))
"""An id of ours: it is looked up, and goes nowhere if it is not known."""

_PLAIN: Final[dict[Any, _Rule]] = {
    types.NoneType: _Rule("None", lambda value: value is None, frozenset([types.NoneType])),
    bool: _Rule("True or False", lambda value: isinstance(value, bool), frozenset([bool])),
    int: _Rule(
        "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool), frozenset([int])
    ),
    float: _Rule(f"a number up to {LARGEST:,}", _is_number),
    str: _Rule("text", _is_text),
    bytes: _Rule("bytes", lambda value: isinstance(value, bytes), frozenset([bytes])),
    Path: _Rule("a Path", lambda value: isinstance(value, Path)),
    Element: _Rule("an lxml element", lambda value: isinstance(value, Element)),
}

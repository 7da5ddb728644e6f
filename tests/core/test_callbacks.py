"""Callbacks of applications: what does nothing when it is called is refused where it is given."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from jbi_pubsub import Config, PublisherAdapterLight, QueryListener, SubscriberAdapter, SubscriptionListener
from jbi_pubsub.capi import Connection, QuerySequence, SubscriberSequence
from jbi_pubsub.core.arguments import HAND_OVER, Argument, called
from jbi_pubsub.core.errors import ArgumentError
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.federate import FederateAmbassador


async def coroutine(*_given: Any) -> None: ...


def generator(*_given: Any) -> Iterator[None]:
    yield


async def async_generator(*_given: Any) -> AsyncIterator[None]:
    yield


class Calling:
    async def __call__(self, *given: Any) -> None: ...

    async def method(self, *given: Any) -> None: ...


IDLE = {
    "coroutine": coroutine,
    "generator": generator,
    "asynchronous generator": async_generator,
    "object": Calling(),
    "method": Calling().method,
    "partial": functools.partial(coroutine),
    "partial of an object": functools.partial(functools.partial(Calling())),
}


def _made(function: Any, *names: str) -> Any:
    """An object with these methods, of which the last is the function."""
    plain = {name: lambda *_given: None for name in names[:-1]}
    return type("Made", (), {**plain, names[-1]: staticmethod(function)})()


def _argument(call: Callable[..., Any], name: str) -> Argument:
    """The check that a call makes of one of its arguments."""
    called_by = inspect.unwrap(call)
    hints = typing.get_type_hints(called_by)
    if name not in hints:  # one of its options
        (options,) = typing.get_args(list(hints.values())[-2])
        hints = typing.get_type_hints(options)
    return Argument(called_by.__qualname__, name, hints[name])


PLACES: dict[str, Callable[[Any], object]] = {
    "function": lambda f: _argument(SubscriberAdapter.register_subscriber, "listener").check(f),
    "arrived": lambda f: _argument(SubscriberAdapter.register_subscriber, "listener").check(
        _made(f, "lost", "arrived")
    ),
    "lost": lambda f: _argument(SubscriberAdapter.register_subscriber, "listener").check(_made(f, "arrived", "lost")),
    "qos_changed": lambda f: _argument(SubscriberAdapter.register_subscriber, "listener").check(
        _made(f, "arrived", "lost", "qos_changed")
    ),
    "query": lambda f: _argument(SubscriberAdapter.open_query, "listener").check(_made(f, "finished", "arrived")),
    "end of a query": lambda f: _argument(SubscriberAdapter.open_query, "listener").check(
        _made(f, "arrived", "finished")
    ),
    "refused": lambda f: PublisherAdapterLight(Config(), refused=f),
    "away": lambda f: PublisherAdapterLight(Config(), away=f),
    "sequence": lambda f: _argument(SubscriberSequence.setSequenceCallback, "callback").check(
        _made(f, "infoObjectAvailable")
    ),
    "losses of a sequence": lambda f: _argument(SubscriberSequence.setSequenceCallback, "callback").check(
        _made(f, "infoObjectAvailable", "infoObjectsLost")
    ),
    "query sequence": lambda f: _argument(QuerySequence.executeQuery, "callback").check(
        _made(f, "infoObjectAvailable", "queryFinished")
    ),
    "gaps of a query sequence": lambda f: _argument(QuerySequence.executeQuery, "callback").check(
        _made(f, "infoObjectAvailable", "queryIncomplete")
    ),
    "connection": lambda f: _argument(Connection.setConnectionCallback, "callback").check(
        _made(f, "connectionLost", "connectionRestored")
    ),
    "federate": lambda f: RTIAmbassador(Config()).connect(
        type("Federate", (FederateAmbassador,), {"reflect_attribute_values": staticmethod(f)})()
    ),
}
"""Wherever an application is called back."""


@pytest.mark.parametrize("function", IDLE.values(), ids=IDLE)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_callback_that_would_do_nothing_is_refused(place: Callable[[Any], object], function: Any) -> None:
    # When an application gives it, expect to be told what to do instead
    with pytest.raises(ArgumentError, match="async def") as told:
        place(function)
    assert told.value.hint == HAND_OVER
    assert "asyncio.to_thread" in HAND_OVER
    assert "call_soon_threadsafe" in HAND_OVER


def test_a_provider_may_be_a_generator_and_no_coroutine() -> None:
    check = _argument(Connection.registerQueryProvider, "provider").check
    check(_made(generator, "queryReceived"))
    for function in (coroutine, async_generator):
        with pytest.raises(ArgumentError, match="queryReceived"):
            check(_made(function, "queryReceived"))


@pytest.mark.parametrize("protocol", [SubscriptionListener, QueryListener])
def test_other_methods_may_be_what_they_like(protocol: Any) -> None:
    names = ["arrived", "lost" if protocol is SubscriptionListener else "finished", "of_its_own"]
    Argument("call", "listener", protocol).check(_made(coroutine, *names))


@pytest.mark.processes
def test_what_a_lambda_hides_is_found_when_it_is_called() -> None:
    for function in (coroutine, generator, async_generator):
        with pytest.raises(ArgumentError, match="returned a"):
            called(lambda given, hidden=function: hidden(given), 1)
    # Expect what was handed over to an event loop to be fine
    loop = asyncio.new_event_loop()
    called(lambda: loop.create_future())
    loop.close()


class Plain:
    def __call__(self, a: int, b: int) -> None: ...

    def method(self, a: int) -> None: ...

    @classmethod
    def of(cls, a: int, b: int = 0) -> None: ...


def _with_a_signature_of_its_own() -> Callable[..., object]:
    """A function that says that it takes three."""

    def made(*given: Any) -> None: ...

    made.__signature__ = inspect.signature(lambda _a, _b, _c: None)  # type: ignore[attr-defined]
    return made


SHAPES: dict[str, Callable[..., object]] = {
    "two": lambda _a, _b: None,
    "one": lambda _a: None,
    "three": lambda _a, _b, _c: None,
    "none": lambda: None,
    "a default": lambda _a, _b, _c=1: None,
    "defaults alone": lambda _a=1, _b=2, _c=3: None,
    "any": lambda *_given: None,
    "one and any": lambda _a, *_given: None,
    "three and any": lambda _a, _b, _c, *_given: None,
    "a keyword": lambda _a, _b, *, _c: None,
    "a keyword's default": lambda _a, _b, *, _c=1: None,
    "any keywords": lambda _a, _b, **_named: None,
    "by position": lambda _a, _b, /: None,
    "method": Plain().method,
    "method of a class": Plain.of,
    "object": Plain(),
    "partial": functools.partial(lambda _a, _b, _c: None, 1),
    "wrapper": functools.wraps(lambda _a: None)(lambda *_given: None),
    "signature": _with_a_signature_of_its_own(),
    "type": dict,
    "built in": len,
}


@pytest.mark.parametrize("function", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", range(4))
def test_a_function_is_taken_for_so_many_arguments_as_python_would_give_it(
    function: Callable[..., object], count: int
) -> None:
    # Given what Python says of a call with so many arguments
    fits: AbstractContextManager[object] = nullcontext()
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:
        assert function is dict, "it does not tell"
    except TypeError:
        fits = pytest.raises(ArgumentError)
    # Expect the check of a callback to say the same
    with fits:
        Argument("call", "function", Callable[[int] * count, object]).check(function)  # type: ignore[misc,valid-type]

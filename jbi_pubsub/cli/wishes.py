"""QoS requests of an application for its contract, from the command line, and what it got."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.quality import WISHES, GrantedQos, Wish, checked_wish
from jbi_pubsub.policy.units import amount

from .options import repeated
from .settings import blamed

WISH: Final = repeated(
    'importance=4, "deadline=5 s", "max_rate=64 kbps", "max_size=50 KB", "shape=scale 0.5", replace=XPATH;'
    " require=deadline for a required field; attribute.NAME=VALUE. Repeatable.",
    "--wish",
    metavar="NAME=VALUE",
)

_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "importance": int,
    "deadline": lambda said: amount(said, "seconds"),
    "max_rate": lambda said: amount(said, "rate"),
    "max_size": lambda said: int(amount(said, "bytes")),
    "replace": str,
}
_NAMES: Final = (*WISHES, "require", "attribute.NAME")


def wish_of(words: Sequence[str]) -> Wish | None:
    """None without any. Raises ConfigurationError."""
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ConfigurationError(f"--wish {word!r} is not NAME=VALUE", hint=f"There is {', '.join(_NAMES)}")
        if name.startswith("attribute."):
            given.setdefault("attributes", {})[name.removeprefix("attribute.")] = value
        elif name in ("shape", "require"):
            given[name] = (*given.get(name, ()), value)
        elif name in _READ:
            with blamed(f"--wish {word!r}"):
                given[name] = _READ[name](value)
        else:
            from jbi_pubsub.policy.file import nearest  # here, and below: few commands need what policies are made of

            raise ConfigurationError(f"--wish {word!r}: no {name!r}", hint=nearest(name, _NAMES))
    if not given:
        return None
    wish = Wish(**given)
    checked_wish(wish)
    return wish


def granted_shown(wish: Wish, granted: Iterable[tuple[str, GrantedQos]]) -> Iterator[str]:
    """Lines of what each delegate grants of a wish."""
    from jbi_pubsub.policy.policy import shown_value

    from .policies import field_told

    for where, got in granted:
        less = {each.field: each.policy for each in got.reduced}
        parts = []
        for name in WISHES:
            if getattr(wish, name) is not None:
                value = shown_value(getattr(got.settings, "shapes" if name == "shape" else name))
                why = "" if name not in less else f' (by policy "{less[name]}")' if less[name] else " (by default)"
                parts.append(f"{name} {field_told(name, value)}{why}")
        yield f"granted at {where[:8]}: {', '.join(parts) or 'nothing was wished'}"
        for each in got.unmet:
            required, offered = (field_told(each.field, value) for value in (each.required, each.offered))
            yield f"not met by {each.registration[:64]}: {each.field} {required} is required, {offered} offered"

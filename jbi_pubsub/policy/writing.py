"""Policies written into a file: the whole text, or one value where it stands, all else as it was written."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jbi_pubsub.core import files
from jbi_pubsub.core.errors import ConfigurationError, PolicyError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.toml import Where

from .access import access_rules
from .file import PolicyDocument, key_text, nearest, parse, read, value_text
from .policyfile import CONTEXT, NAME_MOST, built_in
from .policyset import PolicySet, policies_of

VALUE_MOST: Final = 10_000
"""Characters of a key or value that is set by itself."""


def set_value(path: Path, key: str, said: str) -> tuple[PolicySet, PolicySet]:
    """Change one value of a file, if all of it can be used then; the policies before and after. Raises PolicyError, or
    ConfigurationError for a file that can't be written."""
    if max(len(key), len(said)) > VALUE_MOST:
        raise PolicyError(f"a key or value of more than {VALUE_MOST} characters", hint="Write it into the file")
    before: list[PolicySet] = []

    def text() -> str:
        document, _ = read(path)
        before.append(policies_of(document))
        document.check()
        return changed(document, key, value_of(key, said))

    after = rewritten(path, text)
    return before[0], after


def is_about_people(key: str) -> bool:
    """Whether a path leads to a group or role, which access rules may be about. Raises PolicyError."""
    return _names_of(key)[:1] in (["group"], ["role"])


def rewritten(path: Path, made: Callable[[], str]) -> PolicySet:
    """The policies of the text, which the file has from now on, as a whole. `made` makes it of what the file says: who
    else changes it waits meanwhile. Raises PolicyError, ConfigurationError."""
    try:
        with files.written(path.resolve(), mode=None) as file:  # a link stays one
            text = made()
            document = parse(text, path.name)
            access_rules(document)
            policies = policies_of(document)
            document.check()
            file.write(text.encode())
    except (OSError, UnicodeEncodeError) as exc:
        raise ConfigurationError(f"{path} can't be written: {getattr(exc, 'strerror', None) or exc}") from exc
    return policies


def changed(document: PolicyDocument, key: str, value: object) -> str:
    """The text of a file with another value, all else as it was: `key` is the file's own path, names in the place of
    numbers: space.strategy, policy.BFTrack.importance, role."Patrol-1", mission."Route Irish".active. Raises
    PolicyError."""
    where, header = _path_of(document, key)
    try:
        text, said = document.text, value_text(value)
    except ValueError as exc:  # Python writes no numbers of more than 4,300 digits
        raise PolicyError(f"{key[:NAME_MOST]}: that number is too large", hint="Say a smaller one") from exc
    span = document.span(where)
    if span is not None:
        new = text[: span[0]] + said + text[span[1] :]
    else:
        line = f"{key_text(str(where[-1]))} = {said}"
        if _at(document, where[:-1]) is None:
            end = "" if text.endswith("\n") or not text else "\n"
            new = f"{text}{end}\n{header}\n{line}\n"
        else:
            lines = text.split("\n")
            lines.insert(document.key(where[:-1]).line, line)
            new = "\n".join(lines)
    with contextlib.suppress(ValueError):  # it is no TOML
        if _at(tomllib.loads(new), where) == value:
            return new
    raise PolicyError(f"{key} can't be changed where its table is written in line", hint="Write it with a header")


def value_of(key: str, said: str) -> Any:
    """The value that somebody means who writes `said` for a key, or a path: as TOML where it is that and the key is not
    for texts, otherwise a text. `deadline=5 s` needs no quotes, nor does `version=1.0`."""
    name = key.rpartition(".")[2]
    if (
        name in (*CONTEXT, "name", "when", "preference", "hours", "members") and said[:1] not in "[\"'"
    ) or key.startswith("role."):
        return said
    try:
        return tomllib.loads(f"value = {said}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number that Python does not read
        return said


def _at(tables: Any, where: Where) -> Any:
    """Value that stands there; None for nothing."""
    for name in where:
        if isinstance(tables, list) and isinstance(name, int) and name < len(tables):
            tables = tables[name]
        elif isinstance(tables, dict):
            tables = tables.get(str(name))
        else:
            return None
    return tables


def _path_of(document: PolicyDocument, key: str) -> tuple[Where, str]:
    """Where a path leads, and the header of the table that is missing."""
    names = _names_of(key)
    kind = names[0] if names else ""
    if kind in ("space", "group", "role") and len(names) == 2:
        return tuple(names), f"[{kind}]"
    if kind == "preference" and len(names) == 3:
        if names[1] in built_in() and _at(document, ("preference", names[1])) is None:
            raise PolicyError(
                f"preference {names[1]!r} is built in", hint=f"Write all of it under [preference.{names[1]}] first"
            )
        return tuple(names), f"[preference.{key_text(names[1])}]"
    if kind in ("policy", "link", "mission") and len(names) == 3:
        tables = document.get(kind, [])
        named = [table.get("name") for table in tables]
        if names[1] not in named:
            raise PolicyError(f"no {kind} {names[1]!r}", hint=nearest(names[1], [str(name) for name in named if name]))
        return (kind, named.index(names[1]), names[2]), ""
    near = near_name(kind, ("space", "policy", "link", "mission", "preference", "role", "group"))
    example = 'For example space.strategy, policy.NAME.importance, link.NAME.rate, role."Patrol-1", mission.NAME.active'
    is_near = near and near != kind
    raise PolicyError(
        f"{key[:NAME_MOST]!r} is not a path of a policy file",
        hint=f"Did you mean {near!r}? {example}" if is_near else example,
    )


def _names_of(key: str) -> list[str]:
    """The names of a path, as TOML reads them."""
    try:
        if "\n" in key:
            raise tomllib.TOMLDecodeError("several lines")
        found: Any = tomllib.loads(f"{key} = 0")
        names = []
        while isinstance(found, dict):
            (name,) = found  # a key that brings its own value may say several, or none
            names.append(name)
            found = found[name]
    except (ValueError, RecursionError) as exc:
        hint = 'Names with other signs than letters, digits, - and _ stand in ": role."A b"'
        raise PolicyError(f"{key[:NAME_MOST]!r} is not a path of names with dots between", hint=hint) from exc
    return names

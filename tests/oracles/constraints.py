"""An oracle for constraints of the trader: random trees that are written as text and evaluated as trees, by the rules
of the page alone; and events as values and as XML. Shares no code with the product: there is no parser here."""

from __future__ import annotations

import math
import random
from typing import Any

from lxml import etree

NAMES = tuple("abcd")
TEXTS = ("x", "xy", "", "it's", 'a"b')
Tree = tuple[Any, ...]
UNDEFINED = object()


def random_tree(rnd: random.Random, depth: int) -> Tree:
    """A constraint, without comparisons of truth values but by property."""
    if depth <= 0 or rnd.random() < 0.4:
        match rnd.randrange(6):
            case 0:
                return (rnd.choice(["==", "!=", "<", "<=", ">", ">="]), _property(rnd), _literal(rnd))
            case 1:
                return (rnd.choice(["==", "!=", "<", "<=", ">", ">="]), _sum(rnd, 2), _sum(rnd, 2))
            case 2:
                return ("exist", rnd.choice(NAMES))
            case 3:
                return ("~", rnd.choice([_property, _literal])(rnd), rnd.choice([_property, _literal])(rnd))
            case 4:
                return ("in", rnd.choice([_property, _literal])(rnd), rnd.choice(NAMES))
            case _:
                return rnd.choice([_property(rnd), ("==", ("p", "$domain"), ("l", "x")), ("l", True)])
    if rnd.random() < 0.3:
        return ("not", random_tree(rnd, depth - 1))
    return (rnd.choice(["and", "or"]), *(random_tree(rnd, depth - 1) for _ in range(rnd.randrange(2, 4))))


def _property(rnd: random.Random) -> Tree:
    return ("p", rnd.choice(NAMES))


def _literal(rnd: random.Random) -> Tree:
    return ("l", rnd.choice([0, 1, 2.5, 1000, True, False, *TEXTS]))


def _sum(rnd: random.Random, depth: int) -> Tree:
    if depth <= 0 or rnd.random() < 0.4:
        return rnd.choice([_property(rnd), ("l", rnd.choice([0, 1, 2, 0.5])), ("-", ("l", 3))])
    return (rnd.choice("+-*/"), _sum(rnd, depth - 1), _sum(rnd, depth - 1))


def written(tree: Tree) -> str:
    """The constraint as text."""
    match tree:
        case ("p", name):
            return str(name)
        case ("l", bool() as value):
            return "TRUE" if value else "FALSE"
        case ("l", str() as value):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case ("l", value):
            return repr(value)
        case ("exist", name):
            return f"exist {name}"
        case ("in", member, name):
            return f"{written(member)} in {name}"
        case ("not" | "-" as word, inner):
            return f"{word} ({written(inner)})"
        case (sign, *parts):
            return "(" + f" {sign} ".join(map(written, parts)) + ")"
    raise AssertionError(tree)


def value(tree: Tree, values: dict[str, Any]) -> Any:
    """The value by the page's rules; UNDEFINED where it has none."""
    match tree:
        case ("p", name):
            return values.get(name, UNDEFINED)
        case ("l", constant):
            return constant
        case ("exist", name):
            return name in values
        case ("not", inner):
            found = value(inner, values)
            return (not found) if isinstance(found, bool) else UNDEFINED
        case ("and" | "or" as word, *parts):
            found = [value(part, values) for part in parts]
            decides = word == "or"
            if any(each is decides for each in found):
                return decides
            return (not decides) if all(each is (not decides) for each in found) else UNDEFINED
        case ("in", member, name):
            one, some = value(member, values), values.get(name)
            return one in some if isinstance(one, str) and isinstance(some, tuple) else UNDEFINED
        case ("~", part, whole):
            one, other = value(part, values), value(whole, values)
            return one in other if isinstance(one, str) and isinstance(other, str) else UNDEFINED
        case ("-", inner):
            number = value(inner, values)
            return -number if _is_number(number) else UNDEFINED
        case ("==" | "!=" | "<" | "<=" | ">" | ">=" as sign, left, right):
            return _compared(sign, value(left, values), value(right, values))
        case (sign, left, right):
            return _calculated(sign, value(left, values), value(right, values))
    raise AssertionError(tree)


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and not math.isnan(found)


def _compared(sign: str, one: Any, other: Any) -> Any:
    if _is_number(one) and _is_number(other):
        below, equal = one < other, one == other
        above = not below and not equal
        return {"==": equal, "!=": not equal, "<": below, "<=": not above, ">": above, ">=": not below}[sign]
    same = any(isinstance(one, kind) and isinstance(other, kind) for kind in (str, bool))
    if not same or sign not in ("==", "!="):
        return UNDEFINED
    return (one == other) is (sign == "==")


def _calculated(sign: str, one: Any, other: Any) -> Any:
    if not (_is_number(one) and _is_number(other)):
        return UNDEFINED
    one, other = float(one), float(other)  # 0 * -3 is -0, by which other things come of a division
    if sign == "/" and other == 0:
        return UNDEFINED if one == 0 else math.copysign(math.inf, one) * math.copysign(1, other)
    return {"+": one + other, "-": one - other, "*": one * other, "/": one / other if other else 0}[sign]


def random_event(rnd: random.Random) -> tuple[dict[str, Any], Any]:
    """An event's values, and its XML."""
    values: dict[str, Any] = {"$domain": rnd.choice(["x", "cold"])}
    event = etree.Element("event")
    etree.SubElement(etree.SubElement(event, "header"), "domain").text = values["$domain"]
    body = etree.SubElement(event, "body")
    for name in NAMES:
        kind = rnd.choice(["", "number", "string", "boolean", "sequence"])
        if not kind:
            continue
        element = etree.SubElement(body, name)
        match kind:
            case "number":
                values[name] = rnd.choice([0, 1, 2.5, -3, 1000])
                element.set(kind, str(values[name]))
            case "string":
                values[name] = rnd.choice(TEXTS)
                element.set(kind, values[name])
            case "boolean":
                values[name] = rnd.random() < 0.5
                element.set(kind, str(values[name]).lower())
            case _:
                values[name] = tuple(rnd.choices(TEXTS, k=rnd.randrange(3)))
                element.set(kind, "string")
                for each in values[name]:
                    etree.SubElement(element, "item").text = each
    return values, event

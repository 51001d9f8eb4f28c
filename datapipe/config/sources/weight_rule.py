"""A rule that gives the weight of each cell of a source: "tokens * quality^2".

    text ─▶ a tree of operations on numbers and names ─▶ the weight of a cell, from its values

Sums, products, quotients and whole powers are exact fractions. Roots, logarithms and other powers have 60 digits, rounded as
the standard of decimal arithmetic defines, so every machine computes the same weights.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Overflow
from fractions import Fraction

from datapipe.dataclass import dataclass
from datapipe.weights import exact_number

_LARGEST = 10_000  # digits of a number
_CONTEXT = Context(prec=60, Emax=_LARGEST, Emin=-_LARGEST)
_MOST_BITS = 4096  # of a numerator or denominator: longer ones are rounded to 60 digits
_MOST_POWER = 64  # the largest whole power that is computed exactly
_MOST_CHARACTERS = 500

_OPERATORS: Mapping[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda base, power: _power(base, power),  # noqa: PLW0108 - it is defined below
}
_FUNCTIONS: Mapping[str, tuple[range, Callable[..., Fraction]]] = {
    "min": (range(1, 100), lambda *numbers: min(numbers)),
    "max": (range(1, 100), lambda *numbers: max(numbers)),
    "sqrt": (range(1, 2), lambda number: Fraction(_CONTEXT.sqrt(_decimal(_rooted(number))))),
    "log": (range(1, 2), lambda number: Fraction(_CONTEXT.ln(_decimal(_positive(number))))),
}
_EXPECTED = "expected numbers, names, + - * / ^, parentheses, min, max, sqrt and log, as in tokens * quality^2"


class NoWeightError(Exception):
    """A rule gives no weight of at least 0 for a cell."""


@dataclass(frozen=True, slots=True)
class WeightRule:
    """A parsed rule. `names`: those of the values that it needs."""

    tree: ast.expr
    names: frozenset[str]

    def weight(self, values: Mapping[str, Fraction]) -> Fraction:
        """The weight of a cell with these values. Raises NoWeightError where it is no number of at least 0."""
        try:
            weight = _value(self.tree, values)
        except ZeroDivisionError as error:
            raise NoWeightError("it divides by 0") from error
        except Overflow as error:
            raise NoWeightError(f"a number has more than {_LARGEST:,} digits") from error
        except ValueError as error:
            raise NoWeightError(str(error)) from error
        if weight < 0:
            raise NoWeightError(f"it is {_shown(weight)}, and weights are at least 0")
        return weight


def parse_rule(text: str) -> WeightRule:
    """Raises ValueError, with what was found and what is expected, for text that is no rule."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"found {len(text):,} characters, expected a rule of at most {_MOST_CHARACTERS}")
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"found {text!r}, {_EXPECTED}") from error
    names: set[str] = set()
    _check(tree, text, names)
    return WeightRule(tree, frozenset(names))


def _check(node: ast.expr, text: str, names: set[str]) -> None:
    """Raises ValueError for anything but what a rule may hold, and collects the names of its values."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        parts = [node.operand]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        counts, _ = _FUNCTIONS.get(node.func.id, (range(0), None))
        if len(node.args) not in counts:
            raise ValueError(f"found {ast.unparse(node)} in {text!r}, {_EXPECTED}")
        parts = node.args
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        exact_number(node.value)
        parts = []
    elif (name := _name(node)) is not None:
        names.add(name)
        parts = []
    else:
        raise ValueError(f"found {ast.unparse(node)} in {text!r}, {_EXPECTED}")
    for part in parts:
        _check(part, text, names)


def _name(node: ast.expr) -> str | None:
    """A name, which may have dots: filter.classifier.score."""
    if isinstance(node, ast.Name):
        return node.id
    before = _name(node.value) if isinstance(node, ast.Attribute) else None
    return None if before is None or not isinstance(node, ast.Attribute) else f"{before}.{node.attr}"


def _value(node: ast.expr, values: Mapping[str, Fraction]) -> Fraction:
    match node:
        case ast.BinOp():
            value = _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
        case ast.UnaryOp():
            value = -_value(node.operand, values)
        case ast.Call(func=ast.Name(id=name)):
            value = _FUNCTIONS[name][1](*(_value(part, values) for part in node.args))
        case ast.Constant():
            value = exact_number(node.value)
        case _:
            value = values[_name(node) or ""]
    is_long = max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS
    return Fraction(_decimal(value)) if is_long else value


def _power(base: Fraction, power: Fraction) -> Fraction:
    if power.denominator == 1 and abs(power) <= _MOST_POWER:
        return base ** int(power)
    if not base:
        return Fraction(0) if power > 0 else base / base  # which has no value
    return Fraction(_CONTEXT.exp(_CONTEXT.multiply(_CONTEXT.ln(_decimal(_positive(base))), _decimal(power))))


def _positive(number: Fraction) -> Fraction:
    if number <= 0:
        raise ValueError(f"{_shown(number)} has no logarithm, and no broken power")
    return number


def _rooted(number: Fraction) -> Fraction:
    if number < 0:
        raise ValueError(f"{_shown(number)} has no root")
    return number


def _shown(number: Fraction) -> str:
    return f"{_decimal(number):.6g}"


def _decimal(number: Fraction) -> Decimal:
    return _CONTEXT.divide(Decimal(number.numerator), Decimal(number.denominator))

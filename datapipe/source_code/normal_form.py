"""The normal form of source code: bytes that change when what the code does may change.

    def f(x: int) -> int:          a definition, as `ast` parses it
        "Adds one."
        return x + 1  # quickly    ->  b"(FunctionDef args:(arguments args:[(arg arg:s1:x)]) body:[(Return …"

The form leaves out everything that does not decide what code does: comments, white space and line numbers; docstrings and
other statements that are only a string; `pass`; `description`, `title` and `examples` of pydantic's `Field`; annotations of
variables and functions. It keeps annotations in the bodies of classes, where pydantic, dataclasses and NamedTuple read them,
and on functions with a decorator that may read them.

The form is the same under Python 3.11, 3.12 and 3.13, unlike `ast.dump`: it writes fields by name in sorted order, skips absent
and empty fields, joins neighbouring constants of an f-string, and writes text as UTF-8, because `repr` escapes by the Unicode
tables of the interpreter.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import lru_cache
from typing import Any

PROSE = frozenset({"description", "title", "examples"})
_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_BLIND = frozenset({"property", "cached_property", "staticmethod", "classmethod", "abstractmethod", "override"})
"""Decorators that do not read annotations."""

_SCOPES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_BLOCKS = frozenset({"body", "orelse", "finalbody"})


def normal_form(node: ast.AST, fields: Collection[str] = (), without: Collection[ast.AST] = ()) -> bytes:
    """The normal form of a statement or expression.

    Args:
        fields: the names of pydantic's `Field` in the module, dotted: "Field", "pydantic.Field".
        without: nodes of a body to leave out.
    """
    writer = _Writer(fields, without)
    writer.write(node)
    return "".join(writer.out).encode("utf-8", "surrogatepass")


class _Writer:
    """Writes a tree as a list of texts."""

    def __init__(self, fields: Collection[str], without: Collection[ast.AST]) -> None:
        self.out: list[str] = []
        self._fields, self._without = fields, without
        self._in_class = self._is_plain = False

    def write(self, node: ast.AST) -> None:
        if type(node) in _SCOPES:
            self._write_scope(node)
        else:
            skipped = ""
            if isinstance(node, ast.AnnAssign):
                skipped = "" if self._in_class else "annotation"
            elif isinstance(node, ast.arg):
                skipped = "annotation" if self._is_plain else ""
            self._write_fields(node, skipped)

    def _write_fields(self, node: ast.AST, skipped: str) -> None:
        """Writes a node without the field `skipped`."""
        kind, out = type(node), self.out
        opening, fields = _layout(kind)
        out.append(opening)
        for name, label in fields:
            value = getattr(node, name, None)
            if name == skipped or (value is None and kind is not ast.Constant):
                continue
            if isinstance(value, ast.AST):
                out.append(label)
                self.write(value)
            elif not isinstance(value, list):
                out.append(label + _atom(value))
            elif items := self._items(node, kind, name, value):
                out.append(label)
                self._write_list(items)
        out.append(")")

    def _write_list(self, items: list[Any]) -> None:
        self.out.append("[")
        for item in items:
            if isinstance(item, ast.AST):
                self.write(item)
            else:
                self.out.append(_atom(item))
        self.out.append("]")

    def _write_scope(self, node: Any) -> None:
        """Writes a class or a function, which decides what annotations inside it count."""
        outer = self._in_class, self._is_plain
        self._in_class = isinstance(node, ast.ClassDef)
        if not self._in_class:
            self._is_plain = all(_last_name(decorator) in _BLIND for decorator in node.decorator_list)
        self._write_fields(node, "returns" if self._is_plain and not self._in_class else "")
        self._in_class, self._is_plain = outer

    def _items(self, node: ast.AST, kind: type[ast.AST], name: str, items: list[Any]) -> list[Any]:
        """The items of a list field without those that have no effect."""
        if name in _BLOCKS:
            return [item for item in items if not (_has_no_effect(item) or item in self._without)]
        if kind is ast.JoinedStr:
            return _joined_constants(items)
        if name == "keywords" and items and self._fields and isinstance(node, ast.Call) and dotted(node.func) in self._fields:
            return [keyword for keyword in items if keyword.arg not in PROSE]
        return items


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or of attributes of a name; "" of anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(decorator: ast.expr) -> str:
    return dotted(decorator).rpartition(".")[2]


@lru_cache(maxsize=256)
def _layout(kind: type[ast.AST]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text that opens a node, and its fields with the text before their values."""
    return f"({kind.__name__}", tuple((name, f" {name}:") for name in sorted(set(kind._fields) - _SKIPPED))


def _has_no_effect(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    return isinstance(statement, ast.Pass)


def _joined_constants(items: list[ast.expr]) -> list[Any]:
    """The parts of an f-string with neighbouring texts joined; versions of Python split them at different bytes."""
    joined: list[Any] = []
    for item in items:
        text = item.value if isinstance(item, ast.Constant) and isinstance(item.value, str) else None
        if text is None:
            joined.append(item)
        elif joined and isinstance(joined[-1], str):
            joined[-1] += text
        elif text:
            joined.append(text)
    return joined


def _atom(value: Any) -> str:
    if isinstance(value, str):
        return f"s{len(value)}:{value}"
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    return f"{type(value).__name__} {value!r}"

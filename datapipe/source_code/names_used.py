"""The names that code uses, resolved by Python's scope rules.

    def f(batch):                                local: batch
        from m import find as look               local, an import: m.find
        return look(table, batch.words.size)     global: table   import: m.find   attributes: words, size

A name that a function binds is local to it. Comprehensions and lambdas have their own scopes. Methods do not see the names of
the class body. A look-up of a computed name (`getattr(x, name)`) is reported, because the code does not tell what it reaches;
with a literal name it is an attribute like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from datapipe.source_code.normal_form import PROSE, dotted

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)
_NAMELESS = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "name", "names", "kind", "level", "module", "type_comment"})
_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_GETTERS = frozenset({"attrgetter", "methodcaller"})
_COMPUTED = frozenset({"eval", "exec", "globals", "__import__", "getmembers", "__subclasses__"})


@dataclass(frozen=True, slots=True)
class Import:
    """The target of an imported name: a module (`name` is None), or a name in a module."""

    module: str
    name: str | None = None


Reference = tuple[str | Import, tuple[str, ...]]
"""A global name or an import, and the attributes that the code looks up on it."""


@dataclass(slots=True)
class NamesUsed:
    """The names that some code uses.

    Attributes:
        references: global names, and imports inside functions.
        attributes: names looked up on other values.
        modules: modules imported inside functions.
        computed: (line, call) of each look-up of a computed name.
    """

    references: set[Reference] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    computed: list[tuple[int, str]] = field(default_factory=list)


Scope = Mapping[str, tuple[Import, ...]]
"""Local names, which hide global ones, with the imports that may have bound them; () for a name that is only assigned."""


def names_used(nodes: Iterable[ast.AST], package: str, fields: frozenset[str] = frozenset()) -> NamesUsed:
    """The names that code at module level or in the body of a class uses.

    Args:
        package: the package that relative imports are relative to.
        fields: the names of pydantic's `Field`, whose prose arguments are ignored as in `normal_form`.
    """
    reader = _Reader(package, fields)
    for node in nodes:
        reader.read(node, {})
    return reader.used


def imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Import]]:
    """The names that an import statement binds, with their targets; "*" for all names of a module."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, Import(alias.name)) if alias.asname else _first_part(alias.name)
        return
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    for alias in node.names:
        yield alias.asname or alias.name, Import(module, alias.name)


def _first_part(module: str) -> tuple[str, Import]:
    first = module.partition(".")[0]
    return first, Import(first)


def modules_named(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The modules that an import statement runs, and the imported names, which may be modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    for _, target in imported(node, package):
        yield target.module
        yield f"{target.module}.{target.name}"


class _Reader:
    """Walks a tree and keeps the local names at each node."""

    def __init__(self, package: str, fields: frozenset[str]) -> None:
        self.used = NamesUsed()
        self._package, self._fields = package, fields
        self._special: dict[type[ast.AST], Callable[[Any, Scope], None]] = {
            ast.Name: self._name,
            ast.AugAssign: self._augmented,
            ast.Attribute: self._attribute,
            ast.Call: self._call,
            ast.Subscript: self._subscript,
            ast.Import: self._import,
            ast.ImportFrom: self._import,
            ast.MatchClass: self._match_class,
            ast.arg: self._annotated,
            ast.AnnAssign: self._annotated,
            ast.ClassDef: self._class,
            **dict.fromkeys(_FUNCTIONS, self._function),
            **dict.fromkeys(_COMPREHENSIONS, self._comprehension),
        }

    def read(self, node: ast.AST, scope: Scope) -> None:
        if (special := self._special.get(type(node))) is not None:
            special(node, scope)
        else:
            self._children(node, scope)

    def _children(self, node: ast.AST, scope: Scope, skipped: str = "") -> None:
        for name in child_fields(type(node)):
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.read(item, scope)
            elif isinstance(value, ast.AST) and name != skipped:
                self.read(value, scope)

    def _name(self, node: ast.Name, scope: Scope) -> None:
        if not isinstance(node.ctx, ast.Store):  # a target that is assigned is not read
            self._refer(node.id, (), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        if isinstance(node.target, ast.Name):
            self._refer(node.target.id, (), scope)
        self._children(node, scope)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> None:
        text = _name_in_vars(node)
        if text is None:
            self._children(node, scope)
        else:
            self._attribute(node.value.args[0], scope, (text,))  # type: ignore[attr-defined]

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        self.used.modules.update(modules_named(node, self._package))

    def _match_class(self, node: ast.MatchClass, scope: Scope) -> None:
        self.used.attributes.update(node.kwd_attrs)
        self._children(node, scope)

    def _annotated(self, node: ast.arg | ast.AnnAssign, scope: Scope) -> None:
        self._annotation(node.annotation, scope)
        self._children(node, scope, skipped="annotation")

    def _refer(self, name: str, attributes: tuple[str, ...], scope: Scope) -> None:
        targets: tuple[str | Import, ...] = scope.get(name, (name,))
        self.used.references.update((target, attributes) for target in targets)
        if not targets:
            self.used.attributes.update(attributes)

    def _attribute(self, node: ast.expr, scope: Scope, attributes: tuple[str, ...] = ()) -> None:
        """`node.attributes[0].attributes[1]…`"""
        while isinstance(node, ast.Attribute):
            attributes = (node.attr, *attributes)
            node = node.value
        if isinstance(node, ast.Name):
            if (node.id, *attributes[:1]) == ("sys", "modules"):
                self.used.computed.append((node.lineno, "sys.modules"))
            self._refer(node.id, attributes, scope)
        else:
            self.used.attributes.update(attributes)
            self.read(node, scope)

    def _annotation(self, node: ast.expr | None, scope: Scope) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return
        if node is not None:
            self.read(node, scope)

    # ---------------------------------------------------------------------------------------------- calls

    def _call(self, node: ast.Call, scope: Scope) -> None:
        name = dotted(node.func)
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        is_builtin = "." not in name and name not in scope
        if last in _BY_NAME and is_builtin and len(node.args) > 1:
            self._look_up(node, scope)
        elif last in _GETTERS:
            texts = [_literal(argument) for argument in (node.args[:1] if last == "methodcaller" else node.args)]
            self.used.attributes.update(part for text in texts if text is not None for part in text.split("."))
            if None in texts:
                self.used.computed.append((node.lineno, last))
        elif last == "import_module":
            self._import_module(node)
        elif (last in _COMPUTED and (is_builtin or last.startswith("_") or last == "getmembers")) or (
            last == "vars" and is_builtin and node.args
        ):
            self.used.computed.append((node.lineno, last))
        self.read(node.func, scope)
        is_field = name in self._fields
        for argument in node.args:
            self.read(argument, scope)
        for keyword in node.keywords:
            if not (is_field and keyword.arg in PROSE):
                self.read(keyword.value, scope)

    def _look_up(self, node: ast.Call, scope: Scope) -> None:
        text = _literal(node.args[1])
        if text is None:
            self.used.computed.append((node.lineno, dotted(node.func)))
        else:
            self._attribute(node.args[0], scope, (text,))

    def _import_module(self, node: ast.Call) -> None:
        text = _literal(node.args[0]) if node.args else None
        if text is None or text.startswith("."):
            self.used.computed.append((node.lineno, "import_module"))
        else:
            self.used.modules.add(text)
            self.used.references.add((Import(text), ()))

    # ---------------------------------------------------------------------------------------------- scopes

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        for part in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords), *node.body):
            self.read(part, scope)

    def _comprehension(self, node: Any, scope: Scope) -> None:
        own: Scope = {name: () for generator in node.generators for name in _stored(generator.target)}
        self._children(node, {**scope, **own})
        self.read(node.generators[0].iter, scope)  # evaluated in the outer scope

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> None:
        arguments = node.args
        if not isinstance(node, ast.Lambda):
            for decorator in node.decorator_list:
                self.read(decorator, scope)
            self._annotation(node.returns, scope)
        self.read(arguments, scope)
        own: dict[str, tuple[Import, ...]] = dict(scope)
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        own.update((argument.arg, ()) for argument in named if argument is not None)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        bound = _Bound(self._package)
        for statement in body:
            bound.read(statement)
        own.update({name: targets for name, targets in bound.names.items() if name not in bound.global_names})
        for statement in body:
            self.read(statement, own)


class _Bound:
    """The names that statements bind in their own scope."""

    def __init__(self, package: str) -> None:
        self.names: dict[str, tuple[Import, ...]] = {}
        self.global_names: set[str] = set()
        self._package = package

    def read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                self.names.setdefault(node.id, ())
            return
        if isinstance(node, _SCOPES):
            if not isinstance(node, (*_COMPREHENSIONS, ast.Lambda)):
                self.names.setdefault(node.name, ())
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, target in imported(node, self._package):
                self.names[name] = (*self.names.get(name, ()), target)
            return
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            self.global_names.update(node.names if isinstance(node, ast.Global) else ())
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            self.names.setdefault(node.name, ())
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self.names.setdefault(node.rest, ())
        for name in child_fields(type(node)):
            value = getattr(node, name, None)
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST):
                    self.read(child)


@lru_cache(maxsize=256)
def child_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a node that may hold nodes with names in them."""
    return tuple(name for name in kind._fields if name not in _NAMELESS)


def _stored(node: ast.AST) -> Iterator[str]:
    return (name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store))


def _name_in_vars(node: ast.Subscript) -> str | None:
    """The literal name in `vars(x)["name"]`; None for other subscripts."""
    call = node.value
    return _literal(node.slice) if isinstance(call, ast.Call) and dotted(call.func) == "vars" and call.args else None


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

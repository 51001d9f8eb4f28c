"""A Python file as its definitions: the parts that code can use, and that an edit changes, independently of each other.

    import numpy as np              import        names bound to modules and to names of modules
    _LIMIT = 3                      definition    _LIMIT
    _TABLE[0] = 1                   …             part of the definition of _TABLE, which it changes
    class Batch: …                  definition    Batch: bases, fields, and the members that run without being named
        def words(self): …          member        Batch.words: counts where something named `words` is used
    register(Batch)                 effect        runs when the module is imported: counts with anything of the module

An effect is any statement that is none of the others, except a block under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import ast
import gc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from datapipe.source_code.names_used import Import, NamesUsed, imported, modules_named, names_used
from datapipe.source_code.normal_form import dotted, normal_form

PASSIVE = frozenset(
    {
        "property", "staticmethod", "classmethod", "functools.cached_property", "functools.lru_cache", "functools.cache",
        "contextlib.contextmanager", "typing.override", "typing.overload", "abc.abstractmethod",
        "datapipe.stage.documents.segmentation",
    }
)  # fmt: skip
"""Decorators that do not call the decorated function. A member with another decorator may run without being named."""

KERNEL = "datapipe.kernels.kernel"

REGISTERS_NOTHING = PASSIVE | {
    KERNEL, "datapipe.kernels.inline", "dataclasses.dataclass", "functools.wraps", "functools.total_ordering",
    "functools.singledispatch", "typing.final", "typing.runtime_checkable", "enum.unique",
}  # fmt: skip
"""Decorators that change no other object. Another one may put what it decorates where code finds it without its name."""

REACHES = ("REACHES", "reaches")
"""Names, in a module and in a class, of the declaration of what computed look-ups may reach: a tuple of "module:definition",
and of ".name" for all members of that name; () where the look-ups reach only data."""

_COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.TryStar)


@dataclass(eq=False)
class Definition:
    """A definition of a module.

    Attributes:
        name: "words_by", "DocumentBatch", "DocumentBatch.words", or "" for the effects of a module.
        nodes: its statements.
        members: of a class, the members that count only where they are named.
    """

    module: Module
    name: str
    nodes: list[ast.stmt]
    members: tuple[Definition, ...] = ()

    @property
    def line(self) -> int:
        """The line of its first statement, which orders definitions of one name."""
        return self.nodes[0].lineno if self.nodes else 0

    @property
    def identity(self) -> str:
        return f"{self.module.name}:{self.name}"

    @cached_property
    def form(self) -> bytes:
        """SHA-256 of the normal form, without the members."""
        left_out = {node for member in self.members for node in member.nodes}
        hasher = hashlib.sha256()
        for node in self.nodes:
            hasher.update(normal_form(node, self.module.field_names, left_out))
        return hasher.digest()

    @cached_property
    def used(self) -> NamesUsed:
        """The names that the definition uses, without those of its members."""
        left_out = {node for member in self.members for node in member.nodes}
        if not left_out:
            return names_used(self.nodes, self.module.package, self.module.field_names)
        parts: list[ast.AST] = []
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                parts += [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
                parts += [statement for statement in node.body if statement not in left_out]
            else:
                parts.append(node)
        return names_used(parts, self.module.package, self.module.field_names)

    @cached_property
    def decorators(self) -> frozenset[str]:
        """The full names of its decorators."""
        return frozenset(
            name
            for node in self.nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            for name in self.module.full_names(node.decorator_list)
        )

    @property
    def is_class(self) -> bool:
        return any(isinstance(node, ast.ClassDef) for node in self.nodes)

    @property
    def declares(self) -> tuple[str, ...] | None:
        """The declaration of what computed look-ups in it may reach; None without a declaration."""
        for node in self.nodes:
            for statement in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    if any(isinstance(target, ast.Name) and target.id in REACHES for target in targets):
                        return tuple(ast.literal_eval(statement.value))
        return None


class Module:
    """The definitions and imports of one file.

    Attributes:
        name: as imports name it.
        file: as messages name it.
        is_strict: whether an undeclared computed look-up is an error.
        package: the package that relative imports are relative to.
        definitions: by name; several where a name is defined more than once.
        imports: names bound by imports at module level.
        stars: modules imported with `*`.
        modules: modules that its imports run.
    """

    def __init__(self, name: str, file: str, *, is_package: bool, is_strict: bool) -> None:
        self.name, self.file, self.is_strict = name, file, is_strict
        self.package = name if is_package else name.rpartition(".")[0]
        self.definitions: dict[str, list[Definition]] = {}
        self.imports: dict[str, tuple[Import, ...]] = {}
        self.stars: list[str] = []
        self.modules: list[str] = []
        self._effects: list[ast.stmt] = []

    @classmethod
    def parse(cls, name: str, file: str, source: bytes, *, is_package: bool, is_strict: bool) -> Self:
        """The module with the definitions of its source."""
        module = cls(name, file, is_package=is_package, is_strict=is_strict)
        for statement in _statements(source):
            module._add(statement)
        return module

    @cached_property
    def effects(self) -> Definition | None:
        """The statements that run whenever the module is imported; None without such statements."""
        return Definition(self, "", self._effects) if self._effects else None

    def binds(self, name: str) -> bool:
        """Whether the module defines or imports the name."""
        return name in self.definitions or name in self.imports

    @cached_property
    def field_names(self) -> frozenset[str]:
        """The names of pydantic's `Field` in the module."""
        names = [name for name, targets in self.imports.items() if Import("pydantic", "Field") in targets]
        modules = [name for name, targets in self.imports.items() if Import("pydantic") in targets]
        return frozenset([*names, *(f"{name}.Field" for name in modules)])

    def full_names(self, nodes: Sequence[ast.expr]) -> Iterator[str]:
        """The names in expressions, in full where they are imported: "functools.cached_property"; "" for other expressions."""
        for node in nodes:
            inner = node.value if isinstance(node, ast.Subscript) else node
            first, _, rest = dotted(inner.func if isinstance(inner, ast.Call) else inner).partition(".")
            if first in self.definitions:
                base = f"{self.name}.{first}"
            else:
                target = next(iter(self.imports.get(first, ())), None)
                base = first if target is None else ".".join(filter(None, (target.module, target.name)))
            yield f"{base}.{rest}" if rest else base

    # ---------------------------------------------------------------------------------------------- parsing

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(statement)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._define(statement.name, Definition(self, statement.name, [statement]))
            self._register(statement)
        elif isinstance(statement, ast.ClassDef):
            self._define(statement.name, Definition(self, statement.name, [statement], self._members(statement)))
            self._register(statement)
        elif not isinstance(statement, _COMPOUND) and (names := _names_changed(statement)):
            for name in names:
                self._change(name, statement)
        elif not (_is_prose(statement) or _is_main(statement)):
            self._effect(statement)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        self.modules += modules_named(statement, self.package)
        for name, target in imported(statement, self.package):
            if name == "*":
                self.stars.append(target.module)
            else:
                self.imports[name] = (*self.imports.get(name, ()), target)

    def _register(self, statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Makes a function or class an effect, too, where its decorator may add it to a registry."""
        if not set(self.full_names(statement.decorator_list)) <= REGISTERS_NOTHING:
            self._effects.append(statement)

    def _define(self, name: str, definition: Definition) -> None:
        self.definitions.setdefault(name, []).append(definition)

    def _change(self, name: str, statement: ast.stmt) -> None:
        """An assignment to a name, or to a part of its value."""
        if isinstance(statement, ast.AugAssign) or name not in _names_bound(statement):
            if name in self.definitions:
                self.definitions[name][-1].nodes.append(statement)
            else:
                self._effect(statement)
        elif name == "_":
            self._effect(statement)
        else:
            self._define(name, Definition(self, name, [statement]))

    def _effect(self, statement: ast.stmt) -> None:
        """A statement that runs on import. Definitions inside it are part of it."""
        if isinstance(statement, ast.If) and dotted(statement.test).rpartition(".")[2] == "TYPE_CHECKING":
            self._effects += [other for other in statement.orelse if not _is_prose(other)]  # the rest is for checkers alone
        else:
            self._effects.append(statement)
        if not isinstance(statement, _COMPOUND):
            return
        whole = Definition(self, "", [statement])
        for inner in _inside(statement):
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                self._import(inner)
            elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._define(inner.name, whole)
            else:
                for name in _names_bound(inner):
                    self._define(name, whole)

    def _members(self, node: ast.ClassDef) -> tuple[Definition, ...]:
        """The members of a class that run only where they are named, unless a base class calls them (`reach.py`)."""
        return tuple(
            Definition(self, f"{node.name}.{member.name}", [member])
            for member in node.body
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
            and not (member.name.startswith("__") and member.name.endswith("__"))
            and set(self.full_names(member.decorator_list)) <= PASSIVE
        )


def _statements(source: bytes) -> list[ast.stmt]:
    """The statements of a file. Parsing takes 2.5 times as long with the garbage collector, so it is disabled meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source).body
    finally:
        if was_enabled:
            gc.enable()


def _names_changed(statement: ast.stmt) -> list[str]:
    """The names that an assignment binds, or whose values it changes: `a`, `b` and `c` of `a, b[0], c.x = …`."""
    roots: list[str] = []
    for target in _targets(statement):
        root = target
        while isinstance(root, (ast.Attribute, ast.Subscript, ast.Starred)):
            root = root.value
        if not isinstance(root, ast.Name):
            return []
        roots.append(root.id)
    return roots


def _names_bound(statement: ast.stmt) -> list[str]:
    return [target.id for target in _targets(statement) if isinstance(target, ast.Name)]


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """The targets of an assignment, with tuples and lists flattened."""
    if isinstance(statement, ast.Assign):
        pending = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For)):
        pending = [statement.target]
    elif isinstance(statement, ast.With):
        pending = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    else:  # `type X = …` of Python 3.12
        name = getattr(statement, "name", None)
        pending = [name] if isinstance(name, ast.Name) else []
    targets: list[ast.expr] = []
    while pending:
        target = pending.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            pending += target.elts
        else:
            targets.append(target.value if isinstance(target, ast.Starred) else target)
    return targets


def _inside(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statement and those in its blocks, without those in functions and classes."""
    yield statement
    if isinstance(statement, (*_COMPOUND, ast.ExceptHandler)):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from _inside(child)  # type: ignore[arg-type]


def _is_prose(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def _is_main(statement: ast.stmt) -> bool:
    """Whether the statement is `if __name__ == "__main__":`, which does not run on import."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.test, ast.Compare)
        and dotted(statement.test.left) == "__name__"
        and [type(operator) for operator in statement.test.ops] == [ast.Eq]
    )

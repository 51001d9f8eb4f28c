"""A file of Python as its definitions: what can be used, and edited, apart from the rest of the file.

    import numpy as np              import        bound names, by what they mean
    _LIMIT = 3                      definition    _LIMIT
    _LIMIT_TABLE[0] = 1             …             belongs to _LIMIT_TABLE, which it changes
    class Batch: …                  definition    Batch: bases, fields, and the members that run without being named
        def words(self): …          member        Batch.words, which counts where something named `words` is used
    register(Batch)                 effect        runs when the module is imported, so it counts with anything of the module

An effect is any statement that is none of the others; one under `if __name__ == "__main__":` is none.
"""

from __future__ import annotations

import ast
import gc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from datapipe.source_code.names_used import Import, NamesUsed, imported, modules_named, names_used
from datapipe.source_code.normal_form import dotted, normal_form

PASSIVE = frozenset(
    {
        "property", "staticmethod", "classmethod", "functools.cached_property", "functools.lru_cache", "functools.cache",
        "contextlib.contextmanager", "typing.override", "typing.overload", "abc.abstractmethod",
        "datapipe.stage.documents.segmentation",
    }
)  # fmt: skip
"""Decorators that do not call what they decorate. A member with any other may run without being named: a validator, say."""

KERNEL = "datapipe.kernels.kernel"
REACHES = ("REACHES", "reaches")
"""Names of a module, and of a class, that say what computed look-ups in it may reach: a tuple of "module:definition", or of
".name" for members of that name; () where they reach only data."""

_COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.TryStar)


@dataclass(eq=False)
class Definition:
    """A definition, with what it is told from others by.

    Attributes:
        name: "words_by", "DocumentBatch", "DocumentBatch.words", or "" for the effects of a module.
        nodes: its statements.
        members: of a class, those that count only where they are named.
    """

    module: Module
    name: str
    nodes: list[ast.stmt]
    members: tuple[Definition, ...] = ()

    @property
    def identity(self) -> str:
        return f"{self.module.name}:{self.name}"

    @cached_property
    def form(self) -> bytes:
        """Digest of its normal form."""
        left_out = {node for member in self.members for node in member.nodes}
        hasher = hashlib.sha256()
        for node in self.nodes:
            hasher.update(normal_form(node, self.module.field_names, left_out))
        return hasher.digest()

    @cached_property
    def used(self) -> NamesUsed:
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
        """What it says, as a class, that computed look-ups in its body may reach; None where it says nothing."""
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
        name: as it is imported.
        file: as messages name it.
        is_strict: whether computed look-ups that are not declared are refused.
        definitions: by name; several where a name is defined more than once.
        imports: names bound by imports at module level.
        stars: modules whose names are all imported.
        modules: modules that its imports run.
        effects: the statements that run whenever the module is imported; None where there are none.
    """

    def __init__(self, name: str, file: str, source: bytes, *, is_package: bool, is_strict: bool) -> None:
        self.name, self.file, self.is_strict = name, file, is_strict
        self.package = name if is_package else name.rpartition(".")[0]
        self.definitions: dict[str, list[Definition]] = {}
        self.imports: dict[str, tuple[Import, ...]] = {}
        self.stars: list[str] = []
        self.modules: list[str] = []
        self._effects: list[ast.stmt] = []
        for statement in _parsed(source):
            self._add(statement)
        self.effects = Definition(self, "", self._effects) if self._effects else None

    def binds(self, name: str) -> bool:
        return name in self.definitions or name in self.imports

    @cached_property
    def field_names(self) -> frozenset[str]:
        """What the module calls pydantic's `Field`."""
        names = [name for name, targets in self.imports.items() if Import("pydantic", "Field") in targets]
        modules = [name for name, targets in self.imports.items() if Import("pydantic") in targets]
        return frozenset([*names, *(f"{name}.Field" for name in modules)])

    def full_names(self, nodes: Sequence[ast.expr]) -> Iterator[str]:
        """What expressions name, in full where a name is imported: `functools.cached_property`; "" for anything else."""
        for node in nodes:
            inner = node.value if isinstance(node, ast.Subscript) else node
            first, _, rest = dotted(inner.func if isinstance(inner, ast.Call) else inner).partition(".")
            if first in self.definitions:
                base = f"{self.name}.{first}"
            else:
                target = next(iter(self.imports.get(first, ())), None)
                base = first if target is None else ".".join(filter(None, (target.module, target.name)))
            yield f"{base}.{rest}" if rest else base

    # ---------------------------------------------------------------------------------------------- reading

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(statement)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._define(statement.name, Definition(self, statement.name, [statement]))
        elif isinstance(statement, ast.ClassDef):
            self._define(statement.name, Definition(self, statement.name, [statement], self._members(statement)))
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

    def _define(self, name: str, definition: Definition) -> None:
        self.definitions.setdefault(name, []).append(definition)

    def _change(self, name: str, statement: ast.stmt) -> None:
        """An assignment to a name, or to a part of what it names."""
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
        """A statement that runs on import. What is defined inside it is part of it."""
        is_for_checkers = isinstance(statement, ast.If) and dotted(statement.test).rpartition(".")[2] == "TYPE_CHECKING"
        if not is_for_checkers:
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
        """The members of a class that run only where they are named, unless a base calls them (`source_code.py`)."""
        return tuple(
            Definition(self, f"{node.name}.{member.name}", [member])
            for member in node.body
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
            and not (member.name.startswith("__") and member.name.endswith("__"))
            and set(self.full_names(member.decorator_list)) <= PASSIVE
        )


def _parsed(source: bytes) -> list[ast.stmt]:
    """The statements of a file. The garbage collector rests meanwhile: with it, parsing takes 2.5 times as long."""
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
    """What a statement assigns to, tuples taken apart."""
    if isinstance(statement, ast.Assign):
        waiting = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For)):
        waiting = [statement.target]
    elif isinstance(statement, ast.With):
        waiting = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    else:  # `type X = …`, from Python 3.12 on
        name = getattr(statement, "name", None)
        waiting = [name] if isinstance(name, ast.Name) else []
    targets: list[ast.expr] = []
    while waiting:
        target = waiting.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            waiting += target.elts
        else:
            targets.append(target.value if isinstance(target, ast.Starred) else target)
    return targets


def _inside(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statement and those in its blocks, but for those in functions and classes."""
    yield statement
    if isinstance(statement, (*_COMPOUND, ast.ExceptHandler)):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from _inside(child)  # type: ignore[arg-type]


def _is_prose(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def _is_main(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, which does not run on import."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.test, ast.Compare)
        and dotted(statement.test.left) == "__name__"
    )

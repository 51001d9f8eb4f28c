"""The definitions that code can reach, read from the sources, and their digest: what a fingerprint must cover.

    roots ─▶ names in them ─▶ definitions ─▶ names in those ─▶ … ─▶ digest of the normal forms, and kernels by name
              through imports, re-exports, `module.name`, types in annotations

A function, class or constant counts where its name is used. A class counts with its bases, its fields and the members that run
without being named. Another member counts only where reached code uses an attribute of its name. So the segmentations of
`DocumentBatch` count for the stages that use them, and a re-export in an `__init__` connects nothing. Reached code is always
covered, or reading it raises an error. A covered definition may never run.

Computed look-ups (`getattr(x, name)`) are declared where they occur, by `REACHES` in a module and `reaches` in a class. In
datapipe and stages an undeclared one is an error. In a user's files, it makes the imported modules of the user count whole.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datapipe.errors import DatapipeError
from datapipe.source_code.definitions import KERNEL, REACHES, Definition, Module
from datapipe.source_code.names_used import Import

MACHINERY = frozenset(
    (
        "datapipe.activity",
        "datapipe.machine_cache",
        "datapipe.memory",
        *(f"datapipe.kernels.{name}" for name in ("cache", "compiled", "compiling", "keys")),
    )
)
"""Modules that compile kernels, store what any process can find out, or tell what is at work and how much memory it has.

No result depends on them, so no digest covers them."""

_QUIET_BASES = ("typing.", "collections.abc.", "enum.", "abc.", "pydantic.")
"""Base classes outside of the analysed files that call no member by a plain name."""

_CALLED_BY_LIBRARIES = frozenset({"model_post_init", "read", "readinto", "write", "seek", "tell", "flush", "close", "closed"})
"""Members that libraries call: pydantic, and any library that receives a file."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Packages whose code is analysed.

    Attributes:
        root: the folder that they are imported from.
        packages: top-level names; None for all packages in the folder.
        is_strict: whether an undeclared computed look-up is an error.
    """

    root: Path
    packages: frozenset[str] | None = None
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """The definitions that some roots reach.

    Attributes:
        digest: 64 hex digits over the normal forms of the definitions, and over what the names in them mean.
        names: `module:definition` and `module:Class.member`; `module:` for the effects of a module.
        kernels: `module:function` of every kernel.
    """

    digest: str
    names: frozenset[str]
    kernels: frozenset[str]

    def members(self, identity: str) -> frozenset[str]:
        """The covered members of a class, `module:Class`."""
        prefix = f"{identity}."
        return frozenset(name.removeprefix(prefix) for name in self.names if name.startswith(prefix))


class Sources:
    """The analysed modules, each read once, when something of it is reached.

    Args:
        under: sources in which modules are looked up first.
    """

    def __init__(self, folders: Sequence[Folder], under: Sources | None = None) -> None:
        self._folders, self._under = folders, under
        self._modules: dict[str, Module | None] = {}
        self._targets: dict[Definition, tuple[list[Definition], set[str]]] = {}
        self._meanings: dict[Definition, str] = {}

    def module(self, name: str) -> Module | None:
        """A module by its name; None for a module that is not analysed, and for a folder without `__init__.py`."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        if self._under is not None and (module := self._under.module(name)) is not None:
            return module
        if name in MACHINERY:
            return None
        for folder in self._folders:
            if folder.packages is None or name.partition(".")[0] in folder.packages:
                path = folder.root.joinpath(*name.split("."))
                for file in (path / "__init__.py", path.with_suffix(".py")):
                    if file.is_file():
                        is_package = file.name == "__init__.py"
                        return Module.parse(
                            name, str(file), file.read_bytes(), is_package=is_package, is_strict=folder.is_strict
                        )
        return None

    def definition(self, identity: str) -> list[Definition]:
        """The definitions of `module:name` or `module:Class.member`. Raises DatapipeError when there is none."""
        name, _, rest = identity.partition(":")
        module, (first, _, member) = self.module(name), rest.partition(".")
        definitions = [] if module is None else self._named(module, first, ())[0]
        if member:
            members = [member for owner in definitions for member in owner.members if member.name == rest]
            definitions = members or definitions
        if not definitions:
            raise DatapipeError(f"{identity} is no definition in {' or '.join(str(folder.root) for folder in self._folders)}.")
        return definitions

    def with_members(self, names: Iterable[str]) -> list[Definition]:
        """The definitions of names, and the members of those that are classes. Names in modules of libraries have none."""
        own = [name for name in names if self.module(name.partition(":")[0]) is not None]
        roots = [definition for name in own for definition in self.definition(name)]
        return [*roots, *(member for root in roots for member in root.members)]

    # ---------------------------------------------------------------------------------------------- resolving names

    def _named(self, module: Module, name: str, attributes: tuple[str, ...]) -> tuple[list[Definition], tuple[str, ...]]:
        """Resolves `name.attributes` in a module: definitions, and the attributes that are looked up on their values."""
        definitions = list(module.definitions.get(name, ()))
        rest = attributes if definitions or name not in module.imports else ()
        for target in module.imports.get(name, ()):
            imported, imported_rest = self._imported(target, attributes)
            definitions, rest = definitions + imported, rest + imported_rest
        if not definitions and not module.binds(name):
            for star in reversed(module.stars):  # the last import of a name wins
                other = self.module(star)
                if other is not None and (resolved := self._named(other, name, attributes))[0]:
                    return resolved
        return definitions, rest

    def _imported(self, target: Import, attributes: tuple[str, ...]) -> tuple[list[Definition], tuple[str, ...]]:
        if target.name is None:
            return self._of_module(target.module, attributes)
        return self._of_module(target.module, (target.name, *attributes))

    def _of_module(self, name: str, attributes: tuple[str, ...]) -> tuple[list[Definition], tuple[str, ...]]:
        """Resolves attributes of a module. A module without attributes, used as a value, is all of its definitions."""
        module = self.module(name)
        if not attributes:
            return ([] if module is None else _all_of(module)), ()
        first, *rest = attributes
        if module is not None and (module.binds(first) or module.stars):
            resolved = self._named(module, first, tuple(rest))
            if resolved[0] or module.binds(first):
                return resolved
        if self.module(f"{name}.{first}") is not None or (module is None and self._is_folder(f"{name}.{first}")):
            return self._of_module(f"{name}.{first}", tuple(rest))
        return ([] if module is None else module.definitions.get("__getattr__", [])), ()

    def _is_folder(self, name: str) -> bool:
        is_own = any(
            (folder.packages is None or name.partition(".")[0] in folder.packages)
            and folder.root.joinpath(*name.split(".")).is_dir()
            for folder in self._folders
        )
        return is_own or (self._under is not None and self._under._is_folder(name))

    def targets(self, definition: Definition) -> tuple[list[Definition], set[str]]:
        """The definitions that a definition names, and the names of attributes that it looks up on values."""
        if definition not in self._targets:
            definitions: dict[Definition, None] = dict.fromkeys(self.effects_of(definition))
            attributes, meanings = set(definition.used.attributes), []
            for root, chain in definition.used.references:
                is_global = isinstance(root, str)
                named, rest = self._named(definition.module, root, chain) if is_global else self._imported(root, chain)
                definitions.update(dict.fromkeys(named))
                attributes.update(rest)
                targets = definition.module.imports.get(root, ()) if is_global else (root,)
                leads_to = [target.identity for target in named] or [f"{target.module}.{target.name}" for target in targets]
                if leads_to:  # a builtin means itself
                    meanings.append(f"{root if is_global else ''}.{'.'.join(chain)}={','.join(leads_to)}")
            self._meanings[definition] = "\n".join(sorted(meanings))
            self._targets[definition] = list(definitions), attributes
        return self._targets[definition]

    def meaning(self, definition: Definition) -> str:
        """What the names in a definition mean: the definitions they lead to, or the import of a library."""
        self.targets(definition)
        return self._meanings[definition]

    def effects_of(self, definition: Definition) -> list[Definition]:
        """The effects that run with a definition: of its module, the packages around it, and the modules that it imports."""
        own = definition.module.name
        packages = [own[:end] for end in range(len(own)) if own[end] == "."]
        names = {own, *packages, *definition.used.modules}
        if not definition.module.is_strict:
            names |= set(definition.module.modules)
        modules = [self.module(name) for name in names]
        return [module.effects for module in modules if module is not None and module.effects is not None]

    def runs_members(self, definition: Definition) -> bool:
        """Whether a base class outside of the analysed files may call any member, as `threading.Thread` does."""
        for node in definition.nodes:
            for base in getattr(node, "bases", ()):
                (full,) = definition.module.full_names([base])
                first, _, rest = full.rpartition(".")
                owners = self._of_module(first, (rest,))[0] if first else []
                if any(self.runs_members(owner) for owner in owners):
                    return True
                if not owners and not hasattr(builtins, full) and not full.startswith(_QUIET_BASES):
                    return True
        return False


def _all_of(module: Module) -> list[Definition]:
    definitions = [definition for same_name in module.definitions.values() for definition in same_name]
    return [*definitions, *(member for definition in definitions for member in definition.members)]


# ------------------------------------------------------------------------------------------------ reaching


def reach(sources: Sources, roots: Iterable[Definition], attributes: Iterable[str] = ()) -> Reached:
    """The definitions that some definitions reach.

    Args:
        attributes: names of members that other code uses.
    """
    walk = _Walk(sources, {*attributes, *_CALLED_BY_LIBRARIES})
    walk.add(roots)
    hasher = hashlib.sha256()
    for definition in sorted(walk.reached, key=lambda definition: (definition.identity, definition.line)):  # as they run
        hasher.update(f"{definition.identity}\0{sources.meaning(definition)}\0".encode() + definition.form)
    return Reached(
        digest=hasher.hexdigest(),
        names=frozenset(definition.identity for definition in walk.reached),
        kernels=frozenset(definition.identity for definition in walk.reached if KERNEL in definition.decorators),
    )


@dataclass(slots=True)
class _Walk:
    """A walk over definitions.

    Attributes:
        used: names of members that reached code uses.
        waiting: members of reached classes whose names no reached code has used yet.
        takes_any_name: whether a computed look-up may use any member.
    """

    sources: Sources
    used: set[str]
    reached: set[Definition] = field(default_factory=set)
    waiting: dict[str, list[Definition]] = field(default_factory=dict)
    takes_any_name: bool = False

    def add(self, roots: Iterable[Definition]) -> None:
        pending = list(roots)
        while pending:
            definition = pending.pop()
            if definition in self.reached:
                continue
            self.reached.add(definition)
            targets, attributes = self.sources.targets(definition)
            pending += targets
            if definition.used.computed:
                definitions, names = self._computed(definition)
                pending += definitions
                attributes = attributes | names
            for name in attributes - self.used:
                self.used.add(name)
                pending += self.waiting.pop(name, ())
            pending += self._members(definition)

    def _members(self, definition: Definition) -> Iterable[Definition]:
        """The definitions that a class declares, and its members whose names are used. The others wait."""
        if definition.is_class:
            for identity in definition.declares or ():
                if not identity.startswith("."):
                    yield from self.sources.definition(identity)
        if not definition.members:
            return
        takes_all = self.takes_any_name or self.sources.runs_members(definition)
        for member in definition.members:
            name = member.name.rpartition(".")[2]
            if takes_all or name in self.used:
                yield member
            else:
                self.waiting.setdefault(name, []).append(member)

    def _computed(self, definition: Definition) -> tuple[list[Definition], set[str]]:
        """Definitions and member names that computed look-ups may reach: the declared ones, in a user's file any."""
        declared = _declared(definition)
        if declared is not None:
            identities = [entry for entry in declared if not entry.startswith(".")]
            definitions = [definition for identity in identities for definition in self.sources.definition(identity)]
            return definitions, {entry[1:] for entry in declared if entry.startswith(".")}
        module, (line, call) = definition.module, definition.used.computed[0]
        if module.is_strict:
            raise DatapipeError(
                f"{module.file}:{line}: `{call}` looks up a computed name, so a fingerprint cannot cover what it reaches. "
                f"Expected `{REACHES[0]}` in the module, or `{REACHES[1]}` in the class: a tuple of '.name' for members and "
                "'module:definition', () for data alone. Or write the names out."
            )
        self.takes_any_name = True
        members = [member for same_name in self.waiting.values() for member in same_name]
        self.waiting.clear()
        return [*members, *self._all_imported(module)], set()

    def _all_imported(self, module: Module) -> list[Definition]:
        """Every definition of a user's module and of the user's modules that it imports, directly or indirectly."""
        seen: dict[str, Module] = {}
        pending = [module]
        while pending:
            current = pending.pop()
            if current.name in seen or current.is_strict:
                continue
            seen[current.name] = current
            lazy = {name for definition in _all_of(current) for name in definition.used.modules}
            imported = [self.sources.module(name) for name in {*current.modules, *lazy}]
            pending += [other for other in imported if other is not None]
        return [definition for other in seen.values() for definition in _all_of(other)]


def _declared(definition: Definition) -> tuple[str, ...] | None:
    """The declaration for the computed look-ups in a definition, of its class or of its module."""
    class_name = definition.name.partition(".")[0]
    definitions = definition.module.definitions
    declarations = [owner.declares for name in (class_name, REACHES[0]) for owner in definitions.get(name, ())]
    return next((declaration for declaration in declarations if declaration is not None), None)

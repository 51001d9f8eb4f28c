"""Which definitions a piece of code can reach, read from the sources, and their digest: what a fingerprint must cover.

    roots ─▶ names in them ─▶ definitions ─▶ names in those ─▶ … ─▶ digest of the normal forms, and kernels by name
              through imports, re-exports, `module.name`, types in annotations

A function, class or constant counts where its name is used. A class counts with its bases, fields and whatever runs without
being named; another member counts only where an attribute of its name is used in anything that is reached. So the segmentations
of `DocumentBatch` count for the stages that use them, and a re-export in an `__init__` ties nothing together. What is sure:
code that is reached is covered, or reading it raises. What is not: a definition may count that never runs.

Computed look-ups (`getattr(x, name)`) are declared where they stand, by `REACHES` in a module and `reaches` in a class. One
that is not is an error in datapipe and stages. In a user's files, it makes the user's modules that are imported count whole.
"""

from __future__ import annotations

import builtins
import hashlib
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from datapipe.errors import DatapipeError
from datapipe.source_code.definitions import KERNEL, REACHES, Definition, Module
from datapipe.source_code.names_used import Import

_PACKAGES = ("datapipe", "stages")
MACHINERY = frozenset(f"datapipe.kernels.{name}" for name in ("cache", "compiled", "compiling", "keys", "signatures"))
"""How compiled kernels are made and kept. What a kernel computes does not depend on it, so no digest covers it."""

_QUIET_BASES = ("typing.", "collections.abc.", "enum.", "abc.", "pydantic.")
"""Bases outside of the analysed files that call no member by a plain name."""

_CALLED_BY_LIBRARIES = frozenset({"model_post_init", "read", "readinto", "write", "seek", "tell", "flush", "close", "closed"})
"""Members that libraries call: pydantic, and whoever is given a file."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Packages whose code is analysed.

    Attributes:
        root: where they are imported from.
        packages: top-level names; None for whatever lies there.
        is_strict: whether computed look-ups that are not declared are errors.
    """

    root: Path
    packages: frozenset[str] | None = None
    is_strict: bool = False


@dataclass(frozen=True)
class Reached:
    """What some roots reach."""

    definitions: frozenset[Definition]

    @cached_property
    def digest(self) -> str:
        """64 hex digits."""
        hasher = hashlib.sha256()
        for identity, form in sorted((one.identity, one.form) for one in self.definitions):
            hasher.update(f"{identity}\0".encode() + form)
        return hasher.hexdigest()

    @property
    def names(self) -> frozenset[str]:
        """`module:definition` and `module:Class.member`; `module:` for the effects of a module."""
        return frozenset(one.identity for one in self.definitions)

    @property
    def kernels(self) -> frozenset[str]:
        """`module:function` of every kernel."""
        return frozenset(one.identity for one in self.definitions if KERNEL in one.decorators)

    def members(self, identity: str) -> frozenset[str]:
        """The members of a class, `module:Class`, that are covered and can be named."""
        prefix = f"{identity}."
        return frozenset(one.identity.removeprefix(prefix) for one in self.definitions if one.identity.startswith(prefix))


class Sources:
    """The analysed modules, each read once, when something of it is reached."""

    def __init__(self, folders: Sequence[Folder], under: Sources | None = None) -> None:
        """
        Args:
            under: where modules are looked up before.
        """
        self._folders, self._under = folders, under
        self._modules: dict[str, Module | None] = {}
        self._targets: dict[Definition, tuple[list[Definition], set[str]]] = {}

    def module(self, name: str) -> Module | None:
        """A module by its name; None for one that is not analysed, or a folder without `__init__.py`."""
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
                        return Module(name, str(file), file.read_bytes(), is_package=is_package, is_strict=folder.is_strict)
        return None

    def definition(self, identity: str) -> list[Definition]:
        """The definitions of `module:name`, or the one of `module:Class.member`. Raises DatapipeError for none."""
        name, _, rest = identity.partition(":")
        module, (first, _, member) = self.module(name), rest.partition(".")
        found = [] if module is None else self._named(module, first, ())[0]
        if member:
            found = [one for owner in found for one in owner.members if one.name == rest] or found
        if not found:
            raise DatapipeError(f"{identity} is no definition of {' or '.join(str(one.root) for one in self._folders)}.")
        return found

    # ---------------------------------------------------------------------------------------------- what a name means

    def _named(self, module: Module, name: str, attributes: tuple[str, ...]) -> tuple[list[Definition], tuple[str, ...]]:
        """What `name.attributes` is in a module: definitions, and the attributes that are looked up on their values."""
        definitions = list(module.definitions.get(name, ()))
        rest = attributes if definitions or name not in module.imports else ()
        for target in module.imports.get(name, ()):
            more, left = self._imported(target, attributes)
            definitions, rest = definitions + more, rest + left
        if not definitions and not module.binds(name):
            for star in module.stars:
                other = self.module(star)
                if other is not None and (found := self._named(other, name, attributes))[0]:
                    return found
        return definitions, rest

    def _imported(self, target: Import, attributes: tuple[str, ...]) -> tuple[list[Definition], tuple[str, ...]]:
        if target.name is None:
            return self._of_module(target.module, attributes)
        return self._of_module(target.module, (target.name, *attributes))

    def _of_module(self, name: str, attributes: tuple[str, ...]) -> tuple[list[Definition], tuple[str, ...]]:
        """What attributes of a module are; the module as a value is all of it."""
        module = self.module(name)
        if not attributes:
            return ([] if module is None else _all_of(module)), ()
        first, *rest = attributes
        if module is not None and (module.binds(first) or module.stars):
            found = self._named(module, first, tuple(rest))
            if found[0] or module.binds(first):
                return found
        if self.module(f"{name}.{first}") is not None or (module is None and self._is_folder(f"{name}.{first}")):
            return self._of_module(f"{name}.{first}", tuple(rest))
        return ([] if module is None else module.definitions.get("__getattr__", [])), ()

    def _is_folder(self, name: str) -> bool:
        known = any(
            (folder.packages is None or name.partition(".")[0] in folder.packages)
            and folder.root.joinpath(*name.split(".")).is_dir()
            for folder in self._folders
        )
        return known or (self._under is not None and self._under._is_folder(name))

    def targets(self, definition: Definition) -> tuple[list[Definition], set[str]]:
        """The definitions that one names, and the names of attributes that it looks up on values."""
        if definition not in self._targets:
            found: dict[Definition, None] = dict.fromkeys(self.effects_of(definition))
            attributes = set(definition.used.attributes)
            for root, chain in definition.used.references:
                known = isinstance(root, str)
                named, rest = self._named(definition.module, root, chain) if known else self._imported(root, chain)
                found.update(dict.fromkeys(named))
                attributes.update(rest)
            self._targets[definition] = list(found), attributes
        return self._targets[definition]

    def effects_of(self, definition: Definition) -> list[Definition]:
        """What runs because the definition is imported or imports: effects of its module, of packages above, of modules."""
        name = definition.module.name
        above = [name[:end] for end in range(len(name)) if name[end] == "."]
        names = {name, *above, *definition.used.modules}
        if not definition.module.is_strict:
            names |= set(definition.module.modules)
        modules = [self.module(one) for one in names]
        return [one.effects for one in modules if one is not None and one.effects is not None]

    def runs_members(self, definition: Definition) -> bool:
        """Whether a class has a base outside of the analysed files that may call any member: `threading.Thread`."""
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
    definitions = [one for several in module.definitions.values() for one in several]
    return [*definitions, *(member for one in definitions for member in one.members)]


# ------------------------------------------------------------------------------------------------ reaching


def reach(sources: Sources, roots: Iterable[Definition], attributes: Iterable[str] = ()) -> Reached:
    """All that some definitions reach.

    Args:
        attributes: names of members that are used besides.
    """
    walk = _Walk(sources, {*attributes, *_CALLED_BY_LIBRARIES})
    walk.add(roots)
    return Reached(frozenset(walk.reached))


@dataclass(slots=True)
class _Walk:
    """Reached definitions, the names used in them, and members that wait for their name to be used."""

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
                more, names = self._computed(definition)
                pending += more
                attributes = attributes | names
            for name in attributes - self.used:
                self.used.add(name)
                pending += self.waiting.pop(name, ())
            pending += self._members(definition)

    def _members(self, definition: Definition) -> Iterable[Definition]:
        """What a class declares, and its members whose names are used; the others wait."""
        if definition.is_class:
            declared = definition.declares or ()
            yield from (
                one for identity in declared if not identity.startswith(".") for one in self.sources.definition(identity)
            )
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
        """What computed look-ups of a definition may reach: what is declared, or in a user's file anything."""
        declared = _declared(definition)
        if declared is not None:
            own = [one for one in declared if not one.startswith(".")]
            found = [one for identity in own for one in self.sources.definition(identity)]
            return found, {one[1:] for one in declared if one.startswith(".")}
        module, (line, call) = definition.module, definition.used.computed[0]
        if module.is_strict:
            raise DatapipeError(
                f"{module.file}:{line}: `{call}` looks up a name that is computed, so no fingerprint can tell what it reaches. "
                f"Expected `{REACHES[0]}` in the module, or `{REACHES[1]}` in the class: a tuple of '.name' for members and "
                "'module:definition', () for data alone. Or write the names out."
            )
        self.takes_any_name = True
        members = [one for several in self.waiting.values() for one in several]
        self.waiting.clear()
        return [*members, *self._all_imported(module)], set()

    def _all_imported(self, module: Module) -> list[Definition]:
        """Every definition of a user's module and of those that it imports, however far down."""
        seen: dict[str, Module] = {}
        waiting = [module]
        while waiting:
            one = waiting.pop()
            if one.name in seen or one.is_strict:
                continue
            seen[one.name] = one
            lazy = {name for definition in _all_of(one) for name in definition.used.modules}
            others = [self.sources.module(name) for name in {*one.modules, *lazy}]
            waiting += [other for other in others if other is not None]
        return [definition for one in seen.values() for definition in _all_of(one)]


def _declared(definition: Definition) -> tuple[str, ...] | None:
    """What is said of computed look-ups in a definition: by its class, or by its module."""
    class_name = definition.name.partition(".")[0]
    own = [one.declares for one in definition.module.definitions.get(class_name, ())]
    module = [one.declares for one in definition.module.definitions.get(REACHES[0], ())]
    return next((one for one in (*own, *module) if one is not None), None)


# ------------------------------------------------------------------------------------------------ of this installation


@lru_cache(maxsize=1)
def installed_sources() -> Sources:
    """The sources of datapipe and its stages."""
    root = Path(__file__).resolve().parents[2]
    return Sources([Folder(root, frozenset(_PACKAGES), is_strict=True)])


def sources_with(module: str, file: Path) -> Sources:
    """The sources of datapipe with those of a user's module and of what lies beside it.

    Of a module that is installed, only its own package is the user's: libraries count by their versions (`Stage.libraries`).

    Args:
        module: its full name, which tells how far up the import root is.
    """
    depth = len(module.split(".")) - (0 if file.name == "__init__.py" else 1)
    root = file.resolve().parents[depth]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    packages = frozenset({module.partition(".")[0]}) if root in installed else None
    return Sources([Folder(root, packages)], under=installed_sources())

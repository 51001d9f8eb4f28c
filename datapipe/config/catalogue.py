"""Finds stages and readers by name. No other module knows where stages are.

    filter.gopher_quality               ->   the only Stage class in stages/filter/gopher_quality.py
    my_company.clean:DropBoilerplate    ->   this class, installed or in the working directory
    my_company.clean:long_enough        ->   this function of one document, as a stage (`stage/function.py`)
    jsonl (a source's format)           ->   the only Reader class in stages/read/jsonl.py

There is no table of stages: a new file is a new stage. The names come from the folders, without
imports. Modules whose names begin with an underscore are no stages.
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import xxhash
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from datapipe.config import StageUse
from datapipe.config.option_paths import LocalOptions, local_options
from datapipe.config.problems import problems_error
from datapipe.config.yaml import KeyPath, dotted
from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError, UserError, suggest
from datapipe.machine.libraries import require
from datapipe.records.source_code import code_of_class
from datapipe.records.versions import OF_ANY_CODE
from datapipe.stage.base import Filter, Map, Stage
from datapipe.stage.decoding import COMPRESSION_OF_ENDING
from datapipe.stage.function import NOTE, FunctionStage, function_stage
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import Reader
from datapipe.storage.root import split_query

_PACKAGE = "stages"
_READERS = "read"
_KINDS: tuple[type[Stage], ...] = (Filter, Map, Global)
_WORDS = {
    Path: "path or URL",
    bool: "true | false",
    int: "whole number",
    float: "number",
    str: "text",
    NoneType: "null",
    Any: "anything",
}

AnyStage = TypeVar("AnyStage", bound=Stage)

is_importing: ContextVar[bool] = ContextVar("is_importing", default=False)
"""Whether a module that the user names is being imported for a stage, by the caller."""


@lru_cache(maxsize=1)
def _all_names() -> tuple[str, ...]:
    """Every module in a package below stages/ that is neither a package nor private, without importing it; sorted."""
    root = importlib.import_module(_PACKAGE)
    modules = pkgutil.walk_packages(root.__path__, f"{_PACKAGE}.")
    names = (module.name.removeprefix(f"{_PACKAGE}.") for module in modules if not module.ispkg and "._" not in module.name)
    return tuple(sorted(name for name in names if "." in name))


def stage_names() -> list[str]:
    """The names that a list of stages may use, without readers; sorted."""
    return [name for name in _all_names() if not name.startswith(f"{_READERS}.")]


def formats() -> list[str]:
    """The formats that a source may name besides auto; sorted."""
    return [name.removeprefix(f"{_READERS}.") for name in _all_names() if name.startswith(f"{_READERS}.")]


def stage_class(name: str, where: str = "") -> type[Stage]:
    """The class of a stage: a module in stages/, package.module:Class, or package.module:function.
    Raises UserError, which names `where`, such as "mixture.yaml:23: stages[2]"."""
    if ":" in name:
        return _user_stage(name, where)
    if name in stage_names():
        return _only_class(name, Stage)
    if name in _all_names():
        short = name.removeprefix(f"{_READERS}.")
        raise _refusal(where, f"{name} is a reader, expected a stage. Choose a reader in a source: `format: {short}`.")
    folder, _, member = name.rpartition(".")
    is_own = bool(folder) and not any(known.startswith(f"{folder.partition('.')[0]}.") for known in stage_names())
    meant = f" Did you mean '{folder}:{member}'?" if is_own else suggest(name, stage_names())
    raise _refusal(
        where,
        f"unknown stage '{name}'.{meant} Expected one of: {', '.join(stage_names()) or 'none'}; or package.module:NAME for a "
        f"class or function of your own. `datapipe stages` shows what each does.",
    )


def build_stage(use: StageUse) -> Stage:
    """The stage that a mixture uses, with validated options. Raises UserError with one line for each problem."""
    return stage_and_options(use)[0]


def stage_and_options(use: StageUse) -> tuple[Stage, LocalOptions]:
    """As `build_stage`, with the options that it was built of: local paths in the place of URLs."""
    stage, options = _built(stage_class(use.name, use.where), use, use.where)
    for name, method in stage.user_classes().items():
        _own_class(name, method, f"{use.where}.{use.name}" if use.where else use.name)
    return stage, options


def _built(kind: type[AnyStage], use: StageUse, where: str) -> tuple[AnyStage, LocalOptions]:
    location = ".".join(part for part in (where, use.name) if part)

    def where_of(path: KeyPath) -> str:
        return f"{location}.{dotted(path)}".rstrip(".")

    local = local_options(kind, use.options, where_of)
    try:
        # strict JSON: text is no number and true is not 1, but a list may become a tuple and text a path
        return kind.model_validate_json(json.dumps(local.options), strict=True), local
    except ValidationError as error:
        raise UserError(local.named(str(problems_error(error, kind, local.options, where_of)))) from error


def readers() -> dict[str, type[Reader]]:
    """The class of every reader, by format; sorted."""
    return {name: _reader_class(name) for name in formats()}


def build_reader(use: StageUse, where: str = "") -> Reader:
    """The reader of a format with validated options. Raises UserError with one line for each problem."""
    if use.name not in formats():
        known = ["auto", *formats()]
        raise _refusal(where, f"unknown format '{use.name}'.{suggest(use.name, known)} Expected one of: {', '.join(known)}.")
    return _built(_reader_class(use.name), use, where)[0]


def reader_for(path: str, where: str = "") -> Reader:
    """The reader for a file by its ending, without the compression's. The longest ending wins. Raises UserError."""
    name = split_query(path)[0].lower()
    for compression in COMPRESSION_OF_ENDING:
        name = name.removesuffix(compression)
    if usual := _reader_of_its_name(name):
        return usual()
    endings = _readers_by_ending()
    fitting = [ending for ending in endings if name.endswith(ending)]
    if fitting:
        return endings[max(fitting, key=len)]()
    raise _refusal(
        where,
        f"cannot infer the format of {path} from its ending. Expected one of: {', '.join(sorted(endings))}, optionally "
        f"followed by {' or '.join(COMPRESSION_OF_ENDING)}. Otherwise set the source's `format:` to one of: "
        f"{', '.join(formats())}.",
    )


def _reader_of_its_name(name: str) -> type[Reader] | None:
    """The reader of most files, whose ending is the name of their format: found without an import of the others."""
    _, dot, ending = name.rpartition(".")
    reader = _reader_class(ending) if dot and ending in formats() else None
    return reader if reader and f".{ending}" in reader.extensions else None


@lru_cache(maxsize=1)
def _readers_by_ending() -> dict[str, type[Reader]]:
    return {ending: reader for reader in readers().values() for ending in reader.extensions}


def code_digest(stage: Stage) -> str:
    """Full-width digest of the code of a stage and of the classes in its options."""
    hasher = xxhash.xxh3_128(code_of_class(type(stage)).digest.encode())
    for name, method in sorted(stage.user_classes().items()):
        hasher.update(f"\0{code_of_class(_own_class(name, method, '')).digest}".encode())
    return hasher.hexdigest()


def libraries_of(stage: Stage) -> tuple[str, ...]:
    """The libraries whose versions decide what a stage does with its options, and the classes in them; sorted. Raises UserError
    for one that is not installed."""
    own = [_own_class(name, method, "") for name, method in stage.user_classes().items()]
    libraries = {*stage.libraries_used()}.union(*(getattr(each, "libraries", ()) for each in own))
    module = type(stage).__module__
    is_ours = module.startswith(f"{_PACKAGE}.")
    user = module.removeprefix(f"{_PACKAGE}.") if is_ours else f"{module}:{type(stage).__name__}"
    for library in sorted(libraries):
        require(library, user)
    return tuple(sorted(libraries if is_ours and not own else libraries.union(OF_ANY_CODE)))


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionDescription:
    """An option of a stage for display: `type` in words, "list of text"; `default` as YAML, or "required"."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StageDescription:
    name: str
    kind: str  # filter, map, global, reader, or function with what it costs
    summary: str  # the first paragraph of the class's docstring; `details` is that of its module
    details: str
    options: tuple[OptionDescription, ...]


def describe(name: str) -> StageDescription:
    """The documentation of a stage. Readers are named `read.jsonl`, stages as in `stage_class`."""
    format_name = name.removeprefix(f"{_READERS}.")
    stage = _reader_class(format_name) if name in _all_names() and format_name != name else stage_class(name)
    options = tuple(
        OptionDescription(
            name=field.alias or option,
            type=_type_in_words(field.annotation),
            default="required"
            if field.is_required()
            else json.dumps(to_jsonable_python(field.get_default(call_default_factory=True)), ensure_ascii=False),
            description=field.description or "",
        )
        for option, field in stage.model_fields.items()
    )
    details = inspect.cleandoc(sys.modules[stage.__module__].__doc__ or stage.__doc__ or "")
    summary = " ".join(inspect.cleandoc(stage.__doc__ or details).partition("\n\n")[0].split())
    kind = next(kind.__name__.lower() for kind in (*_KINDS, Reader) if issubclass(stage, kind))
    kind = f"function, {NOTE}" if issubclass(stage, FunctionStage) else kind
    return StageDescription(name=name, kind=kind, summary=summary, details=details, options=options)


def _type_in_words(annotation: Any) -> str:
    """`tuple[str, ...]` is "list of text", `Literal["a", "b"]` "a | b", `float | None` "number | null"."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (Union, UnionType):
        return " | ".join(_type_in_words(member) for member in arguments)
    if origin is Annotated:
        return _type_in_words(arguments[0])
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type_in_words(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type_in_words(arguments[1])}"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        needed = {name: field.annotation for name, field in annotation.model_fields.items() if field.is_required()}
        return f"{{{', '.join(f'{name}: {_type_in_words(of)}' for name, of in needed.items())}}}"
    return getattr(annotation, "__name__", str(annotation))


@cache
def _reader_class(name: str) -> type[Reader]:
    return _only_class(f"{_READERS}.{name}", Reader)


def _only_class(name: str, kind: type[AnyStage]) -> type[AnyStage]:
    module = importlib.import_module(f"{_PACKAGE}.{name}")
    classes = [
        member
        for name, member in vars(module).items()
        if inspect.isclass(member)
        and issubclass(member, kind)
        and member.__module__ == module.__name__
        and not name.startswith("_")
    ]
    if len(classes) != 1:
        names = ", ".join(member.__name__ for member in classes) or "none"
        raise DatapipeError(f"{module.__name__}: found the public classes of {kind.__name__}: {names}. Expected exactly one.")
    return classes[0]


def _user_stage(name: str, where: str) -> type[Stage]:
    module_name, _, member_name = name.partition(":")
    module = _user_module(module_name, name, where)
    member = getattr(module, member_name, None)
    if member is None:
        known = [known for known, value in vars(module).items() if _is_stage(value) or _is_own_function(value, module_name)]
        raise _refusal(
            where,
            f"{name}: {module_name} has no class or function {member_name}.{suggest(member_name, known)} "
            f"Expected one of: {', '.join(known) or 'none, it defines no stage'}.",
        )
    if inspect.isfunction(member):
        try:
            return function_stage(module_name, member_name, member)
        except UserError as error:
            raise _refusal(where, f"{name}: {error}.") from error
    if problem := _why_unusable(member):
        raise _refusal(where, f"{name}: {problem}.")
    return member


def _why_unusable(stage: Any) -> str:
    """Why no stage can be made of something that the user names; empty where one can."""
    if not _is_stage(stage):
        kind = f"a class derived from {stage.__mro__[1].__name__}" if inspect.isclass(stage) else f"a {type(stage).__name__}"
        return (
            f"found {kind}, expected a function of a document, or a class derived from datapipe.stage.Filter, "
            "datapipe.stage.Map or datapipe.stage.Global"
        )
    if "__init__" in vars(stage):
        return (
            "the class has its own __init__, and a stage is a frozen record of options. Declare options as fields, "
            "`least: int = 3`, and load what they name in open(self, context)"
        )
    if issubclass(stage, (Filter, Map)) and stage.process in (Filter.process, Map.process):
        result = "FilterResult" if issubclass(stage, Filter) else "dict[str, pa.Array]"
        return f"the class has no method process. Define process(self, batch: DocumentBatch) -> {result}"
    return ""


def _own_class(name: str, method: str, where: str) -> type:
    """A class of the user's that is no stage, and that an option names. Raises UserError."""
    module_name, _, member_name = name.partition(":")
    member = getattr(_user_module(module_name, name, where), member_name, None)
    if not inspect.isclass(member) or not callable(getattr(member, method, None)):
        member_text = "nothing of this name" if member is None else f"a {type(member).__name__} without a method {method}"
        raise _refusal(where, f"{name}: found {member_text} in {module_name}, expected a class with a method {method}.")
    with suppress(ValueError):  # of a class that is not written in Python
        try:
            inspect.signature(member).bind()
        except TypeError as error:
            raise _refusal(where, f"{name}: {error}. The class is made without arguments: give each a default.") from error
    return member


def _is_stage(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, _KINDS) and value not in _KINDS


def _is_own_function(value: Any, module_name: str) -> bool:
    return inspect.isfunction(value) and value.__module__ == module_name and not value.__name__.startswith("_")


def _user_module(module_name: str, name: str, where: str) -> ModuleType:
    """Imports a module that the user names. As with `python -m`, the working directory is on the path."""
    if module_name == "__main__":
        raise _refusal(
            where,
            f"{name}: no worker can import __main__, which is the program or notebook that runs. Put the stage into a separate "
            "module, such as my_stages.py beside it, and name it my_stages:NAME.",
        )
    folder = os.getcwd()
    if not {folder, ""} & set(sys.path):
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    token = is_importing.set(True)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _refusal(where, f"{name}: importing {module_name} failed: {error}. Install the missing module.") from error
        raise _refusal(
            where,
            f"{name}: found no module {error.name}. Expected one that is installed or in the working directory {folder}.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _refusal(where, f"{name}: importing {module_name} failed: {type(error).__name__}: {error}.") from error
    finally:
        is_importing.reset(token)


def _refusal(where: str, text: str) -> UserError:
    return UserError(f"{where}: {text}" if where else text)

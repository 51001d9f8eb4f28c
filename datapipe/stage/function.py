"""A stage that is a plain function of one document.

    def long_enough(record, least: int = 200) -> bool:          - my_module:long_enough: {least: 500}
        return len(record["text"]) >= least

| it returns | meaning                                                                          |
|------------|----------------------------------------------------------------------------------|
| True       | the document is kept as it is                                                    |
| False      | it is dropped, by the rule "false"                                               |
| text       | its new text                                                                     |
| a dict     | its new text and columns by name; values that the record has already change nothing |
| `segments` | in a dict: the text in parts, with control tokens, and parts that no loss counts   |

A record is a dict of `text`, `id`, and the columns that the source keeps or earlier stages wrote.
Parameters after it are options, checked by their annotations. Other columns are declared:

    language.columns = {"language": str, "score": float}        str, int, float or bool; a document without one has null
    language.libraries = ("my-detector",)                       as `Stage.libraries`
    chat.columns = {"segments": list}                           see `stage/segments.py`

Memory is bounded by the records of one batch.
"""

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any, ClassVar, NoReturn

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict, PydanticUserError, create_model
from pydantic_core import SchemaError

from datapipe.errors import StageError, UserError
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.base import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segments import SEGMENTS, SEGMENTS_TYPE, text_and_segments

NOTE = "a Python call for each document"
"""The note about a stage of this kind where stages are shown."""

_COLUMN_TYPES: Mapping[Any, tuple[pa.DataType, tuple[type, ...], Any]] = {
    str: (pa.large_string(), (str,), None),
    int: (pa.int64(), (int, np.integer), None),
    float: (pa.float64(), (float, int, np.floating, np.integer), None),
    bool: (pa.bool_(), (bool, np.bool_), None),
    list: (SEGMENTS_TYPE, (list,), []),  # of segments alone
}
"""The types of columns: how they are stored, which values they take, and the value of a document without one."""

_NOT_SHOWN = frozenset(OWN_COLUMNS) - {"id", "text"}
_NOT_DECLARED = frozenset(OWN_COLUMNS) - {SEGMENTS}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_RESERVED = ("as", "when", "mode", "function")
_EXPECTED = "True or False, a text, or a dict of columns"


class Record(dict[str, Any]):
    """The values of a document by column. Read-only, so that a change that is not returned cannot get lost."""

    def __missing__(self, name: str) -> NoReturn:
        raise StageError(
            f"it reads record[{name!r}], and documents have no column '{name}'. They have {', '.join(self)}. Name the field "
            "under the source's `keep`, or move the stage that writes the column before this one"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)  # copying and pickling ask for such names
        raise StageError(f'it reads record.{name}, and a record is a dict. Write record["{name}"]')

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StageError(
            "it changes the record that it got, which has no effect. Return the new text, or a dict such as "
            '{**record, "text": text}'
        )

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]


class FunctionStage(Filter):
    """The stage of a function. `function_stage` derives a class from it for each function."""

    model_config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=False)

    function: ClassVar[Callable[..., Any]]
    columns: ClassVar[Mapping[str, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:  # the class is made of the function, so no module has it
        return _unpickled, (type(self).__module__, type(self).__qualname__), self.__getstate__()

    def notes(self) -> tuple[str, ...]:
        return (NOTE,)

    def rules(self) -> list[Rule]:
        return [Rule(name="false", limit=1.0)]

    def process(self, batch: DocumentBatch) -> FilterResult:
        function, options = type(self).function, {name: value for name, value in self if name != "mode"}
        declared = type(self).columns
        hidden = _NOT_SHOWN - {*declared}
        # (num_docs,) by column
        before = {name: _values(batch.record.column(name)) for name in batch.record.schema.names if name not in hidden}
        names = [name for name in before if name not in _NOT_SHOWN]
        records = [Record(zip(names, row)) for row in zip(*(before[name] for name in names))]
        changes = [_change(record, function(record, **options), declared) for record in records]
        keep = np.array([change is not None for change in changes], np.bool_)
        has_text = SEGMENTS in declared or any(change and "text" in change for change in changes)
        written = {**declared, "text": str} if has_text else declared
        columns = {name: _column(name, kind, before.get(name), changes) for name, kind in written.items()}
        value, rule = keep.astype(np.float64), np.where(keep, -1, 0).astype(np.int16)
        return FilterResult(keep=keep, rule=rule, value=value, measured=(value,), columns=columns)


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; times in whole microseconds, as Python has them."""
    kind = column.type  # of nanoseconds pyarrow makes values of pandas, or refuses them without it
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    elif pa.types.is_duration(kind) and kind.unit == "ns":
        column = column.cast(pa.duration("us"), safe=False)
    return column.to_pylist()


def _change(record: Record, result: Any, declared: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The values that a result changes; None for a document that it drops. Raises StageError."""
    if isinstance(result, (bool, np.bool_)):
        return {} if result else None
    if isinstance(result, str):
        return {"text": result}
    if not isinstance(result, Mapping):
        missing = ". A `return` may be missing" if result is None else ""
        raise StageError(f"it returned {_named(result)} for a document, expected {_EXPECTED}{missing}")
    if SEGMENTS in declared and result.get(SEGMENTS):
        text, segments = text_and_segments(result[SEGMENTS])
        result = {**result, "text": text, SEGMENTS: segments}
    change = {name: value for name, value in result.items() if not (name in record and _is_same(value, record[name]))}
    if SEGMENTS in declared and "text" in change:
        change.setdefault(SEGMENTS, [])  # another text is a plain one
    for name in (name for name in change if name != "text" and name not in declared):
        if name in _NOT_DECLARED:
            raise StageError(f"it returned another '{name}', which belongs to the engine. Return another name")
        raise StageError(
            f"it returned the column {name!r}, which it does not declare. Declare the columns beside text at the "
            f"function, as in FUNCTION.columns = {{{name!r}: float}}; the types are str, int, float and bool"
        )
    return change


def _column(name: str, kind: Any, before: list[Any] | None, changes: Sequence[Mapping[str, Any] | None]) -> pa.Array:
    """(num_docs,): the returned values, for other documents their own, as it was `before`. Raises StageError."""
    stored, takes, missing = _COLUMN_TYPES[kind]
    own = [missing] * len(changes) if before is None else before
    values = [change[name] if change and name in change else value for change, value in zip(changes, own)]
    for value in values:
        is_other = not isinstance(value, takes) or (isinstance(value, bool) and kind in (int, float))
        if is_other and not (value is None and name != "text"):
            raise StageError(f"column '{name}': found {_named(value)}, expected {kind.__name__}, as the stage declares it")
    return pa.array(values, stored)


def _named(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


@lru_cache(maxsize=256)
def function_stage(module: str, name: str, function: FunctionType) -> type[FunctionStage]:
    """The stage of a function, which is found under this name in this module. Raises UserError, without the stage's name."""
    options = _options(function)
    columns, libraries = _declared_columns(function), tuple(getattr(function, "libraries", ()))

    def process(self: FunctionStage, batch: DocumentBatch) -> FilterResult:
        return FunctionStage.process(self, batch)

    process.__wrapped__ = function  # type: ignore[attr-defined]  # errors without a line of the function name its first one
    try:
        kind = create_model(name, __base__=FunctionStage, __module__=module, __doc__=inspect.getdoc(function), **options)
    except (PydanticUserError, SchemaError, TypeError, NameError, ValueError) as error:
        raise UserError(f"its options cannot be checked: {str(error).splitlines()[0]}") from error
    kind.__qualname__ = name
    kind.function, kind.columns, kind.writes, kind.libraries = function, columns, tuple(columns), libraries
    kind.process = process
    return kind


def _options(function: FunctionType) -> dict[str, Any]:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"found a coroutine or a generator, expected a plain function that returns {_EXPECTED}")
    parameters = [*inspect.signature(function).parameters.values()]
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise UserError(
            f"found def {function.__name__}{inspect.signature(function)}, expected the document as the first parameter"
        )
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # an annotation is any expression
        raise UserError(f"its annotations cannot be read: {type(error).__name__}: {error}") from error
    options: dict[str, Any] = {}
    for option in parameters[1:]:
        if option.kind not in _NAMED:
            raise UserError(
                f"found the parameter {option}, expected parameters by name after the document: they are its options"
            )
        if option.name.startswith("_") or option.name in _RESERVED or hasattr(FunctionStage, option.name):
            raise UserError(f"an option cannot be named '{option.name}'. Choose another name")
        default = ... if option.default is option.empty else option.default
        options[option.name] = (hints.get(option.name, Any), default)
    return options


def _declared_columns(function: FunctionType) -> dict[str, Any]:
    declared = getattr(function, "columns", {})
    if not isinstance(declared, Mapping):
        raise UserError(f'{function.__name__}.columns: found {_named(declared)}, expected a dict such as {{"score": float}}')
    for name, kind in declared.items():
        if not isinstance(name, str) or not name or name in _NOT_DECLARED:
            raise UserError(
                f"{function.__name__}.columns: {name!r} cannot be declared. Expected the name of a column beside text"
            )
        if kind not in _COLUMN_TYPES or (kind is list) != (name == SEGMENTS):
            expected = "list" if name == SEGMENTS else "str, int, float or bool"
            raise UserError(f"{function.__name__}.columns: {name}: found {kind!r}, expected {expected}")
    return dict(declared)


def _unpickled(module: str, name: str) -> FunctionStage:
    kind = function_stage(module, name, getattr(importlib.import_module(module), name))
    return kind.__new__(kind)

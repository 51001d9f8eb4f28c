"""The type of a kept field: one for all files of a source, and wide enough for every value.

    int32, int64                 int64
    int64, double                double; reading fails for a whole number that a double cannot hold
    timestamp[s], timestamp[us]  timestamp[us]; of two time zones, or of one and none: no type
    struct<a>, struct<a, b>      struct<a, b>: a member that a file lacks is null
    list<int64>, list<double>    list<double>
    null, anything               anything

Types are joined in the order of the files. Members of JSON objects are sorted, so that this order
does not change the type. JSON values that no type holds together are `MIXED`: each is kept as its
text. Files with a schema are never mixed: a source whose types cannot be joined is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from datapipe.dataclass import dataclass, replace
from datapipe.errors import UserError

MIXED = pa.string()  # text of JSON values of several types. Strings alone are large strings.
DECLARED: Mapping[str, pa.DataType] = {
    "string": pa.large_string(),
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "json": pa.large_string(),
}
"""What `types` of a source declares: json is the JSON text of a value, as a string."""

_MOST_MEMBERS = 1000  # Members of an object above which it is kept as text: its keys are data
_MOST_LEVELS = 16
_UTC = ("UTC", "Etc/UTC", "+00:00", "Z", "GMT")
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_DIGITS = dict(zip((*_SIGNED, *_UNSIGNED), (3, 5, 10, 19, 3, 5, 10, 20)))


def type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    """The type of a field, whose dots reach in structs; None without one. Raises ValueError for a name that occurs twice."""
    first, *rest = [name] if name in schema.names else name.split(".")
    if schema.names.count(first) > 1:
        raise ValueError(f"the column '{first}' occurs {schema.names.count(first)} times")
    kind = schema.field(first).type if first in schema.names else None
    for part in rest:
        members = [member for member in kind if member.name == part] if kind is not None and pa.types.is_struct(kind) else []
        if len(members) > 1:
            raise ValueError(f"the member '{part}' occurs {len(members)} times")
        kind = members[0].type if members else None
    return kind


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without its storage: dictionaries, runs, extensions, the width of offsets of text."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_timestamp(kind) and kind.tz in _UTC:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(member.name, plain(member.type)) for member in kind])
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(plain(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_type), kind.list_size)
    return kind


def written(kind: pa.DataType) -> pa.DataType:
    """The type of the column: text for mixed values, nulls, and objects without members, which Parquet lacks."""
    if kind == MIXED or pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        return pa.large_string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(member.name, written(member.type)) for member in kind])
    if pa.types.is_list(kind):
        return pa.list_(written(kind.value_type))
    return kind


def is_mixed(kind: pa.DataType) -> bool:
    """Whether a type is, or holds, text of values of several types."""
    if pa.types.is_struct(kind):
        return any(is_mixed(member.type) for member in kind)
    return kind == MIXED or (pa.types.is_list(kind) and is_mixed(kind.value_type))


def joined(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of two plain types; None where there is none."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    joint = (rule(left, right) for rule in _RULES for left, right in ((first, second), (second, first)))
    return next((kind for kind in joint if kind is not None), None)


def json_joined(first: pa.DataType, second: pa.DataType, level: int = 0) -> pa.DataType:
    """The type that holds JSON values of two types, at worst `MIXED`."""
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        members = {member.name: member.type for member in first}
        for member in second:
            held = members.get(member.name, pa.null())
            members[member.name] = json_joined(held, member.type, level + 1)
        return MIXED if len(members) > _MOST_MEMBERS or level > _MOST_LEVELS else pa.struct(sorted(members.items()))
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(json_joined(first.value_type, second.value_type, level + 1))
    wider = joined(first, second)
    return MIXED if wider is None else wider


def holds(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether a type holds the values of another, of schemas or of JSON."""
    return joined(kind, other) == kind or json_joined(kind, other) == kind


def json_type(value: Any, level: int = 0) -> pa.DataType:
    """The type of a value of `json.loads`. A `JsonNumber` is a number as it is written."""
    if value is None:
        return pa.null()
    if isinstance(value, JsonNumber):
        return number_type(value)
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, str):
        return pa.large_string()
    if level > _MOST_LEVELS or (isinstance(value, dict) and len(value) > _MOST_MEMBERS):
        return MIXED
    if isinstance(value, dict):
        return pa.struct([(name, json_type(member, level + 1)) for name, member in sorted(value.items())])
    kinds = (json_type(item, level + 1) for item in value)
    return pa.list_(reduce(json_joined, kinds, pa.null()))


class JsonNumber(str):
    """A number of JSON as it is written."""

    __slots__ = ()


def parsed_json(text: str | bytes) -> Any:
    """A JSON text, its numbers as they are written. Raises ValueError, or RecursionError where it is nested too deeply."""
    return json.loads(text, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber)


def json_value(record: Mapping[str, Any], name: str) -> Any:
    """A field of an object: what the dots of its name reach, or else a key of this name; None without one."""
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return record.get(name) if value is None else value


def number_type(text: str) -> pa.DataType:
    """The type of a number as JSON writes it: int64, uint64, double, or `MIXED` for a whole number beyond all of them."""
    if not text.removeprefix("-").isdecimal():
        return pa.float64()
    number = int(text) if len(text) <= _DIGITS[pa.uint64()] else 1 << 64
    return pa.int64() if -(1 << 63) <= number < 1 << 63 else pa.uint64() if 0 <= number < 1 << 64 else MIXED


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundType:
    """The type of a field, the first file with values of it, and whether one of its files has a schema. `mixed`: where JSON
    values are kept as text, two of their types and files: "int64 in a.jsonl and string in b.jsonl"."""

    kind: pa.DataType
    path: str
    has_schema: bool = False
    mixed: str = ""

    @property
    def mixed_in(self) -> str:
        """Where values of several types are, which are kept as text; empty without any."""
        return self.mixed or (f"several types within {self.path}" if is_mixed(self.kind) else "")

    def with_more(self, other: FoundType) -> FoundType:
        """The type of the values of both, those of `other` further on. Raises UserError where there is none."""
        if pa.types.is_null(self.kind) or pa.types.is_null(other.kind):
            held, empty = (other, self) if pa.types.is_null(self.kind) else (self, other)
            return replace(held, has_schema=held.has_schema or empty.has_schema)
        has_schema = self.has_schema or other.has_schema
        kind = joined(self.kind, other.kind) if has_schema else json_joined(self.kind, other.kind)
        if kind is None:
            raise NoCommonTypeError(self, other)
        both = f"{in_words(self.kind)} in {self.path} and {in_words(other.kind)} in {other.path}"
        mixed = self.mixed_in or other.mixed_in or (both if is_mixed(kind) else "")
        return FoundType(kind=kind, path=self.path, has_schema=has_schema, mixed=mixed)

    def to_json(self) -> dict[str, str]:
        content = pa.schema([("", self.kind)]).serialize().to_pybytes()
        return {"type": base64.b64encode(content).decode(), "path": self.path, "mixed": self.mixed}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> FoundType:
        kind = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(data["type"]))).field(0).type
        return cls(kind=kind, path=data["path"], mixed=data["mixed"])


class NoCommonTypeError(UserError):
    """Two files have values of a field that no type holds together."""

    def __init__(self, first: FoundType, second: FoundType) -> None:
        self.first, self.second = first, second
        super().__init__(
            f"it is {in_words(first.kind)} in {first.path} and {in_words(second.kind)} in {second.path}, and no type holds all "
            f"values"
        )


def in_words(kind: pa.DataType) -> str:
    """A type as messages name it."""
    return "of several types" if kind == MIXED else str(kind).replace("large_", "")


def _numbers_and_times(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The rules of Arrow, but for three."""
    if pa.uint64() in (first, second) and pa.types.is_integer(first) and pa.types.is_integer(second):
        return pa.uint64()  # reading fails for a negative number
    if pa.float16() in (first, second) and {first, second} & {pa.int8(), pa.uint8()}:
        return pa.float32()
    if pa.types.is_timestamp(first) and pa.types.is_date(second):
        return first if first.tz is None else None
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
    if not all(any(is_kind(kind) for is_kind in kinds) for kind in (first, second)):
        return None
    try:
        both = (pa.schema([("", first)]), pa.schema([("", second)]))
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return None


def _decimals(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not pa.types.is_decimal(first) or not (pa.types.is_decimal(second) or second in _DIGITS):
        return None
    digits, scale = (second.precision, second.scale) if pa.types.is_decimal(second) else (_DIGITS[second], 0)
    most = max(first.scale, scale)
    precision = most + max(first.precision - first.scale, digits - scale)
    return pa.decimal128(precision, most) if precision <= 38 else pa.decimal256(precision, most) if precision <= 76 else None


def _bytes(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    return pa.large_binary() if is_binary(first) and is_binary(second) else None


def is_binary(kind: pa.DataType) -> bool:
    fixed, view = pa.types.is_fixed_size_binary(kind), pa.types.is_binary_view(kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or fixed or view


def _lists(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (_is_list(first) and _is_list(second)):
        return None
    value = joined(first.value_type, second.value_type)
    if value is None:
        return None
    return pa.large_list(value) if pa.types.is_large_list(first) or pa.types.is_large_list(second) else pa.list_(value)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _structs(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_struct(first) and pa.types.is_struct(second)):
        return None
    members: dict[str, pa.DataType | None] = {member.name: member.type for member in first}
    if len(members) < first.num_fields or len({member.name for member in second}) < second.num_fields:
        return None
    for member in second:
        held = members.get(member.name, pa.null())
        members[member.name] = None if held is None else joined(held, member.type)
    known = [(name, kind) for name, kind in members.items() if kind is not None]
    return pa.struct(known) if len(known) == len(members) else None


_RULES = (_numbers_and_times, _decimals, _bytes, _lists, _structs)

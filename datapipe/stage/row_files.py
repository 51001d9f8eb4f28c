"""Records that list the files of a repository become documents, one each, or several of at most `RowFiles.most_bytes`.

    [{path, text}, …] ─▶ files with a text, paths without nulls ─▶ in their order ─▶ documents (`repositories.py`)

Memory is the records twice. No Python object is made for a file, unless values of the field are of several types.
"""

import json
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, first_of_group, key_halves, make_keys, numbers, text_buffers, texts_from
from datapipe.errors import UserError
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.rng import keyed_hash
from datapipe.stage.documents import BASE_FIELDS
from datapipe.stage.field_types import in_words, is_mixed
from datapipe.stage.reader import RowFiles
from datapipe.stage.repositories import FILES, Files, document_starts, files_bytes, joined_files, joined_licenses, paths_as_json
from datapipe.stage.segments import SEGMENTS

POSITION_BITS = 40
"""The bits of a key's second half with the position of the record; those above have the number of the document in it."""

_TEXT = pa.large_string()
_SHOWN_CHARS = 80


class Listed(NamedTuple):
    """The files of records."""

    # (num_rows,) large lists of {path, text, license}, all text without nulls; empty for a record that lists none
    files: pa.Array
    num_left_out: int  # files whose text is null or no UTF-8
    bad: dict[int, str]  # the records whose value is no list of objects, by row, each with what is wrong


def files_problem(kind: pa.DataType, spec: RowFiles) -> str | None:
    """What is wrong with a field of this type, where none of its values can list files; None where some can."""
    if pa.types.is_null(kind) or is_mixed(kind) or _members(kind, spec) is not None:
        return None
    return f"field '{spec.field}' is {in_words(kind)}, expected a list of objects with {', '.join(_wanted(spec))}"


def listed_files(column: pa.Array, spec: RowFiles) -> Listed:
    """The files of each record that have a text. A path that is null is empty."""
    wanted, bad = _wanted(spec), dict[int, str]()
    if _members(column.type, spec) is None:
        column, bad = _one_by_one(column, spec)
    values, counts = column.flatten(), numbers(compute.list_value_length(column).fill_null(0))
    parts = dict(zip((member.name for member in values.type), values.flatten()))
    texts = [_valid_texts(parts[name], f"{spec.field}.{name}") for name in wanted]
    has_text = texts[1].is_valid()
    rows = np.repeat(np.arange(len(column)), counts)[numbers(has_text)]
    arrays = [each.filter(has_text).fill_null("") for each in texts]
    arrays += [pa.repeat(pa.scalar("", _TEXT), len(rows))] if spec.license is None else []
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(column)))])
    files = pa.StructArray.from_arrays(arrays, ["path", "text", "license"])
    return Listed(pa.LargeListArray.from_arrays(pa.array(offsets), files), len(values) - len(rows), bad)


def _wanted(spec: RowFiles) -> list[str]:
    return [spec.path, spec.text, *([spec.license] if spec.license is not None else [])]


def _members(kind: pa.DataType, spec: RowFiles) -> pa.DataType | None:
    """The type of a file; None where a field of this type does not list objects with the wanted members."""
    members = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if members is None or not pa.types.is_struct(members):
        return None
    known = {member.name for member in members if not pa.types.is_nested(member.type)}
    return members if {*_wanted(spec)} <= known else None


def _one_by_one(column: pa.Array, spec: RowFiles) -> tuple[pa.Array, dict[int, str]]:
    """Values of several types, which are JSON texts, or lists of them, as lists of files; and what is wrong with the others."""
    expected = f"expected a list of objects with {', '.join(_wanted(spec))}"
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if not _is_text(column.type.value_type if is_list else column.type):
        found = f"field '{spec.field}' is {in_words(column.type)}, {expected}"
        rows = np.flatnonzero(numbers(column.is_valid())).tolist()
        return pa.nulls(len(column), _files_type(spec)), dict.fromkeys(rows, found)
    lists, bad = list[Any](), dict[int, str]()
    for row, value in enumerate(column.to_pylist()):
        files = [_parsed(each) for each in value] if isinstance(value, list) else _parsed(value)
        is_good = isinstance(files, list) and all(file is None or isinstance(file, dict) for file in files)
        lists.append([_as_texts(file, spec) for file in files if file] if is_good else None)
        if not is_good and value is not None:
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
            bad[row] = f"field '{spec.field}' is {shown}, {expected}"
    return pa.array(lists, _files_type(spec)), bad


def _files_type(spec: RowFiles) -> pa.DataType:
    return pa.list_(pa.struct([(name, _TEXT) for name in dict.fromkeys(_wanted(spec))]))


def _parsed(text: str | bytes | None) -> Any:
    """The value of a JSON text; a text that is none stays as it is."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_texts(file: dict[str, Any], spec: RowFiles) -> dict[str, str | None]:
    values = {name: file.get(name) for name in _wanted(spec)}
    texts = {name: value if isinstance(value, str) or value is None else json.dumps(value) for name, value in values.items()}
    return {name: text and _utf8_or_none(text.encode("utf-8", "surrogatepass")) for name, text in texts.items()}


def texts_of_files(column: pa.Array, spec: RowFiles) -> pa.Array:
    """The texts of the files of each record, one after another: (num_rows,) large_string."""
    files = listed_files(column, spec).files
    offsets, data = text_buffers(files.values.flatten()[1])
    return texts_from(offsets[numbers(files.offsets)], data)


def _valid_texts(column: pa.Array, name: str) -> pa.Array:
    """A column as text, null where it is no UTF-8, which Arrow does not check when it reads."""
    try:
        content = column.cast(_TEXT) if not _is_text(column.type) else column.cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(f"repository: '{name}' is {column.type}, expected text") from None
    try:
        return content.cast(_TEXT)
    except pa.ArrowInvalid:  # value by value, only if some are invalid
        return pa.array([_utf8_or_none(value) for value in content.to_pylist()], _TEXT)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def row_documents(record: pa.RecordBatch, spec: RowFiles, *, has_members: bool) -> pa.RecordBatch:
    """The documents of records with `listed_files`, at least one each. The first has the key of its record, and the others
    have their numbers above its position; in an archive, whose positions have no room, they count up from it: a record has more
    bytes than files."""
    lists = record.column(spec.field)
    counts = numbers(compute.list_value_length(lists))
    rows, of_rows = np.repeat(np.arange(len(lists)), counts), np.concatenate([[0], np.cumsum(counts)])
    members = lists.flatten().flatten()
    order = _order(record, spec, rows, members[0])
    paths, texts, licenses = (part if order is None else part.take(order) for part in members)
    starts = document_starts(files_bytes(paths, texts), of_rows, spec.most_bytes)
    documents = pa.array(rows[starts[:-1]])
    names = pa.repeat(pa.scalar("", _TEXT), len(lists))
    if spec.name is not None:
        names = _valid_texts(record.column(spec.name), spec.name).fill_null("")
    joined, segments = joined_files(Files(starts, names.take(documents), paths, texts), spec.separators)
    made = {"key": _keys(record, numbers(documents), has_members), "text": joined, FILES: paths_as_json(paths, starts)}
    made |= {SEGMENTS: segments} if segments is not None else {}
    made |= {spec.license: joined_licenses(licenses, starts)} if spec.license is not None else {}
    kept = [name for name in record.schema.names if name not in {*made, spec.field}]
    columns = {name: record.column(name).take(documents) for name in kept} | made
    own = [field.name for field in BASE_FIELDS]
    others = [name for name in columns if name not in own]
    fields = [pa.field(name, columns[name].type, nullable=name not in OWN_COLUMNS) for name in others]
    return pa.RecordBatch.from_arrays([columns[name] for name in (*own, *others)], schema=pa.schema([*BASE_FIELDS, *fields]))


def _keys(record: pa.RecordBatch, rows: np.ndarray, has_members: bool) -> pa.Array:
    hashes, positions = (half[rows] for half in key_halves(record.column("key")))
    numbers_in_row = _numbers_in_row(rows)
    return make_keys(hashes, positions + (numbers_in_row if has_members else numbers_in_row << np.uint64(POSITION_BITS)))


def _order(record: pa.RecordBatch, spec: RowFiles, rows: np.ndarray, paths: pa.Array) -> pa.Array | None:
    """The order of the files of each record; None for that of the records."""
    if spec.order == "given":
        return None
    if spec.order == "path":
        table = pa.table({"row": rows, "path": paths, "number": np.arange(len(rows))})
        return compute.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    hashes = keyed_hash(key_halves(record.column("key")), spec.seed)
    ranks = keyed_hash((hashes[rows], _numbers_in_row(rows)), spec.seed)
    return pa.array(np.lexsort((ranks, rows)))


def _numbers_in_row(rows: np.ndarray) -> np.ndarray:
    """The number of each entry among those of its row, (num_entries,) uint64."""
    return (np.arange(len(rows)) - first_of_group(rows)).astype(np.uint64)

"""Records that list the files of a repository become documents, one each, or several of at most `RowFiles.most_bytes`.

    [{path, text}, …] ─▶ files with a text, paths without nulls ─▶ in their order ─▶ documents (`repositories.py`)

Memory is the records twice. No Python object is made for a file.
"""

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, is_first, key_halves, make_keys, numbers, text_buffers, texts_from
from datapipe.errors import UserError
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.rng import keyed_hash
from datapipe.stage.documents import BASE_FIELDS
from datapipe.stage.reader import RowFiles
from datapipe.stage.repositories import (
    FILES,
    Files,
    document_starts,
    files_bytes,
    joined_files,
    joined_licenses,
    paths_as_json,
)
from datapipe.stage.segments import SEGMENTS

POSITION_BITS = 40
"""The bits of a key's second half with the position of the record; those above have the number of the document in it."""

_TEXT = pa.large_string()


def listed_files(column: pa.Array, spec: RowFiles) -> tuple[pa.Array, int]:
    """The files of each record that have a text, (num_rows,) large lists of {path, text, license}, all text without nulls. A
    file whose text is null or no UTF-8 is left out, and counted; a path that is null is empty. Raises UserError for another
    column."""
    wanted = [spec.path, spec.text, *([spec.license] if spec.license is not None else [])]
    if column.null_count == len(column):
        column = pa.nulls(len(column), pa.list_(pa.struct([(name, _TEXT) for name in wanted])))
    kind = column.type
    members = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    known = {member.name for member in members} if members is not None and pa.types.is_struct(members) else set()
    if not {*wanted} <= known:
        raise UserError(f"repository: field '{spec.field}' is {kind}, expected a list of objects with {', '.join(wanted)}")
    values, counts = column.flatten(), numbers(compute.list_value_length(column).fill_null(0))
    parts = dict(zip((member.name for member in values.type), values.flatten()))
    texts = [_valid_texts(parts[name], f"{spec.field}.{name}") for name in wanted]
    has_text = texts[1].is_valid()
    rows = np.repeat(np.arange(len(column)), counts)[numbers(has_text)]
    arrays = [each.filter(has_text).fill_null("") for each in texts]
    arrays += [pa.repeat(pa.scalar("", _TEXT), len(rows))] if spec.license is None else []
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(column)))])
    files = pa.StructArray.from_arrays(arrays, ["path", "text", "license"])
    return pa.LargeListArray.from_arrays(pa.array(offsets), files), len(values) - len(rows)


def texts_of_files(column: pa.Array, spec: RowFiles) -> pa.Array:
    """The texts of the files of each record, one after another: (num_rows,) large_string."""
    files, _ = listed_files(column, spec)
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
    numbers_in_row = np.arange(len(rows), dtype=np.uint64) - _first_of(rows)
    return make_keys(hashes, positions + (numbers_in_row if has_members else numbers_in_row << np.uint64(POSITION_BITS)))


def _order(record: pa.RecordBatch, spec: RowFiles, rows: np.ndarray, paths: pa.Array) -> pa.Array | None:
    """The order of the files of each record; None for that of the records."""
    if spec.order == "given":
        return None
    if spec.order == "path":
        table = pa.table({"row": rows, "path": paths, "number": np.arange(len(rows))})
        return compute.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    hashes = keyed_hash(key_halves(record.column("key")), spec.seed)
    ranks = keyed_hash((hashes[rows], np.arange(len(rows), dtype=np.uint64) - _first_of(rows)), spec.seed)
    return pa.array(np.lexsort((ranks, rows)))


def _first_of(rows: np.ndarray) -> np.ndarray:
    """The first of the entries with the row of each, (num_entries,) uint64."""
    return np.maximum.accumulate(np.where(is_first(rows), np.arange(len(rows)), 0)).astype(np.uint64)

"""Decides the types of the kept fields of a source before anything runs, from the schemas of all its files.

    files with a schema  ─▶ schemas, each once ─▶ types of the fields ─┐
    files without        ─▶ records of at most 16 splits ─▶ types ─────┴─▶ one type for each field, or an error with two files

Listing the files has opened each one with a schema, so nothing of them is read again. The type of a field of files without one
is a guess: where reading meets values that it does not hold, the source is read again with a wider one (`plan/compile.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from datapipe.config.mixture import Mixture
from datapipe.engine.fields import first_splits
from datapipe.errors import UserError
from datapipe.plan.request import joined_types
from datapipe.stage.field_types import FoundType, plain, type_in
from datapipe.stage.reader import FieldNames, InputFile, Reader
from datapipe.storage import open_input

Files = Sequence[tuple[InputFile, Reader]]


def column_types(mixture: Mixture, name: str, files: Files, keep: Mapping[str, str]) -> dict[str, FoundType]:
    """The type of each kept field that the mixture declares no type for. Raises UserError where files have no common one, and
    where a file has a field twice."""
    source = mixture.sources[name]
    _check_twice(mixture, name, files, keep)
    undeclared = [field for column, field in keep.items() if column not in source.types]
    types = {field: FoundType(kind=pa.null(), path="") for field in undeclared}
    for found in (*_of_schemas(files, undeclared), *_of_records(mixture, name, files, undeclared)):
        for field, more in found.items():
            types[field] = joined_types(mixture.where("sources", name, "keep"), field, types[field], more)
    return types


def _schemas(files: Files) -> dict[pa.Schema, str]:
    """Each schema with the first file that has it. Files of equal schemas share one."""
    schemas: dict[pa.Schema, str] = {}
    for file, _ in files:
        if file.schema is not None:
            schemas.setdefault(file.schema, file.path)
    return schemas


def _check_twice(mixture: Mixture, name: str, files: Files, keep: Mapping[str, str]) -> None:
    source = mixture.sources[name]
    asked = {source.text: "text", source.id: "id", **dict.fromkeys(keep.values(), "keep")}
    for schema, path in _schemas(files).items():
        for field, option in asked.items():
            try:
                type_in(schema, field)
            except ValueError as error:
                raise UserError(
                    f"{mixture.where('sources', name, option)}: the field '{field}' is not one field of {path}: {error}. "
                    f"Rename one of them in the file, or name another field."
                ) from None


def _of_schemas(files: Files, fields: Sequence[str]) -> list[dict[str, FoundType]]:
    return [
        {
            field: FoundType(kind=plain(kind), path=path, has_schema=True)
            for field in fields
            if (kind := type_in(schema, field)) is not None
        }
        for schema, path in _schemas(files).items()
    ]


def _of_records(mixture: Mixture, name: str, files: Files, fields: Sequence[str]) -> list[dict[str, FoundType]]:
    """The types in the first records of some splits of files without schema; of one split where records do not differ."""
    source, found = mixture.sources[name], list[dict[str, FoundType]]()
    asked = FieldNames(text=source.text, id=source.id, keep=tuple(fields), types=dict.fromkeys(fields, pa.null()))
    without = [(file, reader) for file, reader in files if file.schema is None and not file.damage]
    for split, reader in first_splits(without) if fields else ():
        if found and not reader.has_json:
            continue
        try:
            seen = reader.fields_seen(split, asked, open_input)
        except OSError:  # the run opens the file again, and tells what is wrong
            continue
        if seen.types:
            found.append({field: FoundType(kind=kind, path=split.file.path) for field, kind in seen.types.items()})
    return found

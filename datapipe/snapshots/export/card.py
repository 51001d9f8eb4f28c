"""README.md of an exported dataset: its front matter lists which files are of which split, as the Hugging Face hub reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from datapipe.config.yaml import dump_yaml

if TYPE_CHECKING:
    from datapipe.snapshots.export.export import ExportedSplit


def dataset_card(
    name: str, patterns: Mapping[str, str], written: Sequence[ExportedSplit], schema: pa.Schema | None = None
) -> bytes:
    """README.md.

    Args:
        patterns: the files of each split.
        written: the splits of the export.
        schema: of JSON lines, whose types `load_dataset` guesses from its first lines otherwise; a column that is null there
            could have no value later.
    """
    there = {each.split for each in written}
    files = [{"split": split, "path": path} for split, path in patterns.items() if split in there]
    front: dict[str, Any] = {"pretty_name": name, "configs": [{"config_name": "default", "data_files": files}]}
    if schema is not None:
        front["dataset_info"] = {"features": hub_features(schema)}
    rows = "".join(f"| {each.source} | {each.split} | {each.rows:,} |\n" for each in written)
    return f"---\n{dump_yaml(front)}---\n\n# {name}\n\n| source | split | rows |\n|---|---|---:|\n{rows}".encode()


def hub_features(schema: pa.Schema, of_json: bool = True) -> list[dict[str, Any]]:
    """The columns as the hub names their types.

    Args:
        of_json: whether the files are JSON, in which all but numbers, lists and structs is text.
    """
    return [{"name": field.name, **_type(field.type, of_json)} for field in schema]


def _type(kind: pa.DataType, of_json: bool) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"struct": hub_features(pa.schema([kind.field(number) for number in range(kind.num_fields)]), of_json)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _type(kind.value_type, of_json)
        return {"list": inner.get("dtype", inner)}
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, of_json)
    return {"dtype": _scalar(kind, of_json)}


def _scalar(kind: pa.DataType, of_json: bool) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return str(kind)
    if pa.types.is_floating(kind):
        return {16: "float16", 32: "float32", 64: "float64"}[kind.bit_width]
    if not of_json and pa.types.is_temporal(kind):
        return str(kind).removesuffix("[day]").removesuffix("[ms]") if pa.types.is_date(kind) else str(kind)
    if not of_json and (pa.types.is_decimal(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return str(kind)
    return "null" if pa.types.is_null(kind) else "string"

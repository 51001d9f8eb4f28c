"""README.md of an exported dataset: its front matter says which files are of which split, as the Hugging Face hub reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa


def dataset_card(
    name: str, pattern_of_split: Mapping[str, str], counts: Sequence[tuple[str, str, int]], schema: pa.Schema | None = None
) -> bytes:
    """README.md.

    Args:
        pattern_of_split: the files of each split.
        counts: source, split and number of rows of each part.
        schema: of JSON lines, whose types `load_dataset` guesses from its first lines otherwise; a column that is null there
            could have no value later.
    """
    files = "".join(f"  - split: {split}\n    path: {json.dumps(path)}\n" for split, path in pattern_of_split.items())
    rows = "".join(f"| {source} | {split} | {num_rows:,} |\n" for source, split, num_rows in counts)
    features = "" if schema is None else "dataset_info:\n  features:\n" + _fields(list(schema), "  ")
    return (
        f"---\npretty_name: {json.dumps(name)}\nconfigs:\n- config_name: default\n  data_files:\n{files}{features}---\n\n"
        f"# {name}\n\n| source | split | rows |\n|---|---|---:|\n{rows}"
    ).encode()


def _fields(fields: Sequence[pa.Field], indent: str) -> str:
    """Fields of a table or a struct as a list of YAML."""
    return "".join(f"{indent}- name: {json.dumps(field.name)}\n{_type(field.type, indent + '  ')}" for field in fields)


def _type(kind: pa.DataType, indent: str) -> str:
    """A type of JSON as the lines of YAML that tell it."""
    if pa.types.is_struct(kind):
        return f"{indent}struct:\n{_fields([kind.field(number) for number in range(kind.num_fields)], indent)}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _type(kind.value_type, indent + "  ")
        scalar = inner.strip().removeprefix("dtype: ")
        return f"{indent}list: {scalar}\n" if inner.strip().startswith("dtype: ") else f"{indent}list:\n{inner}"
    return f"{indent}dtype: {_scalar(kind)}\n"


def _scalar(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return str(kind)
    if pa.types.is_floating(kind):
        return {16: "float16", 32: "float32", 64: "float64"}[kind.bit_width]
    return "'null'" if pa.types.is_null(kind) else "string"

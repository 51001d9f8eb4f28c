"""A mixture as YAML, with all defaults, as the output of a run keeps it.

path: s3://${KEY}:${SECRET}@bucket/*.jsonl       as it was written: variables may hold secrets
path: s3://***@bucket/*.jsonl                    of credentials that were written out
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from datapipe.config.interpolation import escaped
from datapipe.config.yaml import KeyPath
from datapipe.credentials import masked_urls


def written_yaml(data: Mapping[str, Any], references: Mapping[KeyPath, str]) -> str:
    """Dumped data as YAML.

    Args:
        data: of a mixture whose references are replaced.
        references: the texts to write in place of their values, by path.
    """
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width, writer.allow_unicode = False, 10_000, True
    writer.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    stream = io.StringIO()
    writer.dump(_plain(data, references), stream)
    return stream.getvalue()


def parsed_yaml(text: str) -> Mapping[str, Any]:
    """The data of `written_yaml`, with references as they are written. Raises ValueError for other text."""
    try:
        return dict(YAML(typ="safe", pure=True).load(text) or {})
    except (YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error


def _plain(data: Any, references: Mapping[KeyPath, str], path: KeyPath = ()) -> Any:
    """Data for YAML: tuples become lists, text that looks like a reference is escaped, and references come back."""
    if path in references:
        return masked_urls(references[path])
    if isinstance(data, Mapping):
        return {key: _plain(value, references, (*path, key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value, references, (*path, index)) for index, value in enumerate(data)]
    return escaped(masked_urls(data)) if isinstance(data, str) else data

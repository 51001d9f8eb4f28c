"""A source that is another output: its shards are mixed as they are.

sources:
  old: {snapshot: runs/2025, weight: 0.1}                        all sources of its newest snapshot, by their size
  books: {snapshot: runs/books, version: 1f2e3d, sources: [web]} one source of one snapshot
mixture:
  replay: {from: runs/2025, share: 5%}                           all its sources, as that run draws them
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from datapipe.config.fields import Record, Texts, Weight
from datapipe.config.sources.source import Source


class SnapshotSource(Record):
    """Another output as a source. Its rows are neither read as text nor tokenized nor packed again."""

    snapshot: str = Field(
        min_length=1,
        description="Another output, a path or URL: all its rows, or those of some `sources`, become a source. It has the same "
        "tokenizer, sequence length and shard format.",
    )
    version: str | None = Field(
        default=None, min_length=1, description="Fingerprint of the snapshot, or its first digits. Default: the newest one."
    )
    sources: Texts = Field(default=(), description="Sources of that snapshot to take. Default: all.")
    weight: Weight = Field(
        default=Fraction(1),
        description="Share of the training tokens, relative to the other sources: 0.7, 70%, 1/3. Several sources of the "
        "snapshot share it in proportion to their rows.",
        json_schema_extra={"default": 1},
    )
    max_epochs: float | None = Field(
        default=None, gt=0, description="Largest number of times that training repeats the source. Default: no limit."
    )


def _of_kind(data: Any, validate: ValidatorFunctionWrapHandler) -> Source | SnapshotSource:
    """The kind of source whose key there is, so that problems name the keys of that kind."""
    if isinstance(data, Source | SnapshotSource):
        return data
    return (SnapshotSource if isinstance(data, dict) and "snapshot" in data else Source).model_validate(data)


AnySource = Annotated[Source | SnapshotSource, WrapValidator(_of_kind)]
"""Input files, or another output."""

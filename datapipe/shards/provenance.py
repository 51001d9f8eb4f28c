"""Where a source comes from, as manifests record it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from datapipe.shards.shard_table import absent


class SyntheticEntry(BaseModel):
    """The model that wrote a source, and its prompt, or where that is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    prompt: str | None = None


class Provenance(BaseModel):
    """Where a source comes from. Fields that older manifests do not have are left out where nothing is said.

    Attributes:
        license: an expression of SPDX; free text in older manifests.
        synthetic: whether a model wrote the source, or which one.
        license_field: the column with the licence of each document.
        collected: the first and the last date, month or year.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    license: str | None = None
    synthetic: bool | SyntheticEntry = False
    license_field: str | None = absent()
    homepage: str | None = absent()
    collected: tuple[str, str] | None = absent()

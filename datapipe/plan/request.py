"""What a plan is compiled from: the mixture, its sources with their inputs and bound stages, and rows of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from datapipe.config.mixture import Mixture
from datapipe.plan.work import BoundStage, Tables
from datapipe.stage.base import InputFile, Reader, Split


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSource:
    """One source as planning sees it.

    Attributes:
        groups: what each map task reads.
        readers: by input path.
        reader_digests: by input path, code and options of its reader.
        stages: bound, in order.
    """

    groups: tuple[tuple[Split, ...], ...]
    readers: Mapping[str, Reader]
    reader_digests: Mapping[str, str]
    stages: tuple[BoundStage, ...]

    @property
    def splits(self) -> tuple[Split, ...]:
        """What all tasks read."""
        return tuple(split for group in self.groups for split in group)

    @property
    def files(self) -> dict[str, InputFile]:
        """Every input file by its path, each once however it is cut."""
        return {split.file.path: split.file for split in self.splits}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Everything a plan is a function of, records apart.

    Attributes:
        tokenizer_content: the user's tokenizer.json; empty where one is trained.
        limit: read at most so many documents of each source.
        settled: rows of earlier runs that a global stage is held against, by its name and digest.
    """

    mixture: Mixture
    sources: Mapping[str, PlannedSource]
    tokenizer_content: bytes = b""
    limit: int | None = None
    reference_rows: Mapping[tuple[str, str], Tables] = field(default_factory=dict)

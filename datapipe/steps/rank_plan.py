"""The steps that find the cut of a filter that keeps a share of a source. Pure.

    scores of all map tasks ─▶ rank, some files each ─▶ summaries ─▶ narrow, one task ─▶ an interval ─▶ rank ─▶ … ─▶ the cut

How the interval narrows is in `steps/cut.py`. What `narrow` finds is so small that it stands in its record, so the plan
knows it without reading a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from pydantic import TypeAdapter

from datapipe.records.outputs import TableFile
from datapipe.records.record import Record
from datapipe.stage.base import KeptShare
from datapipe.steps.cut import Cut
from datapipe.steps.work import Task, entering, file_checksums

_CUT = TypeAdapter(Cut)
MOST_ROUNDS = 16
"""Rounds after which a run fails. Four are enough for 4e10 documents of any scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTask(Task):
    """Summarises the scores of some map tasks in an interval.

    Attributes:
        stage: name of the filter in the run.
        scores: what map tasks wrote.
    """

    kind: ClassVar[str] = "rank"

    stage: str
    scores: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    interval: Cut = field(metadata=entering(asdict))


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowTask(Task):
    """Narrows the interval by the summaries of a source, down to the cut.

    Attributes:
        stage: name of the filter in the run.
        share: that is kept.
    """

    kind: ClassVar[str] = "narrow"

    stage: str
    summaries: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    interval: Cut = field(metadata=entering(asdict))
    share: KeptShare = field(metadata=entering(lambda share: str(share.share)))


def scores_of(stage: str) -> str:
    """The kind of output that holds the scores of a filter, by its name in the run."""
    return f"scores.{stage}"


def file_groups(files: Sequence[TableFile], group_bytes: int) -> Iterator[tuple[TableFile, ...]]:
    """Files with rows, together about `group_bytes` in memory."""
    group: list[TableFile] = []
    for file in files:
        if group and sum(each.row_bytes for each in group) + file.row_bytes > group_bytes:
            yield tuple(group)
            group = []
        if file.rows:
            group.append(file)
    if group:
        yield tuple(group)


def step_ids(source: str, stage: str, number: int) -> tuple[str, str]:
    """The ids of the two steps of a round: `web/rank-filter.classifier-1` and `web/narrow-filter.classifier-1`."""
    return f"{source}/rank-{stage}-{number}", f"{source}/narrow-{stage}-{number}"


def filter_of(step_id: str) -> str:
    """The filter, by its name in the run, whose cut one of these steps helps to find."""
    return step_id.partition("/")[2].partition("-")[2].rpartition("-")[0]


def found_of(record: Record) -> Cut:
    """What a task of kind "narrow" found."""
    return _CUT.validate_python(record.metrics.cut)

"""What sources lose: to one stage, to texts that are empty, or all of it. Pure.

counts of a source + its stages ─▶ losses of more than `MOST_LOST` that no option asks for ─▶ warnings
                                └▶ the reason why nothing of it is left, for a source, or an output, that holds nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from datapipe.metrics import DocumentCounts
from datapipe.quantities import counted
from datapipe.stage.base import BELOW_SHARE
from datapipe.stage.global_stage import Global
from datapipe.steps.counts import SourceCounts, quarantine_text
from datapipe.steps.pipeline import BoundStage

MOST_LOST = 0.9
"""Share of the documents that reach a stage above which its loss is told."""

_NAMED_REASONS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What one stage dropped of a source.

    Attributes:
        dropped: documents by reason, "stage:rule".
        reached: documents that the stages before it left.
        is_asked: whether an option asks for a loss as large as this: a share to keep, or `max_dropped`.
    """

    stage: str
    dropped: Counter[str]
    reached: int
    is_asked: bool

    @property
    def share(self) -> float:
        return self.dropped.total() / self.reached


def losses(counts: DocumentCounts, stages: Sequence[BoundStage]) -> Iterator[Loss]:
    """What each stage dropped, in order; stages that dropped nothing are left out."""
    left, names = counts.read, sorted((bound.name for bound in stages), key=len, reverse=True)
    by_stage: dict[str, Counter[str]] = {}
    for reason, number in counts.dropped.items():
        stage = next((name for name in names if reason == name or reason.startswith(f"{name}:")), "")
        by_stage.setdefault(stage, Counter())[reason] += number
    for bound in stages:
        dropped = by_stage.pop(bound.name, None)
        if dropped is not None and dropped.total() and left:
            yield Loss(stage=bound.name, dropped=dropped, reached=left, is_asked=_is_asked(bound, dropped, left))
            left -= dropped.total()


def asked_share(stages: Sequence[BoundStage]) -> Fraction:
    """The share of a source that its filters are asked to keep; 1 where none is asked for a share."""
    return prod((bound.share.share for bound in stages if bound.share is not None), start=Fraction(1))


def _is_asked(bound: BoundStage, dropped: Counter[str], reached: int) -> bool:
    stage, share = bound.stage, dropped.total() / reached
    if bound.share is not None:
        return (dropped.total() - dropped[f"{bound.name}:{BELOW_SHARE}"]) / reached <= MOST_LOST
    return isinstance(stage, Global) and stage.max_dropped is not None and share <= stage.max_dropped


def why_nothing_is_left(counts: SourceCounts, files: Collection[str]) -> str:
    """Why no document of a source is left, as a clause: "filter.length:too_few_words dropped 50 of 50 documents".

    Args:
        files: the paths of its input files.
    """
    documents = counts.document_counts
    if not documents.read:
        more = f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        return f"no document is in its input: {next(iter(files))}{more}"
    read = f"of {counted(documents.read, 'document')}"
    reasons = [f"{name} dropped {number:,}" for name, number in documents.dropped.most_common(_NAMED_REASONS)]
    if documents.quarantined:
        reasons.append(f"{documents.quarantined:,} are in quarantine ({quarantine_text(documents)})")
    return f"{read}, {', '.join(reasons)}"

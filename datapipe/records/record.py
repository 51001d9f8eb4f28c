"""What the ledger keeps of a committed task."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import F, OutputFile, Outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What the ledger keeps of a committed task: its outputs by kind, and its numbers."""

    step: str
    fingerprint: str
    outputs: Outputs
    metrics: TaskMetrics

    def of(self, kind: str, file_type: type[F] = OutputFile) -> tuple[F, ...]:
        """The outputs of a kind, which are files of one type."""
        files = self.outputs.get(kind, ())
        typed = tuple(file for file in files if isinstance(file, file_type))
        assert len(typed) == len(files), f"expected {file_type.__name__} only, found {files}"
        return typed

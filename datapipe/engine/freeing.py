"""Deletes files under work/ as soon as no task of the run reads them any more, where `execution.keep_work` lets them go.

    plan compiled ─▶ files whose readers are all committed (`steps/unread.py`) ─┐
    tasks committed ─▶ documents whose last reader was one of them ─────────────┴─▶ ledger: freed ─▶ deleted

Files of tasks that another snapshot of the output has, too, stay, unless that snapshot had lost them
before. So does the index of an output that has one, or gets files added to it: later runs compare with
its rows. Shards go when they are published, under their own names.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from datapipe.dataclass import dataclass, field
from datapipe.records.ledger import Ledger
from datapipe.records.outputs import OutputFile, Record
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.unread import DOCUMENTS, PUBLISHED, KeepWork, UnreadFiles, documents_read, files_of, is_index_row
from datapipe.storage.lock import OutputLock

_DUE_FILES, _DUE_BYTES = 256, 256 << 20
"""Documents are deleted when so many files, or so many bytes, have no reader left: one line of the ledger, and on an object
store four requests, for all of them."""


@dataclass()
class Freeing:
    """Frees files of one run. `others`: the tasks of other snapshots."""

    ledger: Ledger
    lock: OutputLock
    level: KeepWork = "resume"
    keeps_index: bool = True
    others: set[str] = field(default_factory=set)
    _documents: dict[str, Record] = field(default_factory=dict)  # by path, files that go after their last reader
    _left: Counter[str] = field(default_factory=Counter)  # the number of their readers without a record
    _unread: list[OutputFile] = field(default_factory=list)
    # by step and kind of files, the records whose files are taken: each record is decoded once for a kind
    _taken: dict[tuple[str, str], Sequence[Record]] = field(default_factory=dict)

    def plan(self, plan: Plan) -> None:
        """Takes a new plan, in which steps have ended and others have got their tasks."""
        if self.level == "resume":
            return
        unread = UnreadFiles(plan, self.level, self.keeps_index)
        for step, kinds in unread.of_steps():
            fresh = [kind for kind in sorted(kinds) if self._is_fresh(step, kind)]
            self._add(step.records if fresh else (), fresh)
        self._left = unread.readers_left()
        for step in unread.with_known_readers():
            if self._is_fresh(step, DOCUMENTS):
                self._documents.update((file.path, record) for record in step.records for file in record.of(DOCUMENTS))
        done = [path for path in self._documents if not self._left[path]]
        self._add((self._documents.pop(path) for path in done), (DOCUMENTS,))

    def _is_fresh(self, step: Step, kind: str) -> bool:
        if self._taken.get((step.id, kind)) is step.records:
            return False
        self._taken[step.id, kind] = step.records
        return True

    def again(self) -> None:
        """Takes the next plan as the first one, since tasks run again that were committed: they may read files that had no
        reader left."""
        self._taken.clear()
        self._documents.clear()
        self._unread.clear()

    def committed(self, tasks: Iterable[Task]) -> None:
        """Takes tasks that are committed."""
        for path in (path for task in tasks for path in documents_read(task) if path in self._documents):
            self._left[path] -= 1
            if not self._left[path]:
                self._add([self._documents.pop(path)], (DOCUMENTS,))

    def published(self, plan: Plan, others: set[str]) -> None:
        """Takes the plan of a snapshot that is published, and the tasks of the others."""
        if self.level != "resume":
            self.others = others
            self.again()
            self.plan(plan)
            for step in plan.steps:
                self._add(step.records, PUBLISHED)

    @property
    def is_due(self) -> bool:
        return len(self._unread) >= _DUE_FILES or sum(file.bytes for file in self._unread) >= _DUE_BYTES

    def free(self) -> None:
        """Deletes what has no reader. Raises LeaseLostError, and deletes nothing, where another run has the output."""
        self.ledger.free(self._unread, self.lock)
        self._unread.clear()

    def _add(self, records: Iterable[Record], kinds: Iterable[str]) -> None:
        kinds = tuple(kinds)
        for record in records:
            is_shared = record.fingerprint in self.others
            for file in files_of(record, kinds):
                stays = is_shared and not self.ledger.was_freed(record.fingerprint, file)
                if not stays and not self.ledger.is_freed(file.path):
                    self._unread.append(file)


def freed_inputs(ledger: Ledger, plan: Plan) -> set[str]:
    """The tasks that have to run again, since tasks without a record read files of theirs that are freed. A plan in which they
    have no record shows which others have to run for them."""
    return ledger.freed_by(file for task in plan.pending() for file in task.read_files) if ledger.has_freed else set()


def has_freed_rows(ledger: Ledger, plan: Plan) -> bool:
    """Whether rows of the index of a plan are freed."""
    records = (record for step in plan.of_kind("map") for record in step.records) if ledger.has_freed else ()
    rows = (file for record in records for file in files_of(record, filter(is_index_row, record.outputs)))
    return any(ledger.is_freed(file.path) for file in rows)

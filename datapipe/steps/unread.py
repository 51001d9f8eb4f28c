"""Which files of committed tasks no task of a plan reads any more, and which of them stay all the same. Pure.

    documents              read by a task or two of each step that follows on the source: they go with the last of these
    rows, scores, samples  read by all tasks of a step: they go with the step
    facts of documents     read by no task, but for those of kept documents where a budget drops some

A step that has no tasks yet may still get tasks that read a file, so a file waits until all such steps have theirs. Readers of
the documents of a segment are known with the tasks of the next segment, those of the tables of a global stage with the tasks
that collect its decisions.

| files | `resume` | `inspect` | `none` |
|---|---|---|---|
| what the report counts, texts that were held out, quarantine, the tokenizer | stay | stay | stay |
| facts of documents, texts of the kept ones, decisions of global stages, rows of the index | stay | stay | go |
| shards, after they were published; all others | stay | go | go |
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain
from typing import Literal, cast

from datapipe.dataclass import dataclass, replace
from datapipe.records.outputs import CELL_SIZES, CELLS, HELD_OUT_TEXTS, TRAINING_TEXTS, OutputFile, Record
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import CONTENTS, FINAL_TABLES
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.pipeline import GlobalStep

KeepWork = Literal["none", "resume", "inspect"]

DOCUMENTS = "documents"
PUBLISHED = frozenset({"shards", "files"})
"""Outputs that have another name once they are published."""

_ALWAYS = frozenset({"tokenizer", "quarantine", "measured", "borderline", "survivors", "findings", "used_ids"})
_ALWAYS |= {TRAINING_TEXTS, HELD_OUT_TEXTS, CELLS}
_FACTS = frozenset(
    {("map", "kept"), ("pack", "packed"), *((kind, "drops") for kind in ("map", "tokenize", "limit"))}
)  # kinds of tasks, and of their files
_EMITTED, _FOLDED = "emitted.", "folded."


def is_index_row(kind: str) -> bool:
    """Whether files of a kind have rows that later runs compare with."""
    return kind.startswith(_EMITTED) and kind.removeprefix(_EMITTED) not in FINAL_TABLES


def stays(kind: str, *, keeps_index: bool) -> bool:
    """Whether files of a kind stay, where nothing does that a snapshot does not need."""
    return kind.removeprefix(_FOLDED) in _ALWAYS or (keeps_index and is_index_row(kind))


@dataclass(frozen=True)
class UnreadFiles:
    """The files of a plan that may go at a level of `execution.keep_work`; `keeps_index`: whether rows of the index stay."""

    plan: Plan
    level: KeepWork
    keeps_index: bool

    @cached_property
    def _steps(self) -> Mapping[str, Step]:
        return {step.id: step for step in self.plan.steps}

    def of_steps(self) -> Iterator[tuple[Step, frozenset[str]]]:
        """Committed steps, each with the kinds of its files that no task reads any more, other than documents."""
        for step in self.plan.steps:
            if step.is_committed:
                kinds = step.totals.rows.keys() - PUBLISHED - {DOCUMENTS}
                yield step, frozenset(kind for kind in kinds if not self._stays(step, kind) and self._is_read(step, kind))

    def with_known_readers(self) -> Iterator[Step]:
        """The steps whose documents may go once they have no reader."""
        for step in self.plan.of_kind("map"):
            number = self._segment(step)
            is_last = number == len(self.plan.pipeline.segments[step.source]) - 1
            known = [self._after(step)] if not is_last else self._of_source(step, ("tokenize", "write"))
            if all(each.tasks is not None for each in known) and not (is_last and self.level == "inspect"):
                yield step

    def readers_left(self) -> Counter[str]:
        """By path, the number of tasks without a record that read a file of documents."""
        return Counter(path for task in self.plan.pending() for path in documents_read(task))

    def _stays(self, step: Step, kind: str) -> bool:
        of_inspect = (step.kind, kind) in _FACTS or (step.kind == "gather" and kind != CONTENTS)
        keeps_index = self.keeps_index and not (step.kind == "map" and self._emits_contents(step))
        return stays(kind, keeps_index=keeps_index) or (self.level == "inspect" and of_inspect)

    def _emits_contents(self, step: Step) -> bool:
        """Whether the rows that a step of documents emits are texts, which are in the documents of the next one."""
        after = self.plan.pipeline.after[step.source][self._segment(step)]
        return isinstance(after, GlobalStep) and cast(Global, after.stage.stage).makes_contents

    def _is_read(self, step: Step, kind: str) -> bool:
        """Whether all tasks that read files of a kind, of a committed step, are known and committed."""
        if (step.kind, kind) == ("map", "kept"):
            return all(each.is_committed for each in self._of_source(step, ("limit",)))
        if (step.kind, kind) in _FACTS:
            return True
        group = next((each for each in self.plan.pipeline.global_steps if step.id.startswith(f"{each.id}/")), None)
        if step.kind == "gather" and group is not None:
            return all(
                self._steps[self.plan.pipeline.map_step(name, number + 1)].is_committed for name, number in group.sources
            )
        if step.work.is_exchange and group is not None:
            return self._is_exchanged(group, kind)
        if step.kind == "map":
            after = self.plan.pipeline.after[step.source][self._segment(step)]
            if isinstance(after, GlobalStep) and kind.startswith(_EMITTED):
                return self._is_exchanged(after, kind.removeprefix(_EMITTED))
            return self._after(step).tasks is not None
        if step.kind == "grid":
            return self._steps[f"{step.source}/cells"].is_committed
        if step.kind == "rank":
            return self._steps[step.id.replace("/rank-", "/narrow-")].is_committed
        if kind.removeprefix(_FOLDED) == CELL_SIZES:
            return all(each.is_committed for each in self._of_source(step, ("cell_sizes",)))
        of_tokens = {"tokenize": ("pack",), "merge": ("pack",), "size": ("limit",), "stops": ("limit",)}
        readers = {"sample": ("train",), "fold": ("train",), **of_tokens}.get(step.kind)
        return readers is not None and all(each.is_committed for each in self._of_source(step, readers))

    def _is_exchanged(self, group: GlobalStep, table: str) -> bool:
        """Whether no exchange of a global stage reads a table any more, nor the step that collects its decisions."""
        decisions = self._steps[f"{group.id}/decisions"]
        exchanges = cast(Global, group.stage.stage).exchanges()
        firsts = [f"{group.id}/{each.name}" + ("-1" if each.rounds > 1 else "") for each in exchanges]
        following = [*(self._steps[name] for name in firsts[1:]), decisions]
        is_done = all(step.tasks is not None for each, step in zip(exchanges, following) if table in each.inputs)
        return is_done and (decisions.is_committed if table in FINAL_TABLES else True)

    def _segment(self, step: Step) -> int:
        pipeline = self.plan.pipeline
        numbers = range(len(pipeline.segments[step.source]))
        return next(number for number in numbers if pipeline.map_step(step.source, number) == step.id)

    def _after(self, step: Step) -> Step:
        return self._steps[self.plan.pipeline.map_step(step.source, self._segment(step) + 1)]

    def _of_source(self, step: Step, kinds: Iterable[str]) -> list[Step]:
        """The steps of some kinds that serve the source of a step, or all sources."""
        return [each for each in self.plan.steps if each.kind in kinds and each.source in ("", step.source)]


def files_of(record: Record, kinds: Iterable[str]) -> Iterator[OutputFile]:
    outputs = record.outputs
    return (file for kind in kinds for file in outputs.get(kind, ()))


def documents_read(task: Task) -> set[str]:
    """The paths of the files of documents that a task reads."""
    return {file.path for file in task.read_files} if hasattr(task, DOCUMENTS) else set()


def freed_after(plan: Plan, level: KeepWork, waves: Sequence[Set[str]], *, keeps_index: bool) -> Iterator[set[tuple[str, str]]]:
    """After each wave of the steps of a committed plan: the steps, each with a kind of its files other than documents, whose
    files may be gone. The steps of a wave run at the same time."""
    for number in range(len(waves)):
        done, following = set[str]().union(*waves[: number + 1]), {*chain(*waves[number + 1 : number + 2])}
        later = (replace(step, tasks=step.tasks if step.id in following else None, records=()) for step in plan.steps)
        steps = [step if step.id in done else other for step, other in zip(plan.steps, later)]
        unread = UnreadFiles(replace(plan, steps=steps), level, keeps_index)
        yield {(step.id, kind) for step, kinds in unread.of_steps() for kind in kinds}

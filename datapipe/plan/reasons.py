"""Why a step would run: what differs from the last run of the output. Pure.

    the last run: tasks, inputs, code, options ┐
                                               ├─▶ differences ─▶ reasons of every step that is not committed
    this run: plan, request, mixture as YAML   ┘

Fingerprints decide what runs; this module only explains. Where no record tells what differs, it says so in general terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datapipe import catalogue
from datapipe.plan.compile import EXCHANGES, Plan, Step
from datapipe.plan.fingerprint import KINDS, code_digest
from datapipe.plan.request import Request
from datapipe.plan.work import BoundStage

NEW = "new"
BEFORE = "a step before it runs"
_OTHER_OUTPUT = "a step before it gave another output"

_OPTIONS_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "map": ("execution.split_bytes",),
    "sample": ("seed", "tokenizer", "mixture", "sources.*.weight"),
    "train": ("tokenizer",),
    "tokenize": ("seed", "validation", "sources.SOURCE.strata.by", "sources.SOURCE.strata.bounds", "execution.bucket_bytes"),
    "pack": ("seed", "pack", "shards", "sources.SOURCE.strata.by", "sources.SOURCE.strata.bounds"),
    "write": ("seed", "documents"),
    **dict.fromkeys(EXCHANGES, ("execution.bucket_bytes",)),
}
"""The keys of the mixture that tasks of a kind depend on, beside stages and inputs; with all keys below them."""

_OPTIONS_OF_READING = tuple(f"sources.SOURCE.{name}" for name in ("format", "text", "id", "keep"))
_SHOWN_OPTIONS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What decides the tasks of a run beside their inputs; written to `work/run.json`, without any value of an option.

    Attributes:
        code: digests of the engine's code by kind of task.
        stages: by source, by the stage's name in the run: digests of its code, and of all that it is.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRun:
    """The last run of an output.

    Attributes:
        tasks: fingerprints by step.
        limit: `--limit`.
        inputs: by source, size and stamp by path.
        options: the mixture as its YAML has it.
        facts: empty for a run of an earlier version.
    """

    tasks: Mapping[str, Sequence[str]]
    limit: int | None
    inputs: Mapping[str, Mapping[str, tuple[int, str]]]
    options: Mapping[str, Any]
    facts: RunFacts


def facts_of(request: Request) -> RunFacts:
    """The facts of a run as of now."""
    return RunFacts(
        code={kind: code_digest(kind) for kind in KINDS},
        stages={
            name: {bound.name: (catalogue.code_digest(bound.stage), bound.digest) for bound in source.stages}
            for name, source in request.sources.items()
        },
    )


def reasons(last: LastRun | None, request: Request, plan: Plan, options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Why each step that is not committed would run, by step.

    Args:
        last: None for an output without a run.
        options: the mixture of this run, as its YAML has it.
    """
    waiting = [step for step in plan.steps if not step.is_committed]
    if last is None:
        return {step.id: [NEW] for step in waiting}
    comparison = _Comparison(last, request, plan, flat(last.options), flat(options), facts_of(request))
    return {step.id: comparison.reasons(step) for step in waiting}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Two runs of one output. `before` and `now` are their options by dotted key."""

    last: LastRun
    request: Request
    plan: Plan
    before: Mapping[str, str]
    now: Mapping[str, str]
    facts: RunFacts

    def reasons(self, step: Step) -> list[str]:
        if step.id not in self.last.tasks:
            return [NEW] if step.tasks is not None or self._has_new_stage(step) else [BEFORE]
        if step.tasks is None:
            return [BEFORE]
        known = set(self.last.tasks[step.id])
        if all(task.fingerprint in known for task in step.pending()):
            return ["the last run did not commit it"]
        found = [*self._code(step), *self._stages(step), *self._inputs(step), *self._options(step)]
        return found or [_OTHER_OUTPUT if self._differs_before(step) else "its inputs, or an option, changed"]

    def _differs_before(self, step: Step) -> bool:
        """Whether a step before this one has other tasks than in the last run."""
        before = self.plan.steps[: self.plan.steps.index(step)]
        feeding = [other for other in before if not step.source or other.source in ("", step.source)]
        return any(
            {task.fingerprint for task in other.tasks or ()} != set(self.last.tasks.get(other.id, ())) for other in feeding
        )

    def _has_new_stage(self, step: Step) -> bool:
        """Whether a step of a global stage, or of a source, belongs to none of the last run."""
        group = step.id.partition("/")[0]
        return not any(other.partition("/")[0] == group for other in self.last.tasks)

    def _code(self, step: Step) -> list[str]:
        before = self.last.facts.code.get(step.kind)
        is_changed = before is not None and before != self.facts.code[step.kind]
        return ["code of datapipe, or the version of a library, changed"] if is_changed else []

    def _stages(self, step: Step) -> list[str]:
        sources = [step.source] if step.source else list(self.request.sources)
        lines: dict[str, None] = {}
        for source in sources:
            before = self.last.facts.stages.get(source)
            if before is None:
                continue
            bound = {stage.name: stage for stage in self._stages_of(step, source)}
            lines |= dict.fromkeys(line for stage in bound.values() for line in self._stage(source, stage, before))
            if step.kind == "map":
                gone = before.keys() - {stage.name for stage in self.request.sources[source].stages}
                lines |= dict.fromkeys(f"{name} left out" for name in sorted(gone))
        return list(lines)

    def _stages_of(self, step: Step, source: str) -> Iterable[BoundStage]:
        """The stages that a step runs on the documents of a source."""
        pipeline = self.plan.pipeline
        if step.kind in EXCHANGES:
            group = step.id.partition("/")[0]
            return [each.stage for each in pipeline.global_steps if each.id == group and source in dict(each.sources)]
        for number, stages in enumerate(pipeline.segments[source] if step.kind == "map" else ()):
            if pipeline.map_step(source, number) == step.id:
                after = pipeline.after[source][number]
                return [*stages, *([after.stage] if after else [])]
        return []

    def _stage(self, source: str, bound: BoundStage, before: Mapping[str, Sequence[str]]) -> list[str]:
        """How a stage differs from the one of its name in the last run."""
        if bound.name not in before:
            return [f"{bound.name} added"]
        code, digest = before[bound.name]
        now_code, now_digest = self.facts.stages[source][bound.name]
        if digest == now_digest:
            return []
        changed = [*(["code of " + bound.name + " changed"] if code != now_code else [])]
        changed += _options_changed(self.before, self.now, [f"{prefix}.{bound.name}" for prefix in _stage_lists(source)])
        return changed or [f"options of {bound.name}, or a file that it reads, changed"]

    def _inputs(self, step: Step) -> list[str]:
        """How the input files of a reading step differ."""
        if not step.id.endswith("/read"):
            return []
        before = self.last.inputs.get(step.source, {})
        now = {path: (file.num_bytes, file.stamp) for path, file in self.request.sources[step.source].files.items()}
        changed = sum(now[path] != before[path] for path in now.keys() & before.keys())
        counts = {"added": len(now.keys() - before.keys()), "removed": len(before.keys() - now.keys()), "changed": changed}
        listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        limits = [f"--limit {self.last.limit} → {self.request.limit}"] if self.last.limit != self.request.limit else []
        return [*([f"input files changed: {listed}"] if listed else []), *limits]

    def _options(self, step: Step) -> list[str]:
        keys = _OPTIONS_BY_KIND.get(step.kind, ()) + (_OPTIONS_OF_READING if step.id.endswith("/read") else ())
        named = (key.replace("SOURCE", step.source) for key in keys)
        prefixes = [each for key in named for each in ([key] if "*" not in key else self._of_every_source(key))]
        return _options_changed(self.before, self.now, prefixes)

    def _of_every_source(self, key: str) -> list[str]:
        return [key.replace("*", name) for name in self.request.sources]


def _stage_lists(source: str) -> tuple[str, str]:
    """Where the stages of a source stand in the mixture."""
    return "stages", f"sources.{source}.stages"


def _options_changed(before: Mapping[str, str], now: Mapping[str, str], prefixes: Sequence[str]) -> list[str]:
    """["options changed: pack.sequence_length 2048 → 1024"]; nothing where the keys below the prefixes are equal."""
    starts = tuple(f"{prefix}." for prefix in prefixes)
    keys = [key for key in dict.fromkeys((*now, *before)) if f"{key}.".startswith(starts)]
    changed = [
        f"{key} {before.get(key, 'not given')} → {now.get(key, 'not given')}" for key in keys if before.get(key) != now.get(key)
    ]
    more = [f"and {len(changed) - _SHOWN_OPTIONS:,} more"] if len(changed) > _SHOWN_OPTIONS else []
    return [f"options changed: {', '.join([*changed[:_SHOWN_OPTIONS], *more])}"] if changed else []


def flat(options: Any, prefix: str = "") -> dict[str, str]:
    """The values of a mixture by dotted key. A stage's options are below its name: "stages.filter.length.min_chars"."""
    if isinstance(options, Mapping):
        return {
            key: value
            for name, child in options.items()
            for key, value in flat(child, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    if isinstance(options, list) and any(isinstance(child, Mapping) for child in options):
        uses = [_aliased(child) for child in options if isinstance(child, Mapping)]
        return {key: value for use in uses for key, value in flat(use, prefix).items()}
    text = ", ".join(map(str, options)) if isinstance(options, list) else str(options)
    return {prefix: text}


def _aliased(use: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stage's use under its name in the run."""
    return {given["as"] if isinstance(given, Mapping) and "as" in given else name: given for name, given in use.items()}

"""Why a step would run: what differs from the last run of the output. Pure.

    the last run: tasks, inputs, code, options ┐
                                               ├─▶ differences ─▶ reasons of every step that is not committed
    this run: plan, request, mixture as YAML   ┘

Fingerprints decide what runs; this module only explains, in general terms where no record has the difference."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse, parse_stage
from datapipe.dataclass import dataclass, field
from datapipe.errors import UserError
from datapipe.records.versions import PARQUET, content_of, distribution, normal, parsed, version_here
from datapipe.steps.kind import Plan, Step, code_of
from datapipe.steps.kinds import KINDS
from datapipe.steps.request import Request
from datapipe.storage.root import is_remote

NEW = "new"
BEFORE = "a step before it runs"
FREED = "a later step needs files of it that `keep_work` let go"
_OTHER_OUTPUT = "a step before it gave another output"

_SHOWN_OPTIONS = 4
_SHOWN_SOURCES = 3
_OPTIONS_CHARS = 80
_VALUE_CHARS = 400
_STAGES = re.compile(r"(sources\..*\.)?stages", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What decides the tasks of a run beside their inputs; written to `work/run.json`, without any value of an option."""

    code: Mapping[str, str]  # by kind of work, its version
    # by source and the stage's name in the run, two digests: of its code, and of its code, options and files
    stages: Mapping[str, Mapping[str, Sequence[str]]]
    # by library, the version; empty in a run before they were written here
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRun:
    tasks: Mapping[str, Sequence[str]]  # fingerprints by step
    limit: int | None  # `--limit`
    inputs: Mapping[str, Mapping[str, tuple[int, str]]]  # by source, size and stamp by path
    options: Mapping[str, Any]  # the mixture as its YAML has it
    facts: RunFacts


def facts_of(request: Request) -> RunFacts:
    return RunFacts(
        code={kind.kind: code_of(kind) for kind in KINDS},
        stages={
            name: {bound.name: (catalogue.code_digest(bound.stage), bound.digest) for bound in source.stages}
            for name, source in request.sources.items()
        },
        versions={library: version_here(library) for library in sorted(_libraries(request))},
    )


def _libraries(request: Request) -> set[str]:
    """The libraries that may count in a run."""
    sources = request.sources.values()
    of_stages = {library for source in sources for bound in source.stages for library in bound.libraries}
    of_readers = {library for source in sources for reader in source.readers.values() for library in reader.libraries_used()}
    return of_stages | of_readers | {PARQUET, *(library for kind in KINDS for library in kind.libraries)}


def reasons(last: LastRun | None, request: Request, plan: Plan, options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Why each step that is not committed would run, by step. `last` is None for an output without
    a run; `options` are the mixture of this run as its YAML has it."""
    waiting = [step for step in plan.steps if not step.is_committed]
    if last is None:
        return {step.id: [NEW] for step in waiting}
    comparison = _Comparison(last, request, plan, options, facts_of(request))
    return {step.id: comparison.reasons(step) for step in waiting}


@dataclass(frozen=True, slots=True)
class _Comparison:
    last: LastRun
    request: Request
    plan: Plan
    options: Mapping[str, Any]
    facts: RunFacts

    def reasons(self, step: Step) -> list[str]:
        if step.id not in self.last.tasks:
            group = step.id.partition("/")[0]  # a global stage, or a source
            is_known = any(other.partition("/")[0] == group for other in self.last.tasks)
            return [NEW] if step.tasks is not None or not is_known else [BEFORE]
        if step.tasks is None:
            return [BEFORE]
        known = set(self.last.tasks[step.id])
        if all(task.fingerprint in known for task in step.pending()):
            is_freed = any(task.fingerprint in self.plan.again for task in step.pending())
            return [FREED if is_freed else "the last run did not commit it"]
        texts = [*self._code(step), *self._stages(step), *self._inputs(step), *self._options(step)]
        return texts or [_OTHER_OUTPUT if self._differs_before(step) else "its inputs, or an option, changed"]

    def _differs_before(self, step: Step) -> bool:
        before = self.plan.steps[: self.plan.steps.index(step)]
        feeding = [other for other in before if not step.source or other.source in ("", step.source)]
        return any(
            {task.fingerprint for task in other.tasks or ()} != set(self.last.tasks.get(other.id, ())) for other in feeding
        )

    def _code(self, step: Step) -> list[str]:
        now = self.facts.code[step.kind]
        if self.last.facts.code.get(step.kind, now) != now:
            return ["code of datapipe changed"]
        used = {library for task in (step.tasks or ())[:1] for library in parsed(task.versions)}
        before, here = self.last.facts.versions, self.facts.versions
        changed = [name for name in sorted(used & before.keys()) if normal(name, before[name]) != normal(name, here[name])]
        texts = dict.fromkeys(f"{distribution(name)} {before[name]} → {here[name]}" for name in changed)
        if texts:
            return [f"versions changed: {', '.join(texts)}"]
        known = {content_of(name) for name in self.last.tasks[step.id]}
        is_of_others = any(content_of(task.fingerprint) in known for task in step.pending())
        return ["other versions of libraries made it, which the last run trusted"] if is_of_others else []

    def _stages(self, step: Step) -> list[str]:
        sources = [step.source] if step.source else list(self.request.sources)
        lines: dict[str, None] = {}
        for source in sources:
            before = self.last.facts.stages.get(source)
            if before is None:
                continue
            for name in dict.fromkeys(stage.name for stage in step.work.stages_of(self.plan, step, source)):
                lines |= dict.fromkeys(self._stage(source, name, before))
            if step.kind == "map":
                gone = before.keys() - {stage.name for stage in self.request.sources[source].stages}
                lines |= dict.fromkeys(f"left out {name}" for name in sorted(gone))
        return list(lines)

    def _stage(self, source: str, name: str, before: Mapping[str, Sequence[str]]) -> list[str]:
        """How a stage differs from the one of its name in the last run."""
        if name not in before:
            return [f"added {name}"]
        code, digest = before[name]
        now_code, now_digest = self.facts.stages[source][name]
        if digest == now_digest:
            return []
        changed = [f"code of {name} changed"] if code != now_code else []
        old, new = stage_uses(self.last.options, source).get(name), stage_uses(self.options, source).get(name)
        changed += _options_changed(use_changes(old, new)) if old is not None and new is not None else []
        return changed or [f"options of {name}, or a file that it reads, changed"]

    def _inputs(self, step: Step) -> list[str]:
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
        named = (key.replace("SOURCE", step.source) for key in step.work.options_of(step))
        prefixes = [key.replace("*", name) for key in named for name in (self.request.sources if "*" in key else ("",))]
        return _options_changed(value_changes(flat(self.last.options), flat(self.options), prefixes))


def _options_changed(changes: Sequence[str]) -> list[str]:
    """["options changed: pack.sequence_length 2048 → 1024"]; nothing without changes."""
    more = [f"and {len(changes) - _SHOWN_OPTIONS:,} more"] if len(changes) > _SHOWN_OPTIONS else []
    return [f"options changed: {', '.join([*changes[:_SHOWN_OPTIONS], *more])}"] if changes else []


def value_changes(before: Mapping[str, str], now: Mapping[str, str], prefixes: Sequence[str]) -> list[str]:
    """["pack.sequence_length 2048 → 1024"], of the keys that are equal to a prefix or below one."""
    starts = tuple(f"{prefix}." for prefix in prefixes)
    keys = [key for key in dict.fromkeys((*now, *before)) if f"{key}.".startswith(starts)]
    return [f"{key} {_shown(before, key)} → {_shown(now, key)}" for key in keys if before.get(key) != now.get(key)]


def _shown(options: Mapping[str, str], key: str) -> str:
    """A value on one line; of a long one, such as the text of a template, its beginning."""
    text = " ".join(options.get(key, "not given").split())
    return f"{text[:_VALUE_CHARS]}…" if len(text) > _VALUE_CHARS else text


def stage_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the stages of two mixtures differ, by their name in the run: ["added dedup.exact", "left
    out filter.length", "filter.url.mode drop → tag (of web)", "order of stages changed"]."""
    sources = [name for name in now.get("sources", {}) if name in before.get("sources", {})]
    of_sources: dict[str, list[str]] = {}
    for source in sources:
        for line in _list_changes(stage_uses(before, source), stage_uses(now, source)):
            of_sources.setdefault(line, []).append(source)
    return [line if of == sources else f"{line} (of {_some(of)})" for line, of in of_sources.items()]


def _list_changes(before: Mapping[str, StageUse], now: Mapping[str, StageUse]) -> Iterator[str]:
    yield from (f"added {_use_text(use)}" for name, use in now.items() if name not in before)
    yield from (f"left out {name}" for name in before if name not in now)
    for name in now:
        if name in before:
            yield from use_changes(before[name], now[name])
    if [name for name in now if name in before] != [name for name in before if name in now]:
        yield "order of stages changed"


def _use_text(use: StageUse) -> str:
    options = ", ".join(f"{key}: {_value_text(value)}" for key, value in _conditional(use).items())
    options = f"{options[:_OPTIONS_CHARS]}…" if len(options) > _OPTIONS_CHARS else options
    kind = f" ({use.name})" if use.alias != use.name else ""
    return f"{use.alias}{kind}{f' {{{options}}}' if options else ''}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_SOURCES:,} more" if len(names) > _SHOWN_SOURCES else ""
    return ", ".join(names[:_SHOWN_SOURCES]) + more


def stage_uses(options: Mapping[str, Any], source: str) -> dict[str, StageUse]:
    """The stages that a source passes through, in order, by their name in the run; none where they cannot be read."""
    own = options.get("sources", {}).get(source, {}).get("stages")
    entries = options.get("stages") if own is None else own
    try:
        uses = list(map(parse_stage, entries if isinstance(entries, list) else ()))
    except ValueError:  # as another version wrote them; what runs is decided by fingerprints
        return {}
    return {use.alias: use for use in uses}


def use_changes(before: StageUse, now: StageUse) -> list[str]:
    """How two uses of a name differ: ["filter.length.min_chars 20 → 30"]. An option that one does not give has its default."""
    if before.name != now.name:
        return [f"{now.alias}: {before.name} → {now.name}"]
    given = [_conditional(use) for use in (before, now)]
    if given[0] == given[1]:
        return []
    old, new = (dict(_all_options(use)) | ({"when": use.when} if use.when else {}) for use in (before, now))
    differing = {key for key in given[0] | given[1] if key not in old or key not in new or old[key] != new[key]}
    shown = [
        flat({key: value for key, value in (every | own).items() if key in differing}, now.alias)
        for every, own in zip((old, new), given)
    ]
    return value_changes(shown[0], shown[1], [now.alias])


def _conditional(use: StageUse) -> dict[str, Any]:
    """The options of a use, and its `when`."""
    return {name: value for name, value in use.written().items() if name != "as"}


def _all_options(use: StageUse) -> Mapping[str, Any]:
    """The options of a stage with its defaults. Those of a user's stage are as given: nothing of the user is imported here.
    So are those with URLs: no file is fetched to explain a run, and one of an earlier run may be gone."""
    if ":" in use.name or any(is_remote(value) for value in flat(use.options).values()):
        return use.options
    try:
        return catalogue.build_stage(use).model_dump(mode="json")
    except UserError:  # options of another version
        return use.options


def flat(options: Any, prefix: str = "") -> dict[str, str]:
    """The values of a mixture by dotted key, without its lists of stages."""
    if isinstance(options, Mapping):
        named = ((f"{prefix}.{name}" if prefix else str(name), child) for name, child in options.items())
        kept = ((key, child) for key, child in named if not _STAGES.fullmatch(key))
        return {leaf: value for key, child in kept for leaf, value in flat(child, key).items()}
    if isinstance(options, list) and any(isinstance(child, Mapping) for child in options):
        numbered = (flat(child, f"{prefix}[{number}]") for number, child in enumerate(options))
        return {key: value for child in numbered for key, value in child.items()}
    return {prefix: _value_text(options)}


def _value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return ", ".join(map(_value_text, value)) or "none" if isinstance(value, list) else str(value)

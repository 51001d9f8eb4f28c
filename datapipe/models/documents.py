"""The documents that a classifier will see: always the output of a run without a tokenizer.

    MIXTURE.yaml     its stages up to the classifier are run, into a work folder; run again, nothing runs twice
    OUTPUT           of an earlier run with `tokenizer: none`: read as it is
    files, globs     of any supported format: run without stages

A mixture runs up to its first `filter.classifier`, whether its model exists or not. Other sources
than the wanted one are left out, unless a stage compares documents of all sources. For training,
sources are positive or negative, or a column is the label.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from datapipe.columns import as_large_string
from datapipe.columns import compute as pc
from datapipe.config import Mixture, load_mixture
from datapipe.config.catalogue import stage_class
from datapipe.config.mixture_schedule import MixtureSpec
from datapipe.config.stage_use import StageUse
from datapipe.config.tokenizer_spec import NONE, TokenizerSpec
from datapipe.dataclass import dataclass, field, replace
from datapipe.engine.chat_templates import with_templates
from datapipe.engine.run import Run, RunOptions
from datapipe.engine.run_report import run_and_report
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.terminal import Terminal
from datapipe.errors import UserError, suggest
from datapipe.models.examples import Labelling
from datapipe.models.labelled_files import LabelledBatch
from datapipe.records.names import SNAPSHOT
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.snapshots.export.parts import parts_of_documents
from datapipe.stage.global_stage import Global
from datapipe.storage.root import Root

CLASSIFIER = "filter.classifier"
_FILES = "files"

NEGATIVE, POSITIVE = "0", "1"  # labels of models that distinguish sources


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentInput:
    paths: tuple[str, ...]  # a mixture, an output, or files and globs
    source: str | None = None  # of the mixture or output; None for all
    # name of the stage before which the stages end; empty for the first `filter.classifier`, if there is one
    until: str = ""
    settings: tuple[str, ...] = ()  # of `--set`, each KEY=VALUE
    text_field: str = "text"  # of files
    options: RunOptions = field(default_factory=RunOptions)  # of the run of a mixture


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDocuments:
    """The documents of a snapshot; each call begins a pass over their ids and texts, or other columns."""

    root: Root
    snapshot: Snapshot
    source: str | None

    @property
    def fingerprint(self) -> str:
        return f"{self.snapshot.fingerprint}:{self.source or ''}"

    def __call__(self, columns: Sequence[str] = ("id", "text")) -> Iterator[pa.RecordBatch]:
        for part in parts_of_documents(self.root, self.snapshot, self.source, None):
            for batch in part.batches():
                missing = [column for column in columns if column not in batch.schema.names]
                if missing:
                    raise UserError(
                        f"the documents have no column '{missing[0]}'.{suggest(missing[0], batch.schema.names)} They have "
                        f"{', '.join(batch.schema.names)}. List it under `keep:` of the source, to carry it along"
                    )
                yield batch.select(list(columns))


def documents_of(wanted: DocumentInput, work: Path, console: Console) -> RunDocuments:
    """The documents that the user names. Runs stages in the folder `work`, which is kept, where
    they have not run. Raises UserError for wrong input, DatapipeError where the run failed."""
    root = _output(wanted.paths)
    if root is None:
        state, options = RunState(), replace(wanted.options, replaces=True)
        run_and_report(Run(_mixture_to_run(wanted, work), Terminal(console, state).observe, options), state).raise_problem()
        root = Root(str(work))
    elif wanted.settings or wanted.options.limit or wanted.until:
        raise UserError(f"{wanted.paths[0]}: --set, --limit and --until go with a mixture; this is the output of a run")
    snapshot = read_snapshot(root)
    if snapshot.has_tokens:
        raise UserError(
            f"{root.url}: this output holds tokens. Expected one of a run with `tokenizer: none`, or the mixture itself"
        )
    return RunDocuments(root=root, snapshot=snapshot, source=wanted.source)


def _output(paths: Sequence[str]) -> Root | None:
    if len(paths) != 1 or _is_mixture(paths[0]) or not Path(paths[0]).is_dir():
        return None
    root = Root(paths[0])
    if not root.exists(SNAPSHOT):
        raise UserError(f"{paths[0]}: this folder is no output of a run. Expected a mixture, an output, or files and globs")
    return root


def _is_mixture(path: str) -> bool:
    return path.endswith((".yaml", ".yml"))


def _mixture_to_run(wanted: DocumentInput, work: Path) -> Mixture:
    path, *more = wanted.paths
    if not any(map(_is_mixture, wanted.paths)):
        files = {"path": list(wanted.paths), "text": wanted.text_field}
        data: Mapping[str, Any] = {"name": "documents", "output": str(work), "tokenizer": NONE, "sources": {_FILES: files}}
        return load_mixture(data)
    if more:
        raise UserError(f"found {len(wanted.paths)} inputs and a mixture among them. Expected one mixture, or files alone")
    mixture = with_templates(load_mixture(path, wanted.settings, work))
    if wanted.source is not None and wanted.source not in mixture.sources:
        near, known = suggest(wanted.source, mixture.sources), ", ".join(mixture.sources)
        raise UserError(f"--source {wanted.source}: no such source.{near} Expected one of: {known}")
    stages = {name: _until(mixture, name, wanted) for name in mixture.sources}
    names = list(stages)
    if wanted.source is not None:
        classes = [stage_class(use.name, use.where) for use in stages[wanted.source]]
        if not any(issubclass(each, Global) for each in classes):  # those of other sources are not compared
            names = [wanted.source]
    sources = {name: mixture.sources[name].model_copy(update={"stages": stages[name]}) for name in names}
    changes = {
        "all_sources": sources,
        "tokenizer": TokenizerSpec.model_construct(),
        "mixture": MixtureSpec(),
        "validation": 0.0,
    }
    return mixture.model_copy(update=changes)


def _until(mixture: Mixture, source: str, wanted: DocumentInput) -> tuple[StageUse, ...]:
    stages = mixture.stages_of(source)
    known = [use.alias for use in stages]
    if wanted.until in known:
        return stages[: known.index(wanted.until)]
    if wanted.until and wanted.source in (None, source):
        raise UserError(f"--until {wanted.until}: '{source}' has no such stage.{suggest(wanted.until, known)}")
    return tuple(takewhile(lambda use: use.name != CLASSIFIER, stages))


def is_of_runs(paths: Sequence[str]) -> bool:
    """Whether the inputs are a mixture or the output of a run, not labelled files."""
    return any(map(_is_mixture, paths)) or (len(paths) == 1 and Path(paths[0]).is_dir())


def texts_of_mixture(wanted: DocumentInput, labelling: Labelling, work: Path, console: Console) -> Iterator[LabelledBatch]:
    """The documents of sources with their labels. Runs stages in the folder `work`."""
    if _is_mixture(wanted.paths[0]):  # before the run, which may take long
        _check(labelling, sorted(load_mixture(wanted.paths[0], wanted.settings, work).sources))
    documents = documents_of(wanted, work, console)
    known = sorted({entry.source for entry in documents.snapshot.shards})
    _check(labelling, known)
    negatives = labelling.negatives or [source for source in known if source not in labelling.positives]
    labels = dict.fromkeys(negatives, NEGATIVE) | dict.fromkeys(labelling.positives, POSITIVE)
    others = (labelling.group_field,) if labelling.group_field else ()
    columns = ("text", *([labelling.label_field] if labelling.label_field else []), *others)
    for source, label in [(documents.source, "")] if labelling.label_field else labels.items():
        for read in replace(documents, source=source)(columns):
            batch = read.filter(pc.is_valid(read[labelling.label_field])) if labelling.label_field else read
            values = batch[labelling.label_field] if labelling.label_field else pa.repeat(label, len(batch))
            texts, groups = as_large_string(batch["text"]), {name: batch[name] for name in others}
            yield LabelledBatch(url=documents.root.url, texts=texts, values=values, others=groups)


def _check(labelling: Labelling, known: Sequence[str]) -> None:
    if not labelling.positives and not labelling.label_field:
        raise UserError(
            f"which documents are wanted? Give --positive SOURCE, one of {', '.join(known)}, or --label COLUMN if a column of "
            f"the documents is the label"
        )
    for source in (*labelling.positives, *labelling.negatives):
        if source not in known:
            raise UserError(
                f"--positive and --negative: no documents of a source '{source}'.{suggest(source, known)} Expected some of: "
                f"{', '.join(known)}"
            )
    both = sorted({*labelling.positives} & {*labelling.negatives})
    if both:
        raise UserError(f"the source '{both[0]}' is given as --positive and as --negative. Give it once")
    if labelling.positives and (labelling.label_field or labelling.is_number):
        raise UserError("--positive takes the label from sources, --label and --number from a column. Give one of them")

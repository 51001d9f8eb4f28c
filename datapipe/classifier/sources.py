"""Where labelled texts come from: labelled files, or the sources of a mixture, through its stages.

labelled files       a field is the label, or the number
MIXTURE.yaml         its stages are run up to filter.classifier; sources are positive or negative, or a column is the label
OUTPUT of a run      as of a mixture, without running anything
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from datapipe.classifier.documents import MIXTURE_ENDINGS, DocumentInput, RunDocuments, documents_of
from datapipe.classifier.evaluation import as_numbers, as_text
from datapipe.classifier.examples import LabelledTexts
from datapipe.classifier.labelled_files import LabelledBatch, LabelledFiles
from datapipe.columns import as_large_string
from datapipe.columns import compute as pc
from datapipe.config import load_mixture
from datapipe.errors import UserError, suggest

NEGATIVE, POSITIVE = "0", "1"
"""Labels of models that tell sources apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelling:
    """Which label documents have.

    Attributes:
        label_field: the field or column with the label; "" where the source tells it.
        group_field: whose values are not torn apart by the split; "" for none.
        is_number: whether labels are numbers on a scale.
        positives, negatives: names of sources; without negatives all others are.
    """

    label_field: str = ""
    group_field: str = ""
    is_number: bool = False
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, ("text", self.label_field, self.group_field)))


def is_of_runs(paths: Sequence[str]) -> bool:
    """Whether the inputs are a mixture or the output of a run, and no labelled files."""
    return any(path.endswith(MIXTURE_ENDINGS) for path in paths) or (len(paths) == 1 and Path(paths[0]).is_dir())


def texts_of_files(files: LabelledFiles, labelling: Labelling) -> Iterator[LabelledTexts]:
    """The documents of labelled files. Raises UserError."""
    for batch in files.read():
        groups = as_text(batch.others[labelling.group_field]) if labelling.group_field else None
        yield _labelled(batch, groups, labelling)


def texts_of_mixture(wanted: DocumentInput, labelling: Labelling, work: Path, console: Console) -> Iterator[LabelledTexts]:
    """The documents of sources. Runs stages where they have not run. Raises UserError.

    Args:
        work: folder of the run, which is kept.
    """
    if wanted.paths[0].endswith(MIXTURE_ENDINGS):  # before the run, which may take long
        _check(labelling, sorted(load_mixture(wanted.paths[0], wanted.settings, work).sources))
    documents = documents_of(wanted, work, console)
    known = sorted({entry.source for entry in documents.snapshot.documents})
    _check(labelling, known)
    if labelling.label_field:
        for batch in documents(labelling.columns):
            yield _of_column(batch, labelling, documents)
        return
    for label, sources in ((NEGATIVE, _negatives(labelling, known)), (POSITIVE, labelling.positives)):
        for source in sources:
            for batch in replace(documents, source=source)(labelling.columns):
                texts = as_large_string(batch["text"])
                labels = pa.array([label], pa.large_string()).take(pa.array([0] * len(texts), pa.int64()))
                yield LabelledTexts(texts=texts, labels=labels, groups=_groups(batch, labelling))


def _check(labelling: Labelling, known: Sequence[str]) -> None:
    """Raises UserError where the sources do not tell the labels."""
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


def _negatives(labelling: Labelling, known: Sequence[str]) -> Sequence[str]:
    return labelling.negatives or [source for source in known if source not in labelling.positives]


def _of_column(batch: pa.RecordBatch, labelling: Labelling, documents: RunDocuments) -> LabelledTexts:
    has_label = pc.is_valid(batch[labelling.label_field])
    batch = batch.filter(has_label)
    of_run = LabelledBatch(
        url=documents.root.url, texts=as_large_string(batch["text"]), values=batch[labelling.label_field], others={}
    )
    return _labelled(of_run, _groups(batch, labelling), labelling)


def _groups(batch: pa.RecordBatch, labelling: Labelling) -> pa.Array | None:
    return as_text(batch[labelling.group_field]) if labelling.group_field else None


def _labelled(batch: LabelledBatch, groups: pa.Array | None, labelling: Labelling) -> LabelledTexts:
    if labelling.is_number:
        return LabelledTexts(texts=batch.texts, numbers=as_numbers(batch), groups=groups)
    return LabelledTexts(texts=batch.texts, labels=as_text(batch.values), groups=groups)

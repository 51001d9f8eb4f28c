"""Labelled texts of the sources of a mixture, through its stages, or of the output of a run.

Sources are positive or negative, or a column of the documents is the label. A mixture is run up to its filter.classifier, the
output of a run is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from datapipe.classifier.documents import MIXTURE_ENDINGS, DocumentInput, documents_of
from datapipe.classifier.examples import Labelling
from datapipe.classifier.labelled_files import LabelledBatch
from datapipe.columns import as_large_string
from datapipe.columns import compute as pc
from datapipe.config import load_mixture
from datapipe.errors import UserError, suggest

NEGATIVE, POSITIVE = "0", "1"
"""Labels of models that tell sources apart."""


def is_of_runs(paths: Sequence[str]) -> bool:
    """Whether the inputs are a mixture or the output of a run, and no labelled files."""
    return any(path.endswith(MIXTURE_ENDINGS) for path in paths) or (len(paths) == 1 and Path(paths[0]).is_dir())


def texts_of_mixture(wanted: DocumentInput, labelling: Labelling, work: Path, console: Console) -> Iterator[LabelledBatch]:
    """The documents of sources. Runs stages where they have not run. Raises UserError.

    Args:
        work: folder of the run, which is kept.
    """
    if wanted.paths[0].endswith(MIXTURE_ENDINGS):  # before the run, which may take long
        _check(labelling, sorted(load_mixture(wanted.paths[0], wanted.settings, work).sources))
    documents = documents_of(wanted, work, console)
    known = sorted({entry.source for entry in documents.snapshot.documents})
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

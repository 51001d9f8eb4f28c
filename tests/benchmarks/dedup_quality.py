"""How well exact and near-duplicate removal agree with labelled sets, which `tests/support/labelled_duplicates.py` describes.

Every set goes through `dedup.minhash`, as one bucket, and its clusters are compared with the gold: precision, recall and F1
of pairs of documents. `--only SET` measures one.

Of captured pages, unverified matches have a precision of 0.29, verified ones 0.99: the limit decides, not the banding.

text-dedup publishes macro-F1 0.9518 on CORE and ARI 0.7293 on NEWS-COPY. Neither set is part of the real corpora. (By its
program 0.9518 is the mean of two precisions, 0.9587 and 0.9450; the mean of the two F1 is 0.9517.)
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.stage.global_stage import Global
from stages.dedup.minhash import Minhash
from tests.benchmarks.tables import Settings, Table
from tests.support import global_stages, labelled_duplicates
from tests.support.labelled_duplicates import LabelledSet

KINDS = {
    "gutenberg_editions": "editions of books",
    "govuk_captures": "captures of the same pages",
    "ndd_100_news": "press releases, copied with changes",
    "asysd": "citations of the same papers",
    "webis_s3_gov2": "pairs of web pages labelled by people",
    "onestop_english": "news rewritten for three reading levels",
    "pan_paraphrase": "passages paraphrased",
}
"""Sets by what their duplicates are."""


def clusters(kind: type[Global], options: dict[str, Any], texts: Sequence[str], seed: int = 1) -> list[int]:
    """The number of each document's cluster, which is the number of its survivor."""
    dropped = global_stages.dropped(global_stages.opened(kind.model_validate(options), "dedup", seed), texts)
    return [dropped.get(document, document) for document in range(len(texts))]


def tables(settings: Settings) -> Iterator[Table]:
    names = [name for name in ("ndd_100_news", "gutenberg_editions") if settings.quick] or list(labelled_duplicates.SETS)
    sets = {name: labelled_duplicates.labelled_set(settings.data, name) for name in names if settings.only in name}
    yield _kinds({name: labelled for name, labelled in sets.items() if name in KINDS})


def _kinds(sets: Mapping[str, LabelledSet]) -> Table:
    """Precision, recall and F1 by default and with `threshold: 0.5`."""
    rows = []
    for name, labelled in sets.items():
        found = [clusters(Minhash, options, labelled.texts) for options in ({}, {"threshold": 0.5})]
        each = [labelled_duplicates.agreement(labelled, one) for one in found]
        figures = [figure for one in each for figure in (one.precision, one.recall, one.f1)]
        rows.append((KINDS[name], f"{len(labelled.texts):,}", *(f"{figure:.3f}" for figure in figures)))
    return Table(
        title="Near duplicates by kind of text",
        note="Pairs of documents, by default and, in the last three columns, with `threshold: 0.5`.",
        header=("duplicates", "documents", *("precision", "recall", "F1") * 2),
        rows=rows,
        kept_in="stages/dedup/README.md",
    )

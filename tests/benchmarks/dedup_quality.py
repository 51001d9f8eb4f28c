"""How well exact and near-duplicate removal agree with labelled sets, which `tests/support/labelled_duplicates.py` describes.

Every set goes through the stages, as one bucket, and its clusters are compared with the gold: precision, recall and F1 of
pairs of documents, macro-F1 as text-dedup counts it, and the adjusted Rand index for sets with gold clusters. `--only SET`
measures one.

Of captured pages, unverified matches have a precision of 0.29, verified ones 0.99: the limit decides, not the banding.

text-dedup publishes macro-F1 0.9518 on CORE and ARI 0.7293 on NEWS-COPY. Neither set is part of the real corpora. (By its
program 0.9518 is the mean of two precisions, 0.9587 and 0.9450; the mean of the two F1 is 0.9517.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.stage.global_stage import Global
from stages.dedup.exact import Exact
from stages.dedup.minhash import Minhash
from tests.benchmarks.tables import Settings, Table
from tests.support import global_stages, labelled_duplicates
from tests.support.labelled_duplicates import LabelledSet

STAGES: dict[str, tuple[type[Global], dict[str, Any]]] = {
    "exact": (Exact, {}),
    "exact, whitespace_case": (Exact, {"normalize": "whitespace_case"}),
    "minhash 14 x 8, 5 words": (Minhash, {}),
    "minhash 14 x 8, not verified": (Minhash, {"verify": "none"}),
    **{f"minhash {t}, 5 words": (Minhash, {"threshold": t, "num_perm": 256}) for t in (0.5, 0.6, 0.7, 0.8, 0.9)},
    **{f"minhash {t}, 2 words": (Minhash, {"threshold": t, "num_perm": 256, "ngram": 2}) for t in (0.5, 0.7, 0.9)},
    **{
        f"minhash {t}, 9 characters": (Minhash, {"threshold": t, "num_perm": 256, "ngram": 9, "shingle": "char"})
        for t in (0.5, 0.7, 0.9)
    },
}
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
LEAST = (None, 0.5, 0.64, 0.68, 0.719, 0.75, 0.8)
_SEEDS = range(1, 6)


def clusters(kind: type[Global], options: dict[str, Any], texts: Sequence[str], seed: int = 1) -> list[int]:
    """The number of each document's cluster, which is the number of its survivor."""
    dropped = global_stages.dropped(global_stages.opened(kind.model_validate(options), "dedup", seed), texts)
    return [dropped.get(document, document) for document in range(len(texts))]


def tables(settings: Settings) -> Iterator[Table]:
    names = [name for name in ("ndd_100_news", "gutenberg_editions") if settings.quick] or list(labelled_duplicates.SETS)
    sets = {name: labelled_duplicates.labelled_set(settings.data, name) for name in names if settings.only in name}
    yield _kinds({name: labelled for name, labelled in sets.items() if name in KINDS})
    yield _agreements("Deduplication by options", sets, STAGES, (1,))
    minima = {f"14 x 8, from {least or 'none'} on": (Minhash, _verified(least)) for least in LEAST}
    yield _agreements("Deduplication by `min_similarity`", sets, minima, _SEEDS[:1] if settings.quick else _SEEDS)


def _verified(least: float | None) -> dict[str, Any]:
    return {"min_similarity": least} if least else {"verify": "none"}


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


def _agreements(
    title: str, sets: Mapping[str, LabelledSet], stages: Mapping[str, tuple[type[Global], dict[str, Any]]], seeds: Sequence[int]
) -> Table:
    """Every set by every stage, the means over the seeds."""
    rows = []
    for name, labelled in sets.items():
        for stage, (kind, options) in stages.items():
            found = [clusters(kind, options, labelled.texts, seed) for seed in seeds]
            each = [labelled_duplicates.agreement(labelled, one) for one in found]
            figures = [[one.precision, one.recall, one.f1, one.macro_f1, one.ari] for one in each]
            means = [None if None in column else sum(column) / len(column) for column in zip(*figures)]
            rows.append((name, stage, *("" if mean is None else f"{mean:.3f}" for mean in means)))
    header = ("set", "stage", "precision", "recall", "F1", "macro-F1", "ARI")
    return Table(title=title, note=f"Means over {len(seeds)} seeds.", header=header, rows=rows, kept_in="print")

"""How well exact and near-duplicate removal agree with labelled sets.

    python -m tests.benchmarks.dedup_quality DATA [--kinds | --sweep] [--set NAME]

DATA is the folder of real data; `tests/support/labelled_duplicates.py` describes each set. Every set goes through the stages,
as one bucket, and its clusters are compared with the gold: precision, recall and F1 of pairs of documents, macro-F1 as
text-dedup counts it, and the adjusted Rand index for sets with gold clusters.

`--kinds` prints the table of `stages/dedup/README.md`.

text-dedup publishes macro-F1 0.9518 on CORE and ARI 0.7293 on NEWS-COPY. Neither set is part of DATA, so these figures have no
counterpart here. (By its program 0.9518 is the mean of two precisions, 0.9587 and 0.9450; the mean of the two F1 is 0.9517.)

Defaults: minhash of 14 bands of 8 rows over 5 words, pairs verified from 0.719 on

    set                  precision  recall     F1  macro-F1    ARI   not verified: precision  recall
    asysd                    0.975   0.942  0.958     0.585  0.958                   0.969   0.949
    govuk_captures           0.992   0.999  0.996     0.978  0.996                   0.290   0.999
    gutenberg_editions       1.000   0.882  0.938            0.921                   1.000   0.882
    ndd_100_news             1.000   1.000  1.000     1.000  1.000                   1.000   1.000
    cs336_fuzzy              1.000   1.000  1.000     1.000  1.000                   1.000   1.000
    dj_dedup_demo            1.000   0.444  0.615     0.571  0.590                   1.000   0.444
    webis_s3_gov2            0.978   0.625  0.763     0.763                          0.964   0.750
    pan_paraphrase           0.881   0.007  0.015     0.341                          0.890   0.013
    onestop_english          0.000   0.000  0.000            0.000                   0.400   0.004

The last two sets hold paraphrases, which n-grams do not find. Macro-F1 of asysd is low since only few of its 1,845 citations
have no duplicate, and a cluster that misses one of its members is wrong for all of them.

F1 of pairs:                          asysd  captures  gutenberg  ndd_100  webis_s3    pan
    exact, whitespace_case            0.676     0.727      0.000    0.000     0.345  0.000
    minhash 0.5, 5 words              0.968     0.146      1.000    1.000     0.881  0.044
    minhash 0.7, 5 words              0.958     0.931      1.000    1.000     0.777  0.017
    minhash 0.8, 5 words              0.938     0.996      0.938    0.947     0.654  0.010
    minhash 0.9, 5 words              0.875     0.951      0.938    0.824     0.515  0.008
    minhash 0.7, 2 words              0.967     0.808      1.000    1.000     0.803  0.053
    minhash 0.7, 9 characters         0.958     0.859      1.000    1.000     0.851  0.028

The effect of `min_similarity`, 14 x 8, means of five seeds, precision / recall (`--sweep`):

              not verified  0.5            0.64           0.68           0.719          0.75           0.8
    asysd     0.972 0.948   0.972 0.948    0.973 0.946    0.974 0.945    0.975 0.941    0.975 0.939    0.977 0.923
    captures  0.318 0.999   0.384 0.999    0.755 0.999    0.884 0.999    0.949 0.999    0.989 0.999    0.998 0.997
    webis_s3  0.942 0.722   0.946 0.722    0.961 0.692    0.971 0.656    0.974 0.628    0.978 0.608    0.985 0.542

With 20 x 6 or 20 x 5 more pairs match, and at equal `min_similarity` from 0.719 on all figures are within 0.03 of these. Not
verified, the precision of the captures falls to 0.06 and 0.05: the limit decides, not the banding.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapipe.stage.global_stage import Global
from stages.dedup.exact import Exact
from stages.dedup.minhash import Minhash
from tests.support import global_stages, labelled_duplicates

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
BANDINGS = ((14, 8), (20, 6), (20, 5), (9, 13))
LEAST = (None, 0.5, 0.55, 0.6, 0.64, 0.68, 0.719, 0.75, 0.8, 0.85)
_SEEDS = range(1, 6)


def clusters(kind: type[Global], options: dict[str, Any], texts: Sequence[str], seed: int = 1) -> list[int]:
    """The number of each document's cluster, which is the number of its survivor."""
    dropped = global_stages.dropped(global_stages.opened(kind.model_validate(options), "dedup", seed), texts)
    return [dropped.get(document, document) for document in range(len(texts))]


def _row(name: str, agreements: Sequence[labelled_duplicates.Agreement]) -> str:
    """A line of a table: the mean of each figure."""
    figures = [[one.precision, one.recall, one.f1, one.macro_f1, one.ari] for one in agreements]
    means = [None if None in column else sum(column) / len(column) for column in zip(*figures)]
    return f"| {name} | {' | '.join('' if one is None else f'{one:.3f}' for one in means)} |"


def _stages(labelled: labelled_duplicates.LabelledSet) -> None:
    for name, (kind, options) in STAGES.items():
        print(_row(name, [labelled_duplicates.agreement(labelled, clusters(kind, options, labelled.texts))]))


def _kinds(folder: Path, names: Sequence[str]) -> None:
    """The table of kinds of text: precision, recall and F1 by default and with `threshold: 0.5`."""
    print("| duplicates | documents | precision | recall | F1 | precision | recall | F1 |\n|---|" + "---:|" * 7)
    for name in names:
        labelled = labelled_duplicates.labelled_set(folder, name)
        found = [clusters(Minhash, options, labelled.texts) for options in ({}, {"threshold": 0.5})]
        each = [labelled_duplicates.agreement(labelled, one) for one in found]
        figures = [figure for one in each for figure in (one.precision, one.recall, one.f1)]
        print(f"| {KINDS[name]} | {len(labelled.texts):,} | {' | '.join(f'{figure:.3f}' for figure in figures)} |")


def _sweep(labelled: labelled_duplicates.LabelledSet) -> None:
    for bands, rows in BANDINGS:
        for least in LEAST:
            options = {"bands": bands, "rows": rows, **({"min_similarity": least} if least else {"verify": "none"})}
            found = [clusters(Minhash, options, labelled.texts, seed) for seed in _SEEDS]
            print(_row(f"{bands} x {rows}, {least or 'none'}", [labelled_duplicates.agreement(labelled, one) for one in found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", choices=labelled_duplicates.SETS, help="run only this set")
    parser.add_argument("--sweep", action="store_true", help="bandings by min_similarity, means of five seeds")
    parser.add_argument("--kinds", action="store_true", help="the default and `threshold: 0.5` by kind of text")
    given = parser.parse_args()
    if given.kinds:
        _kinds(given.folder, [given.set] if given.set else list(KINDS))
        return
    for name in [given.set] if given.set else labelled_duplicates.SETS:
        labelled = labelled_duplicates.labelled_set(given.folder, name)
        print(f"\n{labelled.name}: {len(labelled.texts):,} documents\n")
        print("| stage | precision | recall | F1 | macro-F1 | ARI |\n|---|---:|---:|---:|---:|---:|")
        (_sweep if given.sweep else _stages)(labelled)


if __name__ == "__main__":
    main()

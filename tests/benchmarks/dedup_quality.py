"""How well exact and near-duplicate removal agree with labelled sets: `python -m tests.benchmarks.dedup_quality FOLDER`.

FOLDER has the files that `tests/dedup_sets.py` reads, which tells what each is. Every set goes through the stages themselves,
as one bucket, and clusters are held against the gold: precision, recall and F1 of pairs of documents, the mean F1 of "is a
duplicate" and "is none", and the adjusted Rand index where there are clusters.

text-dedup publishes macro-F1 0.9518 on CORE and ARI 0.7293 on NEWS-COPY. Neither set is here, so nothing is compared with
those.

F1 of pairs, meetings verified:       asysd   gutenberg   ndd_100   webis_s3   pan
    exact, whitespace_case            0.676       0.000     0.000      0.345   0.000
    minhash 14 x 8, 5 words           0.958       0.828     1.000      0.741   0.015
    minhash 0.5, 5 words              0.968       0.938     1.000      0.869   0.044
    minhash 0.7, 5 words              0.958       0.938     1.000      0.724   0.017
    minhash 0.9, 5 words              0.863       0.640     0.824      0.515   0.008
    minhash 0.7, 2 words              0.967       0.938     1.000      0.790   0.053
    minhash 0.7, 9 characters         0.958       0.938     1.000      0.831   0.028

Without verification the defaults find more and are right less often: 0.959 in asysd, 0.806 in webis_s3.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapipe.stage import Global
from stages.dedup.exact import Exact
from stages.dedup.minhash import Minhash
from tests import dedup_sets, meetings

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
BANDINGS = ((14, 8), (20, 6), (20, 5), (9, 13))
LEAST = (None, 0.5, 0.55, 0.6, 0.64, 0.68, 0.719, 0.75, 0.8, 0.85)
_SEEDS = range(1, 6)


def clusters(kind: type[Global], options: dict[str, Any], texts: Sequence[str], seed: int = 1) -> list[int]:
    """The number of each document's cluster: the place of its survivor."""
    dropped = meetings.dropped(meetings.opened(kind.model_validate(options), "dedup", seed), texts)
    return [dropped.get(place, place) for place in range(len(texts))]


def _row(name: str, agreements: Sequence[dedup_sets.Agreement]) -> str:
    """A line of a table: the mean of each figure."""
    figures = [[one.precision, one.recall, one.f1, one.macro_f1, one.ari] for one in agreements]
    means = [None if None in column else sum(column) / len(column) for column in zip(*figures)]
    return f"| {name} | {' | '.join('' if one is None else f'{one:.3f}' for one in means)} |"


def _stages(labelled: dedup_sets.LabelledSet) -> None:
    for name, (kind, options) in STAGES.items():
        print(_row(name, [dedup_sets.agreement(labelled, clusters(kind, options, labelled.texts))]))


def _sweep(labelled: dedup_sets.LabelledSet) -> None:
    for bands, rows in BANDINGS:
        for least in LEAST:
            options = {"bands": bands, "rows": rows, **({"min_similarity": least} if least else {"verify": "none"})}
            found = [clusters(Minhash, options, labelled.texts, seed) for seed in _SEEDS]
            print(_row(f"{bands} x {rows}, {least or 'none'}", [dedup_sets.agreement(labelled, one) for one in found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", choices=dedup_sets.SETS, help="one of the sets alone")
    parser.add_argument("--sweep", action="store_true", help="bandings by min_similarity, means of five seeds")
    given = parser.parse_args()
    for name in [given.set] if given.set else dedup_sets.SETS:
        labelled = dedup_sets.labelled_set(given.folder, name)
        print(f"\n{labelled.name}: {len(labelled.texts):,} documents\n")
        print("| stage | precision | recall | F1 | macro-F1 | ARI |\n|---|---:|---:|---:|---:|---:|")
        (_sweep if given.sweep else _stages)(labelled)


if __name__ == "__main__":
    main()

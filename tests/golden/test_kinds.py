"""The rows that every kind of work writes in two small runs. Fingerprints of tasks have the version of the kind in place of its
code: where a value changes, raise the version of the kind, so that no task of an earlier run is taken for one of this code.
`.ci/versions` compares versions of libraries in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xxhash

from datapipe.steps.kinds import KINDS
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.fasttext_files import Recipe
from tests.support.version_digests import rows_of

pytestmark = pytest.mark.medium

GOLDEN: dict[str, tuple[int, str]] = {
    "map": (2, "c4d3f49c52c423c8"),
    "reduce": (2, "7206e77d26bbd24b"),
    "merge": (2, "ee6c18f67f75b2ee"),
    "gather": (2, "468529c166fd3a73"),
    "rank": (1, "e56b28960438332d"),
    "narrow": (1, "3f95a0c9fd654174"),
    "sample": (1, "4319d07a511c5897"),
    "train": (1, "6b78b6515ebd86f4"),
    "tokenize": (3, "37c0bd622a5a47ff"),
    "size": (2, "4a4ba1a0214af753"),
    "stops": (1, "7b8e8957b81eafa0"),
    "limit": (1, "4bbe6e8d4d8f14ec"),
    "pack": (1, "97330a0fb093318e"),
    "grid": (3, "9dfa6604c2fa0c5d"),
    "cells": (1, "714bd3bc02e404e5"),
    "cell_sizes": (1, "e5e0018f6eecb82f"),
    "write": (1, "95e66652279e5a53"),
    "fold": (2, "a0223f62e7be8079"),
}
"""By kind: its version, and a digest of the rows of its outputs."""

OF_CELLS = ("grid", "cells", "cell_sizes")
"""Kinds of which a run without a split has no step."""

_TAIL = """
validation: 5%
tokenizer: {train: {vocab_size: 300, sample_bytes: 64KiB}}
pack: {sequence_length: 64}
documents: {target_bytes: 8KiB}
execution: {split_bytes: 16KiB, bucket_bytes: 32KiB, check_disk: false}
"""


def test_rows_of_every_kind_are_those_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 2)
    monkeypatch.setattr("datapipe.steps.fold.MOST_FILES", 2)
    for number in range(4):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 25, exact=0.2))
    model = Recipe(labels=("0", "hq")).write(tmp_path / "quality.bin")
    stages = f"stages: [filter.classifier: {{model: {model}, keep_share: 80%}}, dedup.minhash: {{components_bytes: 0}}]"
    source = f"  web: {{path: {tmp_path}/web/*.jsonl"
    mixture = runs.write_mixture(tmp_path, source + "}\n", stages, _TAIL)
    scored = f"stages: [filter.classifier: {{model: {model}, score_column: quality}}]"
    split = source + ", split: {by: [{column: quality, quantiles: 3}], repeat: {'2': 1.5}}}\n"
    of_cells = runs.write_mixture(tmp_path, split, scored, _TAIL, "cells.yaml")
    digests: dict[str, Any] = {kind.kind: xxhash.xxh3_64() for kind in KINDS}
    several = [
        *((mixture, overrides, list(digests)) for overrides in ((), ("tokenizer=none",))),
        (of_cells, (f"output={tmp_path}/cells",), OF_CELLS),
        (mixture, ("sources.web.max_tokens=2k",), ("size", "stops", "limit")),
    ]
    for path, overrides, kinds in several:
        finished = runs.run_mixture(path, overrides=overrides, make_engine=runs.InProcess)
        root = Root(str(finished.mixture.output))
        for step in (step for step in finished.plan.steps if step.kind in kinds):
            for record in step.records:
                for name, files in sorted(record.outputs.items()):
                    rows = repr((step.id, name, [rows_of(root, file) for file in files])).replace(record.fingerprint, "task")
                    digests[step.kind].update(rows.encode())
                if step.kind in ("narrow", "stops", *OF_CELLS):
                    digests[step.kind].update(repr(record.metrics.to_json().get("own")).encode())
    assert {kind.kind: (kind.version, digests[kind.kind].hexdigest()) for kind in KINDS} == GOLDEN

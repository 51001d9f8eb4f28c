"""Steps of a plan: their names, as people see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.plan.compile import Step, compile_plan
from tests.support import corpora, runs

STAGES = "stages: [normalize.unicode, filter.length, filter.c4_quality, dedup.minhash, redact.pii]"
TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: [64, 32]}"


@pytest.mark.medium
def test_plan_steps_have_names_that_say_what_they_do(tmp_path: Path):
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(1, 3))
    mixture = load_mixture(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", STAGES, TAIL))
    steps = compile_plan(prepare(mixture), lambda fingerprint: None).steps
    assert [(step.id, step.title) for step in steps] == [
        ("web/read", "web: read → normalize → filter"),
        ("dedup.minhash/match-bands", "dedup.minhash: match bands"),
        ("dedup.minhash/fetch-signatures", "dedup.minhash: fetch signatures"),
        ("dedup.minhash/compare", "dedup.minhash: compare"),
        ("dedup.minhash/cluster-1", "dedup.minhash: cluster, round 1"),
        ("dedup.minhash/decide", "dedup.minhash: decide"),
        ("dedup.minhash/decisions", "dedup.minhash: collect decisions by document"),
        ("web/apply-dedup.minhash", "web: apply dedup.minhash → redact"),
        ("web/sample", "web: sample text for the tokenizer"),
        ("tokenizer/train", "train the tokenizer"),
        ("web/tokenize", "web: tokenize and shuffle"),
        ("web/pack", "web: pack into rows of 64"),
        ("web/pack-32", "web: pack into rows of 32"),
    ]
    assert steps[0].label == "read → normalize.unicode → filter.length → filter.c4_quality"


@pytest.mark.parametrize(
    ("label", "title"),
    [
        ("read → my_module:keep → filter.length", "web: read → my_module:keep → filter"),
        ("apply dedup.exact@01234567 → filter.url", "web: apply dedup.exact@01234567 → filter"),
    ],
)
def test_step_title_is_short_where_stages_are_of_one_family(label: str, title: str):
    assert Step(id="web/read", kind="map", label=label, source="web").title == title

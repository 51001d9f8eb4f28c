"""Runs that take a part of a source: a sample of its documents, or as many as its budget of tokens has room for."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.rng import below_fraction, sample_hash
from datapipe.steps.splits import file_hash
from tests.support import runs

pytestmark = pytest.mark.medium

TEXTS = "max_quarantined: 9%\ntokenizer: none\nexecution: {split_bytes: 8KiB, bucket_bytes: 16KiB}\n"
Documents = dict[tuple[str, int], str]
"""The texts by file and position."""


def _write(folder: Path, names: Iterable[str], count: int = 120) -> Documents:
    """Files of JSON lines with a bad line each."""
    folder.mkdir(exist_ok=True)
    documents: Documents = {}
    for name in names:
        rng, lines, start = random.Random(name), list[str](), 0
        for number in range(count):
            text = f"{name} {number} " + " ".join(rng.choices(["some", "words", "of", "text"], k=rng.randrange(120)))
            lines.append(json.dumps({"id": f"{name}/{number}", "text": text}) + "\n" if number != 7 else "{no json}\n")
            if number != 7:
                documents[name, start] = text
            start += len(lines[-1])
        (folder / name).write_text("".join(lines))
    return documents


def _is_sampled(place: tuple[str, int], share: float, source: str = "web") -> bool:
    halves = np.array([file_hash(source, place[0])], np.uint64), np.array([place[1]], np.uint64)
    return bool(below_fraction(sample_hash(halves, 3), share)[0])


def _run(folder: Path, options: str, stages: str = "", tail: str = TEXTS, **how: Any) -> runs.Finished:
    path = runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl{options}}}\n", stages, tail)
    how = {"make_engine": runs.InProcess, **how}
    return runs.run_mixture(path, **how)


def _texts(run: runs.Finished) -> list[str]:
    return [
        text for file in run.snapshot.shards for text in pq.read_table(f"{run.mixture.output}/{file.path}")["text"].to_pylist()
    ]


def test_sample_is_the_same_part_of_every_larger_one_while_files_are_added_and_no_stage_sees_the_rest(tmp_path: Path):
    documents = _write(tmp_path / "web", ["a.jsonl", "c.jsonl"])
    expected = {share: {text for place, text in documents.items() if _is_sampled(place, share)} for share in (0.1, 0.3)}
    stages = "stages: [filter.length: {min_words: 9}, dedup.exact]"
    kept = {share: {text for text in texts if len(text.split()) >= 9} for share, texts in expected.items()}
    for share, name in ((0.1, "small"), (0.3, "large")):
        run = _run(tmp_path, f", sample: {share}", stages, output=tmp_path / name)
        assert sorted(_texts(run)) == sorted(kept[share])
        counts = run.plan.steps[0].totals.documents
        bad = sum(_is_sampled((name, _start_of_bad_line(tmp_path / "web" / name)), share) for name in ("a.jsonl", "c.jsonl"))
        assert (counts.read, counts.quarantined) == (len(expected[share]) + bad, bad)
        assert counts.counts["read:not_sampled"] == 240 - counts.read
    assert kept[0.1] < kept[0.3]
    more = _write(tmp_path / "web", ["b.jsonl"])
    grown = _run(
        tmp_path, ", sample: 10%", stages, output=tmp_path / "grown", overrides=["execution.split_bytes=1KiB"], workers=1
    )
    added = {text for place, text in more.items() if _is_sampled(place, 0.1) and len(text.split()) >= 9}
    assert added and set(_texts(grown)) == kept[0.1] | added


def _start_of_bad_line(path: Path) -> int:
    return path.read_bytes().index(b"{no json}")


def test_sample_of_cleaned_documents_is_dropped_by_a_named_rule_behind_all_stages(tmp_path: Path):
    documents = _write(tmp_path / "web", ["a.jsonl", "b.jsonl"])
    run = _run(tmp_path, ", sample: {share: 20%, of: cleaned}", "stages: [filter.length: {min_words: 9}]")
    expected = [text for place, text in documents.items() if len(text.split()) >= 9 and _is_sampled(place, 0.2)]
    counts = run.summary.total.documents
    assert sorted(_texts(run)) == sorted(expected) and counts.read == 240
    assert counts.dropped["filter.sample:not_sampled"] == 240 - 2 - counts.dropped["filter.length:too_few_words"] - len(
        expected
    )
    assert not run.warnings  # the loss is asked for


def test_sample_limits_what_a_limited_run_reads(tmp_path: Path):
    _write(tmp_path / "web", ["a.jsonl", "b.jsonl"])
    run = _run(tmp_path, ", sample: 20%", limit=10)
    assert run.summary.total.documents.read == 10


@pytest.mark.parametrize(
    ("options", "stages", "tail", "error"),
    [
        (", sample: 0", "", TEXTS, "sources.web.sample: found 0, expected a share above 0"),
        (", sample: 2", "", TEXTS, "sources.web.sample: found 2, expected a share from 0 to 1"),
        (", repository: {group_by: r}, sample: 5%", "", TEXTS, "Write {share: 5%, of: cleaned}"),
        (", sample: {share: 5%, of: cleaned}", "stages: [filter.sample: {share: 1}]", TEXTS, "Leave one of them out"),
        (", max_tokens: 1k", "", TEXTS, "sources.web.max_tokens: needs a tokenizer"),
        (
            ", max_tokens: 1k, keep: [lang], split: {by: [lang], max_tokens: {'*': 9}}",
            "",
            "",
            "sources.web.max_tokens: found beside split.max_tokens, expected one of them",
        ),
    ],
)
def test_amount_that_cannot_be_taken_is_refused(tmp_path: Path, options: str, stages: str, tail: str, error: str):
    _write(tmp_path / "web", ["a.jsonl"], 9)
    with pytest.raises(UserError) as refused:
        _run(tmp_path, options, stages, tail)
    assert error in str(refused.value)

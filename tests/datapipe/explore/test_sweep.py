"""Sweeps of thresholds beside runs that drop by them, and distributions: each document once, on its side of the threshold."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import UserError
from datapipe.explore.documents import Inspector
from datapipe.explore.sweep import MAX_DISTINCT, sweep
from datapipe.report.report import measured_parts
from datapipe.steps.measuring import Measured
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.finished import finish

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("sweep")
    corpora.write_jsonl(folder / "web.jsonl", corpora.documents(1, 150))
    corpora.write_jsonl(folder / "news.jsonl", corpora.documents(2, 80))
    return f"  web: {{path: '{folder}/web.jsonl'}}\n  news: {{path: '{folder}/news.jsonl'}}\n"


def _finished(folder, sources: str, stages: str) -> runs.Finished:
    folder.mkdir(parents=True, exist_ok=True)
    mixture = runs.write_mixture(folder, sources, stages=f"stages:\n{stages}")
    return finish(mixture)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory, sources) -> str:
    """The output of a run whose filters tag."""
    folder = tmp_path_factory.mktemp("tagged")
    stages = (
        "  - filter.gopher_quality: {mode: tag, as: quality}\n  - filter.length: {mode: tag, min_words: 80, max_words: 200}\n"
    )
    return _finished(folder, sources, stages + "  - dedup.exact\n  - redact.pii\n").mixture.output


def _kept(finished: runs.Finished, name: str) -> tuple[int, int]:
    entry = finished.report["total" if name == "total" else "sources"]
    entry = entry if name == "total" else entry[name]
    return entry["documents"]["kept"], entry["kept_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [60, 120])
def test_sweep_counts_equal_runs_that_drop_by_the_threshold(tmp_path, sources, tagged, threshold):
    result = sweep(Inspector.open(tagged), "filter.length.min_words", thresholds=[threshold])
    for part, options in (("alone", f"min_words: {threshold}"), ("together", f"min_words: {threshold}, max_words: 200")):
        stages = f"  - filter.length: {{{options}}}\n  - dedup.exact\n  - redact.pii\n"
        dropped = _finished(tmp_path / part, sources, stages)
        for source_sweep in (*result["sources"], result["total"]):
            count = source_sweep["kept"][0][part]
            assert (count["documents"], count["bytes"]) == _kept(dropped, source_sweep["name"])


@pytest.mark.slow
def test_sweep_grid_holds_the_threshold_in_force_and_grows_with_it(tagged):
    result = sweep(Inspector.open(tagged), "filter.length.too_few_words")
    grid = [kept["threshold"] for kept in result["total"]["kept"]]
    assert 80.0 in grid and result["total"]["limit"] == 80.0
    assert grid == sorted(set(grid)) and len(grid) <= MAX_DISTINCT
    alone = [kept["alone"]["documents"] for kept in result["total"]["kept"]]
    assert alone == sorted(alone, reverse=True) and alone[0] > alone[-1]
    assert result == sweep(Inspector.open(tagged), "filter.length.min_words")


@pytest.mark.slow
def test_sweep_counts_the_documents_whose_later_rule_is_unknown(tmp_path, sources):
    (tmp_path / "judging.py").write_text(_JUDGING)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        output = _finished(tmp_path, sources, "  - judging:Judging: {mode: tag, as: mine}\n").mixture.output
        result = sweep(Inspector.open(output), "mine.min_bytes", thresholds=[0, 100])
        with pytest.raises(UserError, match=r"the rule 'odd' compares no value with a threshold.*mine.min_bytes"):
            sweep(Inspector.open(output), "mine.odd")
    lengths = [len(row["text"].encode()) for row in [*corpora.documents(1, 150), *corpora.documents(2, 80)]]
    long_and_odd = sum(length >= 100 and length % 2 for length in lengths)
    (loose, loosely), (strict, strictly) = ((kept["alone"], kept["together"]) for kept in result["total"]["kept"])
    assert (loose["documents"], strict["documents"]) == (230, sum(length >= 100 for length in lengths))
    assert (loosely["documents"], strictly["documents"]) == (230 - long_and_odd, strict["documents"] - long_and_odd)
    assert result["total"]["unsure"] == sum(length < 100 for length in lengths) > 0


_JUDGING = """
from pydantic import Field
import numpy as np
from datapipe.columns import text_lengths
from datapipe.stage import Filter, FilterResult, Rule


class Judging(Filter):
    min_bytes: int = Field(default=100, description="Least bytes.")

    def rules(self):
        return [self.at_least("too_short", "min_bytes"), Rule(name="odd", limit=0)]

    def process(self, batch):
        lengths = text_lengths(batch.texts)
        return FilterResult.first_failing(batch.num_docs, [(lengths, lengths < self.min_bytes), (lengths, lengths % 2 == 1)])
"""


@pytest.mark.slow
def test_sweep_of_a_filter_that_dropped_explains_how_to_tag(tmp_path, sources):
    output = _finished(tmp_path, sources, "  - filter.length: {min_words: 80, as: long}\n").mixture.output
    with pytest.raises(UserError, match=r"(?s)Set `mode: tag`.*filter.length: \{mode: tag, as: long\}.*--output"):
        sweep(Inspector.open(output), "long.min_words")


@pytest.mark.slow
def test_sweep_of_sources_with_limits_of_their_own_marks_each(tmp_path, sources):
    web, news = sources.splitlines()
    own = news.replace("}", ", stages: [{filter.length: {min_words: 150, mode: tag}}]}")
    output = _finished(tmp_path, f"{web}\n{own}\n", "  - filter.length: {min_words: 80, mode: tag}\n").mixture.output
    result = sweep(Inspector.open(output), "filter.length.min_words")
    assert [source["limit"] for source in result["sources"]] == [80.0, 150.0]
    assert result["total"]["limit"] is None
    assert {80.0, 150.0} <= {kept["threshold"] for kept in result["total"]["kept"]}


_SPLIT_TAIL = """
tokenizer: none
execution: {split_bytes: SPLITBYTES, bucket_bytes: 16KiB}
"""
_LENGTHS = """
stages:
  - filter.length: {min_chars: 100, max_chars: 1000MODE}
  - dedup.exact
"""


def _write_lengths(folder: Path) -> list[int]:
    """Documents of random lengths, every tenth a copy of the one before. Returns the lengths."""
    rng = random.Random(5)
    texts = ["x" * rng.choice([20, 99, 100, 101, 500, rng.randrange(1500)]) + str(number) for number in range(400)]
    texts = [texts[number - 1] if number % 10 == 0 and number else text for number, text in enumerate(texts)]
    (folder / "web").mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text}) for text in texts[number::2]]
        (folder / f"web/{number}.jsonl").write_text("\n".join(lines) + "\n")
    return [len(text) for text in texts]


def _distributions(folder: Path, split_bytes: str = "1MiB", mode: str = "", **how: Any) -> dict[str, Any]:
    source = f"  web: {{path: {folder}/web/*.jsonl}}\n"
    tail = _SPLIT_TAIL.replace("SPLITBYTES", split_bytes)
    path = runs.write_mixture(folder, source, _LENGTHS.replace("MODE", mode), tail, f"{split_bytes}.yaml")
    run = runs.run_mixture(path, output=folder / f"out-{split_bytes}{bool(mode)}", make_engine=runs.InProcess, **how)
    measured = Measured(root=Root(run.mixture.output), steps=run.plan.of_kind("map"), name_of=bytes.hex)
    entries = run.summary.with_(**measured_parts(measured)).model_dump(mode="json")
    return {name: entries[name] for name in ("measured", "lengths", "clusters")}


def test_every_document_is_counted_on_its_side_of_the_threshold(tmp_path: Path) -> None:
    lengths = _write_lengths(tmp_path)

    found = _distributions(tmp_path)

    rules = found["measured"]["web"]["filter.length"]
    too_few, too_many = rules["too_few_chars"], rules["too_many_chars"]
    assert too_few["passed"] == sum(length >= 100 for length in lengths)
    assert too_few["failed"] == too_few["dropped"] == sum(length < 100 for length in lengths)
    assert too_many["failed"] == sum(length > 1000 for length in lengths)
    assert too_few["passed_bytes"] == sum(length for length in lengths if length >= 100)
    assert (too_few["threshold"], too_few["side"], too_few["option"]) == (100, "min", "min_chars")
    for rule in (too_few, too_many):
        assert sum(passed for _, _, passed, _ in rule["bins"]) == rule["passed"]
        assert sum(failed for _, _, _, failed in rule["bins"]) == rule["failed"]
        assert len(rule["bins"]) <= 64
    for low, high, passed, failed in too_few["bins"]:
        inside = [length for length in lengths if low <= length < high]
        assert (passed, failed) == (sum(length >= 100 for length in inside), sum(length < 100 for length in inside))
    read, kept = found["lengths"]["web"]["read"], found["lengths"]["web"]["kept"]
    assert (sum(row[2] for row in read), sum(row[3] for row in read)) == (len(lengths), sum(lengths))
    assert (
        sum(row[2] for row in kept)
        == sum(100 <= length <= 1000 for length in lengths) - found["clusters"]["dedup.exact"]["dropped"]
    )


def test_distributions_do_not_depend_on_splits(tmp_path: Path) -> None:
    _write_lengths(tmp_path)

    assert _distributions(tmp_path, "16KiB") == _distributions(tmp_path, "1MiB")


@pytest.mark.parametrize(
    ("threshold", "source", "told"),
    [
        ("filter.length", "", "Expected one of: .*filter.length.min_words"),
        ("dedup.exact.keep", "", "no filter of this output has measured this threshold"),
        ("filter.length.min_words", "wbe", "Did you mean 'web'"),
        ("filter.lenth.min_words", "", "Did you mean 'filter.length.min_words'"),
        ("filter.length.min_word", "web", "Did you mean 'filter.length.min_words'"),
    ],
)
def test_sweep_of_no_threshold_reports_what_there_is(tagged, threshold, source, told):
    with pytest.raises(UserError, match=told):
        sweep(Inspector.open(tagged), threshold, source=source)

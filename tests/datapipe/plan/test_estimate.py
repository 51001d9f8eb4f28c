"""The estimate of what a run writes: beside what runs wrote, step by step, and where the disk is too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.config import Mixture, load_mixture
from datapipe.engine.history import estimated
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.plan.estimate import Estimate, step_times
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.medium

TOKENS = "tokenizer: {train: {vocab_size: 400, sample_bytes: 8KiB}}\npack: {sequence_length: 128}\n"
DOCUMENTS = "tokenizer: none\n"
FILTERED = "stages: [filter.length: {min_chars: 900}]\n"
COMPARED = "stages: [dedup.minhash]\n"


UNCHECKED = ["execution.check_disk=false", "stages.filter.length.min_chars=1000000"]


def written(folder: Path, stages: str, tail: str, num_documents: int = 2_000) -> Mixture:
    """A mixture over a corpus of about 1.5 MB."""
    corpora.write_jsonl(folder / "web.jsonl", corpora.documents(1, num_documents))
    return load_mixture(runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}\n", stages, tail))


def estimate_of(mixture: Mixture, limit: int | None = None) -> Estimate:
    return estimated(Root(mixture.output), *planned(mixture, limit))


def bytes_written(mixture: Mixture) -> int:
    """Bytes of everything that the committed tasks of a mixture wrote."""
    _, plan = planned(mixture)
    records = [record for step in plan.steps for record in step.records]
    return sum(file.bytes for record in records for files in record.outputs.values() for file in files)


@pytest.mark.slow
@pytest.mark.parametrize("tail", [TOKENS, DOCUMENTS], ids=["tokens", "documents"])
@pytest.mark.parametrize("stages", ["", COMPARED], ids=["read", "compare"])
def test_estimated_bytes_are_those_of_the_run_within_a_factor_of_two(tmp_path: Path, stages: str, tail: str) -> None:
    mixture = written(tmp_path, stages, tail)
    before = estimate_of(mixture)
    assert before.core_seconds > 0 and before.unknown == ()
    runs.run_mixture(tmp_path / "mixture.yaml", make_engine=runs.InProcess)
    assert 0.5 < bytes_written(mixture) / before.bytes < 2
    assert estimate_of(mixture) == Estimate(bytes=0, core_seconds=0, unknown=(), is_all_kept=False)


def test_estimates_go_by_what_the_last_run_kept(tmp_path: Path) -> None:
    mixture = written(tmp_path, FILTERED, TOKENS)
    first = estimate_of(mixture)
    assert first.is_all_kept
    assert first.start_seconds > 4  # else `plan` says 1 s of a run of 8 s
    result = runs.run_mixture(tmp_path / "mixture.yaml", make_engine=runs.InProcess)
    total = result.report["total"]
    share = total["kept_bytes"] / total["bytes"]
    assert 0.1 < share < 0.9
    again = estimate_of(load_mixture(tmp_path / "mixture.yaml", ["seed=9"]))
    assert not again.is_all_kept
    assert again.bytes == pytest.approx(first.bytes * share, rel=0.02)


def test_a_step_of_which_half_is_committed_counts_half(tmp_path: Path) -> None:
    mixture = written(tmp_path, "", DOCUMENTS)
    whole = estimate_of(mixture)
    runs.run_mixture(tmp_path / "mixture.yaml", make_engine=runs.InProcess)
    rows = corpora.documents(2, 2_000)
    corpora.write_jsonl(tmp_path / "web-2.jsonl", rows)
    both = load_mixture(tmp_path / "mixture.yaml", [f"sources.web.path=[{tmp_path}/web.jsonl, {tmp_path}/web-2.jsonl]"])
    new = estimate_of(both)
    assert 0 < new.bytes < 2 * whole.bytes


def test_a_limited_run_is_estimated_by_its_documents(tmp_path: Path) -> None:
    mixture = written(tmp_path, "", TOKENS)
    assert estimate_of(mixture, limit=10).bytes < estimate_of(mixture).bytes / 10
    assert estimate_of(mixture, limit=10**6).bytes == estimate_of(mixture).bytes


def test_times_of_steps_are_those_of_the_estimate_and_the_exchanges_have_some(tmp_path: Path) -> None:
    mixture = written(tmp_path, COMPARED, TOKENS, 200)
    request, plan = planned(mixture)
    times = step_times(request, plan, {})
    assert sum(time.seconds for time in times.values()) == pytest.approx(estimate_of(mixture).core_seconds)
    assert all(time.seconds > 0 and not time.is_least for time in times.values())
    assert list(times) == [step.id for step in plan.steps]


def test_stages_of_unknown_speed_are_named(tmp_path: Path) -> None:
    mixture = written(
        tmp_path, "stages: ['tests.support.function_stages:keeps_words', filter.length: {min_chars: 1}]\n", TOKENS, 20
    )
    assert estimate_of(mixture).unknown == ("tests.support.function_stages:keeps_words",)
    times = step_times(*planned(mixture), {})
    assert [name for name, time in times.items() if time.is_least] == ["web/read"]


def test_a_disk_that_is_too_small_refuses_the_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20):
        mixture = written(tmp_path, FILTERED, TOKENS)
        output = tmp_path / "disk/run"
        with pytest.raises(
            UserError, match=r"has .* free, and the run would write about .* if it keeps all documents"
        ) as error:
            runs.run_mixture(tmp_path / "mixture.yaml", output=output, make_engine=runs.InProcess)
        assert "execution.check_disk: false" in str(error.value) and "--limit" in str(error.value)
        assert not list((tmp_path / "disk" / "run").glob("shards/*"))
        tiny = runs.run_mixture(tmp_path / "mixture.yaml", output=output, limit=20, make_engine=runs.InProcess)
        assert tiny.report["total"]["documents"]["read"] == 20
        with pytest.raises(DatapipeError) as error:  # the disk is full before it ends, or it ends
            runs.run_mixture(tmp_path / "mixture.yaml", output=output, overrides=UNCHECKED, make_engine=runs.InProcess)
        assert "check_disk" not in str(error.value)
    assert mixture.execution.check_disk

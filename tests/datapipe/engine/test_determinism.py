"""The same drops, texts and shards, byte for byte, whatever ran them: workers, splits, order, merges, formats.

All four stages of deduplication run over two sources (`tests/support/dedup_runs.py`). Kills are in `test_kill.py`, a Ray
cluster in `test_ray.py`, over the same corpus; runs that are stopped are in `tests/conformance/test_steps.py`.
"""

from pathlib import Path

import pytest

from datapipe.shards.manifest import read_tokens
from datapipe.steps.pack import PackTask
from datapipe.steps.reduce import GatherTask, ReduceTask
from datapipe.steps.runs import fan_in
from datapipe.storage.root import Root
from tests.support import corpora, dedup_runs, runs
from tests.support.dedup_runs import AT_ONCE, IN_ROUNDS, Outcome, outcome

pytestmark = pytest.mark.medium

SMALL = ("execution.split_bytes=16KiB", "execution.bucket_bytes=4KiB")
LARGE = ("execution.split_bytes=1MiB", "execution.bucket_bytes=16MiB")


@pytest.fixture(scope="module")
def dedup_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dedup_runs.write_corpus(tmp_path_factory.mktemp("dedup"))


@pytest.fixture(scope="module")
def reference(dedup_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Finished:
    mixture = dedup_runs.write_mixture(tmp_path_factory.mktemp("reference"), dedup_corpus, AT_ONCE)
    return runs.run_mixture(mixture, make_engine=runs.InProcess)


@pytest.fixture(scope="module")
def expected(reference: runs.Finished) -> Outcome:
    return outcome(reference)


def test_reference_has_work_for_every_stage(reference: runs.Finished, expected: Outcome) -> None:
    by_rule = [f"{stage}:{rule}" for _, stage, rule, _, _ in expected.drops]
    least = {"dedup.exact:duplicate": 5, "dedup.minhash:duplicate": 20, "dedup.lines:too_much_removed": 3}
    assert all(by_rule.count(name) >= count for name, count in least.items())
    assert all(0.719 <= value <= 1 for _, stage, _, value, _ in expected.drops if stage == "dedup.minhash")
    assert max(size for _, size in expected.kept.values()) > 8
    num_cuts = {step.id: sum(output.rows for output in step.outputs("cuts")) for step in reference.plan.of_kind("reduce")}
    assert all(num_cuts[name] > 3 for name in ("dedup.lines/match", "dedup.substring/match", "dedup.substring/verify"))


IN_PROCESS = {"make_engine": runs.InProcess}


@pytest.mark.parametrize(
    ("stages", "overrides", "is_turned", "options"),
    [
        pytest.param(IN_ROUNDS, (), False, {"workers": 2}, id="2-workers"),
        pytest.param(IN_ROUNDS, (), False, {"workers": 1}, id="1-worker", marks=pytest.mark.slow),
        pytest.param(IN_ROUNDS, (), False, {"workers": 7}, id="7-workers", marks=pytest.mark.slow),
        pytest.param(IN_ROUNDS, SMALL, True, {"make_engine": runs.LastFirst}, id="small-turned", marks=pytest.mark.slow),
        pytest.param(IN_ROUNDS, LARGE, False, IN_PROCESS, id="large", marks=pytest.mark.slow),
        pytest.param(AT_ONCE, (), True, IN_PROCESS, id="turned", marks=pytest.mark.slow),
    ],
)
def test_outcome_does_not_depend_on_how_it_ran(tmp_path, dedup_corpus, expected, stages, overrides, is_turned, options) -> None:
    mixture = dedup_runs.write_mixture(tmp_path, dedup_corpus, stages, is_turned)
    done = runs.run_mixture(mixture, overrides=overrides, **options)
    assert outcome(done) == expected
    rounds = [name for name in done.report["tasks"] if name.startswith("dedup.minhash/cluster-")]
    assert rounds == [f"dedup.minhash/cluster-{number}" for number in range(1, len(rounds) + 1)]
    assert len(rounds) > 4 if stages == IN_ROUNDS else len(rounds) == 1
    exchanged = ["dedup.minhash/match-bands", "dedup.lines/match", "dedup.substring/extend"]
    assert overrides == LARGE or all(done.watcher.steps.count(name) > 1 for name in exchanged)


@pytest.mark.slow
@pytest.mark.parametrize(("most_runs", "options"), [(2, {"workers": 2}), (3, IN_PROCESS)])
def test_outcome_is_that_of_files_merged_before_they_are_compared(
    tmp_path, monkeypatch, dedup_corpus, expected, most_runs, options
) -> None:
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", most_runs)
    overrides = (*SMALL, "execution.bucket_bytes=1KiB")
    done = runs.run_mixture(dedup_runs.write_mixture(tmp_path, dedup_corpus), overrides=overrides, **options)
    assert outcome(done) == expected
    merged = {step.id for step in done.plan.of_kind("merge")}
    of_minhash = [f"dedup.minhash/{step}" for step in ("match-bands", "fetch-signatures", "cluster-1")]
    steps = ["dedup.exact/match", *of_minhash, "dedup.lines/match", "dedup.lines/decisions"]
    assert {f"{step}.merge-1" for step in steps} | {"dedup.lines/match.merge-2"} <= merged
    exchanged = [task for task in done.watcher.tasks if isinstance(task, ReduceTask | GatherTask)]
    read = [task.tables for task in exchanged if done.watcher.steps.count(task.step) > 1]
    assert len(read) > 30
    assert all(fan_in(files) <= most_runs for tables in read for files in tables.values())


# ------------------------------------------------------------------------------------------------ shards


@pytest.fixture(scope="module")
def plain(tmp_path_factory, corpus) -> runs.Finished:
    """A run over files of several formats, with all kinds of stages."""
    return runs.run_mixture(runs.write_mixture(tmp_path_factory.mktemp("plain"), corpus), make_engine=runs.InProcess)


SMALL_CUTS = ["execution.split_bytes=40KiB", "execution.bucket_bytes=32KiB"]


@pytest.mark.slow
def test_shards_of_every_length_do_not_depend_on_how_the_input_is_cut(tmp_path, corpus, plain):
    mixture = runs.write_mixture(tmp_path, corpus)
    cut = runs.run_mixture(mixture, overrides=SMALL_CUTS, make_engine=runs.LastFirst)
    assert (cut.checksums, cut.snapshot) == (plain.checksums, plain.snapshot)
    documents = [{name: entry["documents"] for name, entry in run.report["sources"].items()} for run in (cut, plain)]
    assert documents[0] == documents[1]
    packing, shards = [], []
    for method in ("concat", "buckets"):
        for run, overrides in ((plain, []), (cut, SMALL_CUTS)):
            options = [f"pack.method={method}", "pack.sequence_length=[64, 32]", *overrides]
            output = Path(run.mixture.output)
            done = runs.run_mixture(output.parent / "mixture.yaml", overrides=options, make_engine=runs.InProcess)
            assert {step.rpartition("/")[2] for step in done.watcher.steps} <= {"pack", "pack-32"}
            packing.append(done.report["total"]["packing"])
            of_both = [read_tokens(Root(str(output)), None, length).shards for length in (None, 32)]
            shards.append([(shard.path, shard.checksum) for entries in of_both for shard in entries])
    assert packing[::2] == packing[1::2]
    assert shards[::2] == shards[1::2]
    runs.run_mixture(Path(plain.mixture.output).parent / "mixture.yaml", make_engine=runs.InProcess)


@pytest.mark.slow
@pytest.mark.parametrize("most_runs", [2, 5])
def test_shards_are_those_of_token_rows_merged_before_they_are_packed(tmp_path, monkeypatch, corpus, plain, most_runs):
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", most_runs)
    merged = runs.run_mixture(runs.write_mixture(tmp_path, corpus), overrides=SMALL_CUTS, make_engine=runs.LastFirst)
    assert (merged.checksums, merged.snapshot) == (plain.checksums, plain.snapshot)
    assert [step.id for step in merged.plan.of_kind("merge") if step.id.startswith("web/pack.merge-") and step.tasks]
    packed = [task for step in merged.plan.of_kind("pack") for task in step.tasks or () if isinstance(task, PackTask)]
    assert len(packed) > 3
    assert all(fan_in(task.files) <= most_runs for task in packed)


@pytest.mark.slow
def test_shards_depend_on_the_seed_and_parquet_holds_the_same_sequences(tmp_path, corpus, plain):
    mixture = runs.write_mixture(tmp_path, corpus)
    other = runs.run_mixture(mixture, overrides=["shards.format=parquet"], make_engine=runs.InProcess)
    counts = [
        [(shard.source, shard.split, shard.sequences, shard.tokens) for shard in run.snapshot.shards] for run in (plain, other)
    ]
    assert counts[0] == counts[1]
    assert runs.run_mixture(mixture, overrides=["seed=4"], make_engine=runs.InProcess).checksums != plain.checksums


@pytest.mark.slow
def test_a_source_that_is_added_leaves_the_documents_of_others_alone(tmp_path, corpus, plain):
    corpora.write_jsonl(tmp_path / "more/a.jsonl", corpora.documents(77, 50))
    stages = "    stages: [normalize.unicode]\n"
    sources = corpus + f"  more:\n    path: {tmp_path}/more/*.jsonl\n    weight: 1\n{stages}"
    tail = runs.TAIL.replace("train: {vocab_size: 600, sample_bytes: 1MiB}", f"path: {plain.mixture.output}/tokenizer.json")
    other = runs.run_mixture(runs.write_mixture(tmp_path, sources, tail=tail), make_engine=runs.InProcess)
    assert {path: checksum for path, checksum in other.checksums.items() if "/more/" not in path} == plain.checksums

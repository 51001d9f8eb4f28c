"""What is drawn when, from the mixture file to the manifest: whole runs that only publish again."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from datapipe.columns import key_halves, keys_from
from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError
from datapipe.report.funnel import print_funnel
from datapipe.report.plan_view import plan_view
from datapipe.rng import shuffle_hash
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.storage import Root
from tests.support import runs

pytestmark = pytest.mark.medium

EVEN = ["sources.web.weight=1", "sources.books.weight=1"]
UNIMAX = [*EVEN, "mixture.weighting=unimax", "mixture.max_epochs=3"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory, corpus) -> str:
    """A tokenizer that is there, so that weights decide nothing but what is drawn."""
    done = run(runs.write_mixture(tmp_path_factory.mktemp("tokenizer"), corpus, stages=""))
    return f"{done.mixture.output}/tokenizer.json"


@pytest.fixture(scope="module")
def published(tmp_path_factory, corpus, tokenizer) -> Path:
    """A mixture that has run once. Whoever uses it publishes it anew."""
    tail = runs.TAIL.replace("train: {vocab_size: 600, sample_bytes: 1MiB}", f"path: {tokenizer}")
    mixture = runs.write_mixture(tmp_path_factory.mktemp("published"), corpus, stages="", tail=tail)
    run(mixture)
    return mixture


def run(mixture: Path, *overrides: str) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


def again(mixture: Path, *overrides: str) -> runs.Finished:
    """Another run of a mixture, which does nothing but publish."""
    done = run(mixture, *overrides)
    assert done.watcher.records == []
    assert read_snapshot(Root(done.mixture.output)) == done.snapshot
    return done


@pytest.mark.slow
def test_drawing_options_re_run_nothing_and_are_in_the_snapshot(published):
    first = again(published).snapshot
    assert (first.exhausted, first.window_shards, first.total_tokens) == ("stop", 8, None)
    options = ["mixture.exhausted=redistribute", "mixture.window=0", "mixture.tokens=1M", "sources.books.max_epochs=2"]
    phases = "mixture.phases=[{until: 1, weights: {books: 1}, schedule: linear, stairs: 2}]"
    other = again(published, *options, phases).snapshot
    assert (other.exhausted, other.window_shards, other.sources["books"].max_epochs) == ("redistribute", 0, 2)
    assert [(phase.until_tokens, phase.weights) for phase in other.phases] == [
        (500_000, {"web": 21, "books": 19}),
        (None, {"web": 7, "books": 33}),
    ]
    assert other.shards == first.shards
    assert again(published).snapshot == first


@pytest.mark.slow
def test_weights_of_any_digits_are_published_and_what_rounding_changes_is_told(published):
    done = again(published, "sources.web.weight=0.30000000000000004", "sources.books.weight=1e-30")
    assert done.snapshot.phases[0].weights == {"web": 2**40 - 1, "books": 1}
    (warning,) = [warning for warning in done.report["warnings"] if warning["kind"] == "rounded_weights"]
    assert "changes that of 'books' from 3.33e-30 to 9.09e-13" in warning["text"]
    done = again(published, "sources.web.weight=0.30000000000000004", "sources.books.weight=0.12345678901234567")
    assert "rounded_weights" not in {warning["kind"] for warning in done.report["warnings"]}


def test_documents_are_in_the_shards_of_the_range_of_their_hash(published):
    snapshot = again(published).snapshot
    root = Root(str(published.parent / "out"))
    assert len({entry.hashes for entry in snapshot.shards}) > 4
    for entry in snapshot.shards:
        reader = ShardReader(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
        keys = reader.read(np.arange(reader.num_rows)).keys
        reader.close()
        hashes = shuffle_hash(key_halves(keys_from(keys)), snapshot.seed)
        assert entry.hashes is not None
        start, stop = entry.hashes
        assert all(start <= hash_ < stop for hash_ in hashes.tolist())


def test_temperature_weighs_by_the_tokens_that_were_packed(published):
    done = again(published, *EVEN, "mixture.weighting=temperature", "mixture.temperature=2")
    sizes = {name: one["epoch_tokens"] for name, one in done.report["mixture"]["sources"].items()}
    rows = {name: sum(entry.sequences for entry in done.snapshot.shards_of(name, "train")) for name in sizes}
    assert sizes == {name: 64 * count for name, count in rows.items()}
    weights = done.snapshot.phases[0].weights
    assert weights["web"] / weights["books"] == pytest.approx((sizes["web"] / sizes["books"]) ** 0.5)
    assert {name: source.weight for name, source in done.snapshot.sources.items()} == weights
    assert done.report["mixture"]["sources"]["web"]["share"] == pytest.approx(weights["web"] / sum(weights.values()))


def test_unimax_takes_no_source_more_often_than_it_may_be(published):
    sizes = {name: one["epoch_tokens"] for name, one in again(published).report["mixture"]["sources"].items()}
    tokens = 3 * sizes["books"] + 2 * sizes["web"]
    done = again(published, *UNIMAX, f"mixture.tokens={tokens}", "mixture.exhausted=refuse")
    shares = done.snapshot.phases[0].weights
    drawn = {name: Fraction(weight, sum(shares.values())) * tokens for name, weight in shares.items()}
    assert drawn["books"] == 3 * sizes["books"] - 2 * 64
    document_counts = done.report["mixture"]["sources"]["books"]
    assert (document_counts["epochs"], document_counts["max_epochs"]) == (pytest.approx(3, abs=0.1), 3)
    assert document_counts["epochs"] < 3


def test_refuse_says_which_source_is_exhausted_and_leaves_the_snapshot_alone(published):
    before = again(published).snapshot
    overrides = ["mixture.exhausted=refuse", "sources.books.max_epochs=2.5"]
    with pytest.raises(DatapipeError, match=r"source 'books' has too little text: 30\.00% of 1,000,000 tokens is .* Raise max"):
        run(published, *overrides, "mixture.tokens=1M")
    assert read_snapshot(Root(str(published.parent / "out"))) == before
    assert again(published, *overrides, "mixture.tokens=10k").snapshot.exhausted == "refuse"


def test_stop_warns_that_training_ends_before_its_tokens(published):
    done = again(published, "mixture.tokens=1M", "sources.books.max_epochs=2.5")
    assert any("source 'books' has too little text" in line and "Training ends there" in line for line in done.told)
    done = again(published, "mixture.tokens=1M", "sources.books.max_epochs=2.5", "mixture.exhausted=redistribute")
    assert not any("too little text" in line for line in done.told)


@pytest.mark.slow
def test_weights_of_a_trained_tokenizer_train_it_anew(tmp_path, corpus):
    mixture = runs.write_mixture(tmp_path, corpus, stages="", tail=runs.TAIL.replace("1MiB", "50kB"))
    run(mixture)
    kinds = {step.rpartition("/")[2] for step in run(mixture, "sources.web.weight=3").watcher.steps}
    assert kinds == {"sample", "train", "tokenize", "pack"}


def test_plan_shows_weights_by_what_stands_in_for_tokens_and_then_by_them(published, tmp_path, capsys):
    for output, said in ((tmp_path / "new", "the bytes of the input files, 4 to a token"), (None, "unimax of the tokens")):
        mixture = load_mixture(published, [*UNIMAX, "mixture.tokens=100k"], None if output is None else str(output))
        Console(width=160).print(plan_view(mixture, *planned(mixture)))
        printed = capsys.readouterr().out
        assert said in printed
        assert "50.00%" in printed


def test_funnel_shows_what_is_drawn(published, capsys):
    report = again(published, "mixture.tokens=100k", "sources.books.max_epochs=9").report
    print_funnel(report, Console(width=160))
    printed = capsys.readouterr().out
    drawn = report["mixture"]["tokens"]
    assert 100_000 - 100 < drawn <= 100_000  # whole rows
    assert f"mixture: {drawn:,} tokens" in printed
    assert f"{report['mixture']['sources']['web']['epoch_tokens']:,}" in printed
    again(published)

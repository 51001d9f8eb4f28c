"""The tokenizer's sample and its training as steps of a run."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.exchange.partitions import read_table
from datapipe.report.fertility import tokenizer_report
from datapipe.storage import Root
from datapipe.tokens import Encoder
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

TAIL = """
validation: 10%
tokenizer:
  train: {vocab_size: 400, sample_bytes: 60kB}
pack: {sequence_length: 64}
execution: {split_bytes: 64KiB}
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("weighted")
    parts = []
    for number, (name, count, weight) in enumerate([("large", 600, 1), ("small", 300, 3), ("tiny", 4, 2)]):
        rows = corpora.documents(number, count, exact=0, near=0, short=0)
        corpora.write_jsonl(folder / f"{name}/a.jsonl", rows)
        parts.append(f"  {name}:\n    path: {folder}/{name}/*.jsonl\n    weight: {weight}\n")
    return "".join(parts)


def run(folder: Path, sources: str, *overrides: str) -> runs.Finished:
    mixture = runs.write_mixture(folder, sources, stages="", tail=TAIL)
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


def sampled(finished: runs.Finished) -> dict[str, Counter[bytes]]:
    """The words that were counted in the sample of each source."""
    root, found = Root(finished.mixture.output), {}
    for step in finished.plan.of_kind("sample"):
        found[step.source] = Counter()
        for batch in (batch for output in step.outputs("sample") for batch in read_table(root, output)):
            for row in batch.to_pylist():
                found[step.source][row["word"]] += row["count"]
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory, sources) -> runs.Finished:
    return run(tmp_path_factory.mktemp("reference"), sources)


@pytest.mark.slow
def test_sample_follows_the_weights_of_the_sources(reference):
    sizes = {name: sum(len(word) * count for word, count in words.items()) for name, words in sampled(reference).items()}
    # tiny has less than its third: all of it is taken, but for what is held out, and the others share the rest 1 : 3
    rest = 60_000 - sizes["tiny"]
    assert 0 < sizes["tiny"] < 8_000
    assert sizes["large"] == pytest.approx(rest / 4, rel=0.35)
    assert sizes["small"] == pytest.approx(rest * 3 / 4, rel=0.2)


@pytest.mark.slow
def test_sample_and_tokenizer_do_not_depend_on_cuts(tmp_path, sources, reference):
    other = run(tmp_path, sources, "execution.split_bytes=8KiB")
    assert sampled(other) == sampled(reference)
    assert tokenizer(other) == tokenizer(reference)


@pytest.mark.slow
def test_sample_follows_the_phases_of_the_mixture(tmp_path, sources):
    phases = "mixture: {tokens: 1M, phases: [{until: 50%, weights: {large: 1}}, {until: 100%, weights: {large: 1, small: 1}}]}"
    mixture = runs.write_mixture(tmp_path, sources, stages="", tail=TAIL + phases)
    finished = runs.run_mixture(mixture, make_engine=runs.InProcess)
    wanted = {}
    for step in finished.plan.of_kind("sample"):
        kept = finished.report["sources"][step.source]["kept_bytes"]
        (wanted[step.source],) = {round(task.fraction * kept * 0.9) for task in step.tasks}
    assert wanted == {"large": 45_000, "small": 15_000, "tiny": 0}
    assert sampled(finished)["tiny"] == Counter()


def tokenizer(finished: runs.Finished) -> bytes:
    return Root(finished.mixture.output).read_bytes("tokenizer.json")


def test_ranks_of_tiktoken_are_taken_as_the_tokenizer(tmp_path, sources):
    ranks = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    (tmp_path / "own.tiktoken").write_bytes(ranks)
    tail = f"tokenizer: {{path: {tmp_path}/own.tiktoken, pattern: cl100k, special_tokens: {{<|endoftext|>: 256}}}}"
    mixture = load_mixture(runs.write_mixture(tmp_path, sources, stages="", tail=tail))
    assert Encoder(prepare(mixture).tokenizer_content).eos_id == 256
    with pytest.raises(UserError, match=r"mixture\.yaml:.*Give `special_tokens`"):
        prepare(load_mixture(runs.write_mixture(tmp_path, sources, stages="", tail=tail.partition(", special")[0] + "}")))


def test_pattern_beside_a_tokenizer_json_is_refused(tmp_path, sources, reference):
    tail = f"tokenizer: {{path: {reference.mixture.output}/tokenizer.json, pattern: cl100k}}"
    with pytest.raises(UserError, match="`pattern` is an option for ranks of tiktoken"):
        prepare(load_mixture(runs.write_mixture(tmp_path, sources, stages="", tail=tail)))


def test_report_counts_tokens_words_and_bytes_of_each_source(reference):
    found = report_of(reference)
    for name, entry in found["sources"].items():
        document_counts = reference.report["sources"][name]
        assert entry["bytes"] == document_counts["kept_bytes"]
        assert (
            entry["tokens"] == document_counts["tokens"] - document_counts["documents"]["kept"]
        )  # but for the ends of documents
        texts = texts_of(reference, name)
        assert entry["words"] == sum(len(text.split()) for text in texts)
        assert entry["tokens_per_word"] == pytest.approx(entry["tokens"] / entry["words"], abs=1e-4)
        assert entry["bytes_per_token"] == pytest.approx(entry["bytes"] / entry["tokens"], abs=1e-4)
        assert entry["languages"] == {}
    assert found["total"]["tokens"] == sum(entry["tokens"] for entry in found["sources"].values())


def test_report_names_the_ids_that_no_text_uses(reference):
    encoder, used = Encoder(tokenizer(reference)), set()
    for name in reference.mixture.sources:
        used |= set(encoder.encode(pa.array(texts_of(reference, name), pa.large_string()))[0].tolist())
    unused = report_of(reference)["unused"]
    assert unused["count"] == len(set(range(encoder.vocab_size)) - used - {encoder.eos_id})
    assert 0 < len(unused["examples"]) <= 10
    assert not {one["id"] for one in unused["examples"]} & used


@pytest.mark.slow
def test_report_of_the_tokenizer_does_not_depend_on_cuts(tmp_path, sources, reference):
    assert report_of(run(tmp_path, sources, "execution.split_bytes=8KiB")) == report_of(reference)


def test_report_counts_by_the_language_that_documents_carry(tmp_path):
    rows = [
        {"text": text, "language": language} for text, language in [("a b", "en"), ("c", "de"), ("d e f", "en"), ("g", None)]
    ]
    corpora.write_jsonl(tmp_path / "in/a.jsonl", rows)
    source = f"  web:\n    path: {tmp_path}/in/*.jsonl\n    keep: [language]\n"
    finished = runs.run_mixture(
        runs.write_mixture(tmp_path, source, stages="", tail="tokenizer: {train: {vocab_size: 300}}"),
        make_engine=runs.InProcess,
    )
    languages = report_of(finished)["sources"]["web"]["languages"]
    assert {name: (one["documents"], one["words"], one["bytes"]) for name, one in languages.items()} == {
        "": (1, 1, 1),
        "de": (1, 1, 1),
        "en": (2, 5, 8),
    }


def report_of(finished: runs.Finished) -> dict:
    found = tokenizer_report(Root(finished.mixture.output), finished.plan)
    assert found is not None
    return found


def texts_of(finished: runs.Finished, source: str) -> list[str]:
    (step,) = finished.plan.of_kind("map", source)
    root = Root(finished.mixture.output)
    tables = [batch for output in step.outputs("documents") for batch in read_table(root, output)]
    return [text for batch in tables for text in batch.column("text").to_pylist()]

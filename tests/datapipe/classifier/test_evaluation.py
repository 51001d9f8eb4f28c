"""Models are measured on labelled files as counting by hand measures them, in all documents and in each group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from datapipe.classifier import evaluation, metrics
from datapipe.stage.models.classifier import Classifier
from tests.support.command_line import datapipe

_LABELS = ("bad", "good")


class _ByLength:
    """A model of two or more labels, or of a number, that reads the length of a text: "x" * 30 is 0.3, label 3, or 30."""

    fallback_reason = ""

    def __init__(self, kind: Any, labels: tuple[str, ...], noise: int = 0) -> None:
        self.kind, self.labels, self.noise = kind, labels, noise

    def scores(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        lengths = (stops - starts) ^ self.noise
        if self.kind == "number":
            return lengths[:, None].astype(np.float32)
        if len(self.labels) == 2:
            positive = self.labels.index("good") if "good" in self.labels else 1
            columns = [lengths / 100 if label == positive else 1 - lengths / 100 for label in range(2)]
            return np.stack(columns, axis=1).astype(np.float32)
        return np.eye(len(self.labels), dtype=np.float32)[lengths // 10]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, Classifier]:
    """Models by the name of their file, for `open_classifier`."""
    opened: dict[str, Classifier] = {
        "two": _ByLength("classes", _LABELS),
        "swapped": _ByLength("classes", _LABELS[::-1], noise=3),
        "three": _ByLength("classes", ("a", "b", "c")),
        "number": _ByLength("number", ("score",)),
    }
    monkeypatch.setattr(evaluation, "open_classifier", lambda path: opened[path.name])
    return opened


def _write(path: Path, documents: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def _documents(num_docs: int = 80) -> list[dict[str, Any]]:
    draw = np.random.default_rng(1)
    lengths = draw.integers(0, 100, num_docs).tolist()
    good = draw.random(num_docs) * 100 < lengths
    return [
        {"text": "x" * length, "label": _LABELS[int(is_good)], "domain": ["web", "books", None][number % 3]}
        for number, (length, is_good) in enumerate(zip(lengths, good.tolist()))
    ]


def _json(folder: Path, *arguments: str) -> dict[str, Any]:
    run = datapipe(["classifier", "evaluate", *arguments, "--json"], cwd=folder)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_two_models_of_two_classes_are_measured_by_group(models: dict[str, Classifier], tmp_path: Path) -> None:
    documents = _documents()
    _write(tmp_path / "a.jsonl", documents[:50])
    _write(tmp_path / "b.jsonl", [*documents[50:], {"text": "xx"}])
    found = _json(tmp_path, "two", "swapped", "--data", "*.jsonl", "--group-by", "domain", "--threshold", "0.4")
    assert list(found["groups"]) == ["all", "domain=books", "domain=web", "domain=(none)"]
    assert (found["labels"], found["documents_without_label"]) == (["bad", "good"], 1)
    for group, members in {"all": documents, "domain=web": [each for each in documents if each["domain"] == "web"]}.items():
        is_good = np.array([document["label"] == "good" for document in members])
        for name, noise in (("two", 0), ("swapped", 3)):
            scores = np.array([(len(document["text"]) ^ noise) / 100 for document in members], np.float32)
            expected, measured = metrics.ranking(is_good, scores), found["groups"][group][name]
            assert (measured["documents"], measured["positives"]) == (len(members), is_good.sum())
            assert measured["auc"]["value"] == pytest.approx(expected.auc.value)
            assert measured["at_threshold"]["true_positives"] == (is_good & (scores >= np.float32(0.4))).sum()
    lead = found["groups"]["all"]["swapped"]["auc_less_that_of_the_first"]
    assert lead["low"] < lead["value"] < lead["high"]
    assert "auc_less_that_of_the_first" not in found["groups"]["all"]["two"]


def test_labels_of_several_classes_make_a_confusion_matrix(models: dict[str, Classifier], tmp_path: Path) -> None:
    pairs = [("a", 5), ("a", 15), ("b", 15), ("c", 25), ("c", 29), ("c", 3)]
    _write(tmp_path / "data.jsonl", [{"body": {"text": "x" * length}, "kind": label} for label, length in pairs])
    found = _json(tmp_path, "three", "--data", "data.jsonl", "--label", "kind", "--text", "body.text")["groups"]["all"]["three"]
    assert found["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert found["accuracy"]["value"] == pytest.approx(4 / 6)
    assert found["by_label"]["c"]["recall"]["value"] == pytest.approx(2 / 3)


def test_numbers_are_measured_with_a_cut(models: dict[str, Classifier], tmp_path: Path) -> None:
    numbers = [3, 7, 20, 41, 60, 88]
    _write(tmp_path / "data.jsonl", [{"text": "x" * number, "label": number + (-1) ** number} for number in numbers])
    found = _json(tmp_path, "number", "--data", "data.jsonl", "--cut", "42")["groups"]["all"]["number"]
    assert found["rmse"]["value"] == pytest.approx(1.0)
    assert found["spearman"]["value"] == pytest.approx(1.0)
    assert (found["at_threshold"]["true_positives"], found["at_threshold"]["false_negatives"]) == (2, 0)
    assert "auc" not in _json(tmp_path, "number", "--data", "data.jsonl")["groups"]["all"]["number"]
    _write(tmp_path / "long.jsonl", [{"text": "é" * number, "label": number} for number in (3, 30, 300)])
    found = _json(tmp_path, "number", "--data", "long.jsonl", "--max-chars", "20", "--cut", "40")["groups"]["all"]["number"]
    assert found["rmse"]["value"] == pytest.approx(np.sqrt((3**2 + 10**2 + 260**2) / 3))  # cut as the filter cuts them
    assert found["at_threshold"]["true_positives"] == 1


@pytest.mark.parametrize(
    ("values", "renamed"),
    [([True, False], ["true=good", "false=bad"]), ([1, 0], ["1=good", "0=bad"]), ([1.0, 0.0], ["1=good", "0=bad"])],
)
def test_values_of_any_type_are_renamed_to_labels(
    values: list[Any], renamed: list[str], models: dict[str, Classifier], tmp_path: Path
) -> None:
    pa.parquet.write_table(pa.table({"text": ["x" * 90, "x"], "label": values}), tmp_path / "data.parquet")
    options = [part for pair in renamed for part in ("--rename", pair)]
    assert _json(tmp_path, "two", "--data", "data.parquet", *options)["groups"]["all"]["two"]["auc"]["value"] == 1.0


def test_labels_that_no_model_knows_are_left_out_on_request(models: dict[str, Classifier], tmp_path: Path) -> None:
    labels = ["a", "else", "b", "c", "else"]
    _write(tmp_path / "data.jsonl", [{"text": "x" * 5, "label": label, "site": label} for label in labels])
    found = _json(tmp_path, "three", "--data", "data.jsonl", "--known-only", "--group-by", "site")
    assert found["documents_with_unknown_label"] == 2
    assert list(found["groups"]) == ["all", "site=a", "site=b", "site=c"]
    assert found["groups"]["all"]["three"]["confusion"] == [[1, 0, 0], [1, 0, 0], [1, 0, 0]]
    run = datapipe(["classifier", "evaluate", "two", "--data", "data.jsonl", "--known-only"], cwd=tmp_path)
    assert "bad, good" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["two", "--label", "domain"], "--rename web="),
        (["two", "--label", "none"], "none of 80 documents"),
        (["two", "three"], "a, b, c"),
        (["two", "number"], "number"),
        (["number"], "data.jsonl"),
        (["two", "--cut", "3"], "--cut"),
        (["three", "--positive", "a"], "--positive"),
        (["two", "--positive", "great"], "'great'"),
        (["two", "--rename", "x"], "--rename x"),
        (["two", "--data", "damaged.parquet"], "damaged.parquet"),
    ],
)
def test_what_cannot_be_measured_is_told(
    arguments: list[str], fact: str, models: dict[str, Classifier], tmp_path: Path
) -> None:
    _write(tmp_path / "data.jsonl", _documents())
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    data = [] if "--data" in arguments else ["--data", "data.jsonl"]
    run = datapipe(["classifier", "evaluate", *arguments, *data], cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert fact in run.stderr


def test_tables_fit_into_eighty_columns(models: dict[str, Classifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [*_documents(4000), {"text": "x", "label": "bad", "domain": "of one class"}]
    _write(tmp_path / "data.jsonl", [document | {"domain": document["domain"] or "encyclopedias"} for document in documents])
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    said = datapipe(["classifier", "evaluate", "two", "--data", "data.jsonl", "--group-by", "domain"], cwd=tmp_path).stdout
    assert max(map(len, said.splitlines())) <= 80
    best = metrics.ranking(
        np.array([document["label"] == "good" for document in documents]),
        np.array([len(document["text"]) / 100 for document in documents], np.float32),
    ).best
    assert best is not None
    ranking, decided = (line.split() for line in said.splitlines() if line.startswith(" all "))
    assert (ranking[1], ranking[-1]) == ("4,001", f"{best.threshold:.3f}".lstrip("0"))
    f1, precision, recall = float(decided[3]), float(decided[-2]), float(decided[-1])
    assert f1 == pytest.approx(2 / (1 / precision + 1 / recall), abs=2e-3)
    of_one_class = next(line for line in said.splitlines() if line.startswith(" of one class"))
    assert of_one_class.split()[3:] == ["1", "0", *"–––––"]

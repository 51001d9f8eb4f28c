"""Measures equal their definitions, and models are measured on labelled files as counting by hand measures them."""

import json
import math
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from datapipe.errors import UserError
from datapipe.models import evaluation, metrics
from datapipe.models.labelled_files import LabelledFiles
from datapipe.models.metrics import Estimate
from datapipe.stage.models.classifier import Classifier
from tests.support.command_line import datapipe

pytestmark = pytest.mark.needs("sklearn")


def _sample(seed: int, num_docs: int = 60, num_scores: int = 15, positive: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Classes and scores with many ties."""
    draw = np.random.default_rng(seed)
    is_positive = draw.random(num_docs) < positive
    return is_positive, np.round((draw.normal(is_positive, 1.2)) * num_scores / 5) / num_scores


@pytest.mark.parametrize("seed", range(5))
def test_ranking_equals_its_definitions(seed: int) -> None:
    is_positive, scores = _sample(seed)
    found = metrics.ranking(is_positive, scores)
    pairs = [(high > low) + (high == low) / 2 for high in scores[is_positive] for low in scores[~is_positive]]
    assert found.auc.value == pytest.approx(sum(pairs) / len(pairs))
    cuts = [metrics.at_threshold(is_positive, scores, score) for score in scores]
    assert found.best_f1 is not None
    assert found.best_f1.f1.value == max(cut.f1.value for cut in cuts)
    precisions = [cut.precision.value for cut, positive in zip(cuts, is_positive) if positive]
    assert found.average_precision.value == pytest.approx(sum(precisions) / len(precisions))
    assert found.positives == is_positive.sum()


@pytest.mark.slow
def test_delongs_variance_is_that_of_the_jackknife() -> None:
    """Leaving out one document at a time gives nearly the same error: a check by another way."""
    is_positive, scores = _sample(3, num_docs=300, num_scores=1000)
    below, above = metrics.auc_components(is_positive, scores)
    delong = below.var(ddof=1) / len(below) + above.var(ddof=1) / len(above)
    others = [np.arange(len(scores)) != left_out for left_out in range(len(scores))]
    aucs = np.array([metrics.ranking(is_positive[kept], scores[kept]).auc.value for kept in others])
    jackknife = (len(aucs) - 1) / len(aucs) * ((aucs - aucs.mean()) ** 2).sum()
    assert jackknife == pytest.approx(delong, rel=0.02)


Measure = Callable[[np.ndarray, np.ndarray], Estimate]
MEASURES: dict[str, Measure] = {
    "auc": lambda is_positive, scores: metrics.ranking(is_positive, scores).auc,
    "average precision": lambda is_positive, scores: metrics.ranking(is_positive, scores).average_precision,
    "f1": lambda is_positive, scores: metrics.at_threshold(is_positive, scores, 0.5).f1,
    "macro f1": lambda is_positive, scores: (
        metrics.confusion(is_positive.astype(int), (scores >= 0.5).astype(int), ("no", "yes")).macro_f1
    ),
    "spearman": lambda is_positive, scores: metrics.agreement(is_positive.astype(float), scores).spearman,
    "rmse": lambda is_positive, scores: metrics.agreement(is_positive.astype(float), scores).rmse,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURES)
def test_intervals_hold_the_true_value_in_nineteen_of_twenty_samples(name: str) -> None:
    measure = MEASURES[name]
    true = measure(*_sample(0, num_docs=400_000, num_scores=1000)).value
    found = [measure(*_sample(seed, num_docs=200, num_scores=1000)) for seed in range(1, 401)]
    assert np.mean([each.low <= true <= each.high for each in found]) == pytest.approx(0.95, abs=0.03)
    assert all(each.low <= each.value <= each.high for each in found)


def test_one_class_and_no_documents_are_not_defined() -> None:
    for is_positive in ([True, True], [False, False], []):
        found = metrics.ranking(np.array(is_positive, bool), np.array([0.2, 0.9][: len(is_positive)]))
        assert np.isnan([found.auc.value, found.auc.low, found.average_precision.value]).all()
        assert found.best_f1 is None
    nothing = metrics.at_threshold(np.zeros(0, bool), np.zeros(0), 0.5)
    agreements = metrics.agreement(np.zeros(0), np.zeros(0)).rmse, metrics.agreement(np.ones(5), np.arange(5.0)).spearman
    assert np.isnan([nothing.f1.value, nothing.share_kept, *(each.value for each in agreements)]).all()


def test_perfect_separation_has_an_interval_below_one() -> None:
    is_positive = np.arange(20) >= 10
    found = metrics.ranking(is_positive, np.arange(20.0))
    assert (found.auc.value, found.auc.high) == (1.0, 1.0)
    assert 0.6 < found.auc.low < 0.8
    assert found.average_precision.value == 1.0
    constant = metrics.ranking(is_positive, np.zeros(20))
    assert constant.auc.value == 0.5
    assert constant.best_f1 is not None
    assert constant.best_f1.recall.value == 1.0


def test_a_difference_of_paired_scores_is_narrower_than_its_parts() -> None:
    is_positive, scores = _sample(1, num_docs=400, num_scores=1000)
    others = scores + np.random.default_rng(2).normal(0, 0.1, 400)
    difference = metrics.auc_difference(is_positive, scores, others)
    single = metrics.ranking(is_positive, scores).auc
    assert difference.value == pytest.approx(single.value - metrics.ranking(is_positive, others).auc.value)
    assert difference.high - difference.low < (single.high - single.low) / 2
    assert metrics.auc_difference(is_positive, scores, scores) == Estimate(0.0, 0.0, 0.0)


def test_confusion_of_several_classes() -> None:
    targets, predicted = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1, 1, 0, 0])
    found = metrics.confusion(targets, predicted, ("a", "b", "c", "never"))
    assert found.confusion == [[1, 1, 0, 0], [1, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found.accuracy.value == 0.5
    f1s = [of.f1.value for of in found.by_label.values()]
    assert f1s[:3] == pytest.approx([0.4, 2 / 3, 0.0])
    assert math.isnan(f1s[3])
    assert found.macro_f1.value == pytest.approx((0.4 + 2 / 3) / 3)
    assert found.macro_precision == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert found.macro_recall == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)
    assert (found.by_label["b"].precision.value, found.by_label["b"].recall.value) == (
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    )


def test_macro_figures_are_those_of_labels_that_documents_have() -> None:
    found = metrics.confusion(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]), ("a", "b"))
    assert found.macro_f1.value == found.by_label["a"].f1.value == pytest.approx(6 / 7)
    assert (found.macro_precision, found.macro_recall) == (1.0, 0.75)


def test_agreement_of_numbers() -> None:
    targets, predicted = np.array([0.0, 1, 2, 3, 4, 5]), np.array([0.5, 1, 2, 2, 9, 10])
    found = metrics.agreement(targets, predicted)
    assert found.rmse.value == pytest.approx(math.sqrt((0.25 + 1 + 25 + 25) / 6))
    assert found.spearman.value == pytest.approx(0.9856, abs=1e-4)
    assert found.spearman.low < found.spearman.value < found.spearman.high <= 1


_LABELS = ("bad", "good")


class _ByLength:
    """A model of two or more labels, or of a number, that reads the length of a text: "x" * 30 is 0.3, label 3, or 30."""

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


@pytest.mark.slow
def test_labels_that_no_model_knows_are_left_out_on_request(models: dict[str, Classifier], tmp_path: Path) -> None:
    labels = ["a", "else", "b", "c", "else"]
    _write(tmp_path / "data.jsonl", [{"text": "x" * 5, "label": label, "site": label} for label in labels])
    found = _json(tmp_path, "three", "--data", "data.jsonl", "--known-only", "--group-by", "site")
    assert found["documents_with_unknown_label"] == 2
    assert list(found["groups"]) == ["all", "site=a", "site=b", "site=c"]
    assert found["groups"]["all"]["three"]["confusion"] == [[1, 0, 0], [1, 0, 0], [1, 0, 0]]
    run = datapipe(["classifier", "evaluate", "two", "--data", "data.jsonl", "--known-only"], cwd=tmp_path)
    assert "bad, good" in run.stderr


def test_without_scikit_learn_it_is_reported_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UserError, match=r"evaluate needs scikit-learn, which is not installed\. Run: pip install"):
        evaluation.evaluate([], LabelledFiles(patterns=[]), evaluation.Question())


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["two", "--label", "domain"], "--rename web="),
        (["two", "--label", "none"], "none of 80 documents"),
        (["two", "--label", "lable"], "Did you mean 'label'? They have the fields "),
        (["two", "--group-by", "domian"], "Did you mean 'domain'? They have the fields "),
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
def test_what_cannot_be_measured_is_reported(
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
    assert " 4,001 " in said

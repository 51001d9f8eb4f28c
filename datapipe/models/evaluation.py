"""Evaluates models on labelled documents: all of them, and group by group.

    labelled files  ─▶  scores of each model, batch by batch  ─▶  measures of all documents, of each group (`metrics.py`)

Memory: a label, the groups and one number a model for each document.

| models | measures |
|---|---|
| two classes | AUC, average precision, best F1; F1, precision and recall at `threshold` |
| several classes | accuracy, macro F1, the confusion matrix, F1 of each label |
| a number | RMSE, Spearman; with `cut` also AUC, and F1 of "at least the cut" |
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import UserError, suggest
from datapipe.machine.libraries import require
from datapipe.models import metrics
from datapipe.models.labelled_files import LabelledBatch, LabelledFiles, as_text
from datapipe.models.metrics import Agreement, AtThreshold, Confusion, Estimate, Ranking
from datapipe.stage.models.classifier import Classifier, open_classifier, positive_label

ALL = "all"  # the group of all documents
_SHOWN = 5  # values that an error lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    # labels of the models by the value that the files have in their place: {"True": "1"}
    renamed: Mapping[str, str] = field(default_factory=dict)
    positive: str = ""  # the label whose score counts, of two; "": by its name, see `positive_label`
    threshold: float = 0.5  # of two classes, the score from which on a document is predicted positive
    # of numbers, the value from which on a document is (predicted) positive; None: no such measures
    cut: float | None = None
    # whether documents with a label that the models do not know are left out; else they are an error
    known_only: bool = False
    max_chars: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measures:
    """The measures of one model on one group; None where they do not apply. `auc_lead`: over the first model."""

    num_docs: int
    ranking: Ranking | None = None
    at_threshold: AtThreshold | None = None
    auc_lead: Estimate | None = None
    confusion: Confusion | None = None
    agreement: Agreement | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The measures of several models, of the kind "two classes", "several classes" or "number"."""

    models: tuple[str, ...]
    kind: str
    labels: tuple[str, ...]  # of two classes the positive one last
    # by "FIELD=VALUE", and `ALL` first: the measures of each model, in the order of `models`
    groups: Mapping[str, tuple[Measures, ...]]
    num_unknown: int = 0  # documents that were left out for a label that the models do not know
    # num_unlabelled, num_rejected: see `LabelledFiles`
    num_unlabelled: int = 0
    num_rejected: int = 0


def evaluate(paths: Sequence[Path], files: LabelledFiles, question: Question) -> Evaluation:
    """The measures of the models in files. Raises UserError."""
    require("scikit-learn", "datapipe classifier evaluate")
    models = _Models(paths, question)
    scored = [models.score(batch) for batch in files.read()]
    targets = np.concatenate([own for own, _, _ in scored])
    if not len(targets):
        raise UserError(f"the models know no label of the documents. They know {_listed(models.labels)}.")
    outcomes = np.concatenate([own for _, own, _ in scored], axis=1)  # (num_models, num_docs)
    groups = {ALL: np.ones(len(targets), np.bool_)}
    for name in files.other_fields:
        groups |= _members(name, pa.chunked_array([others[name] for _, _, others in scored], pa.large_string()))
    return Evaluation(
        models=models.names,
        kind=models.kind,
        labels=models.labels,
        groups={group: models.measure(targets[members], outcomes[:, members]) for group, members in groups.items()},
        num_unknown=models.num_unknown,
        num_unlabelled=files.num_unlabelled,
        num_rejected=files.num_rejected,
    )


def _members(name: str, values: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """The documents of each value of a field, in the order of the values, then those without one."""
    encoded = pc.dictionary_encode(values.combine_chunks(), null_encoding="encode")
    codes = columns.numbers(encoded.indices)
    named = [(value is None, value or "", code) for code, value in enumerate(encoded.dictionary.to_pylist())]
    return {f"{name}={'(none)' if is_null else value}": codes == code for is_null, value, code in sorted(named)}


class _Models:
    def __init__(self, paths: Sequence[Path], question: Question) -> None:
        self.question, self.names, self.num_unknown = question, _names(paths), 0
        self.models: list[Classifier] = [open_classifier(path) for path in paths]
        first = self.models[0]
        for path, model in zip(paths, self.models):
            if model.kind != first.kind or (model.kind == "classes" and set(model.labels) != set(first.labels)):
                raise UserError(
                    f"{path} predicts {_predicted(model)}, and {paths[0]} {_predicted(first)}. Evaluate them one by one."
                )
        self.labels = self._labels(first, paths[0])
        self.kind = kind_of(first)
        if self.question.cut is not None and self.kind != "number":
            raise UserError(f"--cut is used with models that predict a number, and {paths[0]} predicts {_predicted(first)}.")

    def _labels(self, model: Classifier, path: Path) -> tuple[str, ...]:
        """The labels in the order of the measures: of two the positive one last."""
        labels, wanted = model.labels, self.question.positive
        if model.kind == "number" or len(labels) != 2:
            if wanted:
                raise UserError(f"--positive is used with models of two labels, and {path} predicts {_predicted(model)}.")
            return labels
        number = positive_label(labels) if not wanted else labels.index(wanted) if wanted in labels else None
        if number is None:
            what = (
                f"it knows no label '{wanted}'" if wanted else "their names do not show which of two labels is the positive one"
            )
            raise UserError(f"{path}: {what}. Name one of its labels: --positive {labels[0]} or --positive {labels[1]}")
        return labels[1 - number], labels[number]

    def score(self, batch: LabelledBatch) -> tuple[np.ndarray, np.ndarray, Mapping[str, pa.Array]]:
        """The targets of a batch, (num_docs,) int64 numbers of labels or float64 numbers; the
        outcomes of all models, (num_models, num_docs) float32, see `outcome_of`; the groups."""
        targets = self._targets(batch)
        is_known = targets >= 0 if self.kind != "number" else np.ones(len(targets), np.bool_)
        self.num_unknown += int((~is_known).sum())
        known = pa.array(is_known)
        texts = batch.texts.filter(known)
        if self.question.max_chars is not None:
            texts = pc.utf8_slice_codeunits(texts, 0, self.question.max_chars)
        offsets, data = columns.text_buffers(texts)
        stops = np.ascontiguousarray(offsets[1:])
        answers = [model.scores(offsets[:-1], stops, data) for model in self.models]
        outcomes = np.stack([outcome_of(model, self.labels, scores) for model, scores in zip(self.models, answers)])
        return targets[is_known], outcomes, {name: as_text(others).filter(known) for name, others in batch.others.items()}

    def _targets(self, batch: LabelledBatch) -> np.ndarray:
        if self.kind == "number":
            return batch.numbers()
        encoded = pc.dictionary_encode(as_text(batch.values))
        values = encoded.dictionary.to_pylist()
        numbers = [self._number(self.question.renamed.get(value, value), value, batch.url) for value in values]
        return np.array(numbers, np.int64)[columns.numbers(encoded.indices)]

    def _number(self, label: str, value: str, url: str) -> int:
        if label in self.labels:
            return self.labels.index(label)
        if self.question.known_only:
            return -1
        raise UserError(
            f"{url}: a document has the label '{value}', and the models know {_listed(self.labels)}."
            f"{suggest(label, self.labels)} Name the label it means, as in "
            f"--rename {value}={self.labels[-1]}, or leave such documents out: --known-only"
        )

    def measure(self, targets: np.ndarray, outcomes: np.ndarray) -> tuple[Measures, ...]:
        least = self.question.cut if self.kind == "number" else self.question.threshold
        first, *others = [measures_of(self.kind, targets, outcome, self.labels, least) for outcome in outcomes]
        if first.ranking is not None:
            is_positive = _is_positive(self.kind, targets, least)
            leads = [metrics.auc_difference(is_positive, outcome, outcomes[0]) for outcome in outcomes[1:]]
            others = [replace(measures, auc_lead=lead) for measures, lead in zip(others, leads)]
        return first, *others


def kind_of(model: Classifier) -> str:
    return "number" if model.kind == "number" else "two classes" if len(model.labels) == 2 else "several classes"


def outcome_of(model: Classifier, labels: Sequence[str], scores: np.ndarray) -> np.ndarray:
    """The answers of a model, (num_docs,) float32: of two labels the score of the last one, of
    several the number of the best label, else the predicted number."""
    if model.kind == "number":
        return scores[:, 0]
    in_order = scores[:, [model.labels.index(label) for label in labels]]
    return in_order[:, 1] if len(labels) == 2 else in_order.argmax(axis=1).astype(np.float32)


def measures_of(kind: str, targets: np.ndarray, outcome: np.ndarray, labels: tuple[str, ...], least: float | None) -> Measures:
    """The measures without the lead. From `least` on, a document is predicted positive."""
    if kind == "several classes":
        return Measures(num_docs=len(targets), confusion=metrics.confusion(targets, outcome.astype(np.int64), labels))
    agreement = metrics.agreement(targets, outcome.astype(np.float64)) if kind == "number" else None
    if least is None:
        return Measures(num_docs=len(targets), agreement=agreement)
    is_positive = _is_positive(kind, targets, least)
    return Measures(
        num_docs=len(targets),
        ranking=metrics.ranking(is_positive, outcome),
        at_threshold=metrics.at_threshold(is_positive, outcome, least),
        agreement=agreement,
    )


def _is_positive(kind: str, targets: np.ndarray, least: float | None) -> np.ndarray:
    return targets >= least if kind == "number" else targets == 1


def _names(paths: Sequence[Path]) -> tuple[str, ...]:
    names = [path.name for path in paths]
    return tuple(path.name if names.count(path.name) == 1 else str(path) for path in paths)


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels[:_SHOWN]) + " …" * (len(labels) > _SHOWN)


def _predicted(model: Classifier) -> str:
    return "a number" if model.kind == "number" else f"the labels {_listed(model.labels)}"

"""Prints an evaluation: tables of at most 80 columns, or one record for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console

from datapipe.classifier.evaluation import ALL, Evaluation, Measures
from datapipe.classifier.metrics import AtThreshold, Confusion, Estimate, Ranking
from datapipe.report.layout import NumberTable, print_text

_MOST_LABELS = 8
"""A confusion matrix of more labels is not printed; its largest errors are."""

_MOST_ERRORS = 10
_INTERVAL = "95%"


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Prints the tables of all documents and of each group."""
    sections = list(_sections(evaluation))
    if evaluation.kind == "several classes":
        _print_table(
            "",
            ("docs", "accuracy", _INTERVAL, "macro F1", _INTERVAL, "macro precision", "macro recall"),
            sections,
            _classes_cells,
            console,
        )
        for name, measures in zip(evaluation.models, evaluation.groups[ALL]):
            assert measures.confusion is not None
            _print_confusion(name, measures.confusion, console)
    if evaluation.kind == "number":
        _print_table("", ("docs", "RMSE", _INTERVAL, "Spearman", _INTERVAL), sections, _number_cells, console)
    first = evaluation.groups[ALL][0]
    if first.ranking is not None and first.at_threshold is not None:
        threshold = f"{first.at_threshold.threshold:g}"
        positive = f"{evaluation.labels[-1]} from {threshold}" if evaluation.kind == "number" else evaluation.labels[-1]
        headings = ("docs", "positive", "AUC", _INTERVAL, "AP", "best F1", "at")
        _print_table(f"ranking by the score of {positive}", headings, sections, _ranking_cells, console)
        headings = ("accuracy", _INTERVAL, "F1", _INTERVAL, "precision", "recall")
        _print_table(f"at the threshold {threshold}", headings, sections, _threshold_cells, console)
        if len(evaluation.models) > 1:
            _print_table(f"AUC less that of {evaluation.models[0]}", ("difference", _INTERVAL), sections, _lead_cells, console)
    for line in _notes(evaluation):
        print_text(line, console)


def _sections(evaluation: Evaluation) -> Iterator[tuple[str, Measures]]:
    """A row for each group; with several models one for each model of it. Of a single field the values name the groups."""
    fields = {group.partition("=")[0] for group in evaluation.groups} - {ALL}
    for group, measures in evaluation.groups.items():
        name = group.partition("=")[2] if len(fields) == 1 and group != ALL else group
        for model, measured in zip(evaluation.models, measures):
            yield (name if len(evaluation.models) == 1 else model if group == ALL else f"{name}, {model}"), measured


def _print_table(
    title: str, headings: Sequence[str], sections: Sequence[tuple[str, Measures]], cells: Any, console: Console
) -> None:
    table = NumberTable(title, ["", *headings], edges=False)
    for name, measures in sections:
        table.add_row(name, *cells(measures))
    console.print(table)


def _classes_cells(measures: Measures) -> list[str]:
    found = measures.confusion
    assert found is not None
    means = _number(found.macro_precision), _number(found.macro_recall)
    return [f"{measures.num_docs:,}", *_estimate(found.accuracy), *_estimate(found.macro_f1), *means]


def _number_cells(measures: Measures) -> list[str]:
    assert measures.agreement is not None
    return [f"{measures.num_docs:,}", *_estimate(measures.agreement.rmse), *_estimate(measures.agreement.spearman)]


def _ranking_cells(measures: Measures) -> list[str]:
    found = measures.ranking
    assert found is not None
    best = ["–", "–"] if found.best is None else [_number(found.best.f1.value), _number(found.best.threshold)]
    return [
        f"{measures.num_docs:,}",
        f"{found.num_positives:,}",
        *_estimate(found.auc),
        _number(found.average_precision.value),
        *best,
    ]


def _threshold_cells(measures: Measures) -> list[str]:
    found = measures.at_threshold
    assert found is not None
    return [*_estimate(found.accuracy), *_estimate(found.f1), _number(found.precision.value), _number(found.recall.value)]


def _lead_cells(measures: Measures) -> list[str]:
    return ["", ""] if measures.auc_lead is None else _estimate(measures.auc_lead)


def _print_confusion(name: str, confusion: Confusion, console: Console) -> None:
    """The measures of each label, and the matrix or its largest errors."""
    table = NumberTable(name, ["label", "docs", "predicted", "precision", "recall", "F1", _INTERVAL], edges=False)
    for number, label in enumerate(confusion.labels):
        counts = f"{confusion.counts[number].sum():,}", f"{confusion.counts[:, number].sum():,}"
        values = _number(confusion.precision(number).value), _number(confusion.recall(number).value)
        table.add_row(label, *counts, *values, *_estimate(confusion.f1(number)))
    console.print(table)
    if len(confusion.labels) <= _MOST_LABELS:
        table = NumberTable(f"{name}: labels, and what was predicted", ["label", *confusion.labels], edges=False)
        for label, counts in zip(confusion.labels, confusion.counts.tolist()):
            table.add_row(label, *(f"{count:,}" for count in counts))
    else:
        table = NumberTable(f"{name}: the most frequent errors", ["label, predicted", "docs"], edges=False)
        for label, predicted, count in _errors(confusion):
            table.add_row(f"{label}, {predicted}", f"{count:,}")
    console.print(table)


def _errors(confusion: Confusion) -> Iterator[tuple[str, str, int]]:
    counts = confusion.counts - np.diag(np.diag(confusion.counts))
    for flat in np.argsort(-counts, axis=None, kind="stable")[:_MOST_ERRORS]:
        label, predicted = divmod(int(flat), len(confusion.labels))
        if counts[label, predicted]:
            yield confusion.labels[label], confusion.labels[predicted], int(counts[label, predicted])


def _notes(evaluation: Evaluation) -> Iterator[str]:
    if evaluation.num_unknown:
        yield f"{evaluation.num_unknown:,} documents with a label that the models do not know were left out."
    if evaluation.num_unlabelled:
        yield f"{evaluation.num_unlabelled:,} documents without a label were left out."
    if evaluation.num_rejected:
        yield f"{evaluation.num_rejected:,} records are no documents and were left out."
    yield "95%: confidence intervals. –: not defined, such as the AUC of a single class."


def _estimate(estimate: Estimate) -> list[str]:
    return [_number(estimate.value), "–" if math.isnan(estimate.low) else f"{_number(estimate.low)}–{_number(estimate.high)}"]


def _number(value: float) -> str:
    """Three decimals, without the zero before the point."""
    if math.isnan(value):
        return "–"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """All measures with their intervals, as one record."""
    return {
        "kind": evaluation.kind,
        "labels": list(evaluation.labels),
        "documents_with_unknown_label": evaluation.num_unknown,
        "documents_without_label": evaluation.num_unlabelled,
        "rejected_records": evaluation.num_rejected,
        "groups": {
            group: {model: record_of(measured) for model, measured in zip(evaluation.models, measures)}
            for group, measures in evaluation.groups.items()
        },
    }


def record_of(measures: Measures) -> dict[str, Any]:
    """The measures of one model as a record."""
    record: dict[str, Any] = {"documents": measures.num_docs}
    if measures.agreement is not None:
        record |= {"rmse": asdict(measures.agreement.rmse), "spearman": asdict(measures.agreement.spearman)}
    if measures.ranking is not None:
        record |= _ranking(measures.ranking)
    if measures.at_threshold is not None:
        record["at_threshold"] = at_threshold_record(measures.at_threshold)
    if measures.auc_lead is not None:
        record["auc_less_that_of_the_first"] = asdict(measures.auc_lead)
    return record | (_confusion(measures.confusion) if measures.confusion is not None else {})


def _ranking(found: Ranking) -> dict[str, Any]:
    return {
        "positives": found.num_positives,
        "auc": asdict(found.auc),
        "average_precision": asdict(found.average_precision),
        "best_f1": None if found.best is None else at_threshold_record(found.best),
    }


def at_threshold_record(found: AtThreshold) -> dict[str, Any]:
    """What a threshold decides, as a record."""
    measures = {"f1": found.f1, "precision": found.precision, "recall": found.recall, "accuracy": found.accuracy}
    return asdict(found) | {"share_kept": found.share_above} | {name: asdict(value) for name, value in measures.items()}


def _confusion(found: Confusion) -> dict[str, Any]:
    labels: Mapping[str, Any] = {
        label: {
            "precision": asdict(found.precision(number)),
            "recall": asdict(found.recall(number)),
            "f1": asdict(found.f1(number)),
        }
        for number, label in enumerate(found.labels)
    }
    return {
        "accuracy": asdict(found.accuracy),
        "macro_f1": asdict(found.macro_f1),
        "macro_precision": found.macro_precision,
        "macro_recall": found.macro_recall,
        "confusion": found.counts.tolist(),
        "by_label": labels,
    }

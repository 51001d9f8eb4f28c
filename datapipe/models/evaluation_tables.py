"""An evaluation as tables of at most 80 columns, for a terminal and for the card of a model, or as one record for JSON."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from datapipe.dataclass import asdict
from datapipe.models.evaluation import ALL, Evaluation, Measures
from datapipe.models.metrics import AtThreshold, Confusion, Estimate, Ranking
from datapipe.report.layout import NumberTable, print_text

_MOST_LABELS = 8  # A confusion matrix of more labels is not shown; its largest errors are
_MOST_ERRORS = 10
_INTERVAL = "95%"


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    for table in tables_of(evaluation):
        console.print(table)
    if evaluation.num_unknown:
        print_text(f"{evaluation.num_unknown:,} documents with a label that the models do not know were left out.", console)
    if evaluation.num_unlabelled:
        print_text(f"{evaluation.num_unlabelled:,} documents without a label were left out.", console)
    if evaluation.num_rejected:
        print_text(f"{evaluation.num_rejected:,} records are no documents and were left out.", console)
    print_text("95%: confidence intervals. –: not defined, such as the AUC of a single class.", console)


def tables_of(evaluation: Evaluation) -> Iterator[NumberTable]:
    named = list(_named(evaluation))

    def table(title: str, headings: Sequence[str], part: str, cells: Callable[[Any], Sequence[str]]) -> NumberTable:
        shown = NumberTable(title, ["", *headings], edges=False)
        for name, measures in named:
            counts = [f"{measures.num_docs:,}"] if headings[0] == "docs" else []
            measured = getattr(measures, part)
            shown.add_row(name, *counts, *([] if measured is None else cells(measured)))
        return shown

    if evaluation.kind == "several classes":
        headings = ("docs", "accuracy", _INTERVAL, "macro F1", _INTERVAL, "macro precision", "macro recall")
        yield table("", headings, "confusion", _classes_cells)
        for name, measures in zip(evaluation.models, evaluation.groups[ALL]):
            assert measures.confusion is not None
            yield from _confusion_tables(name, measures.confusion)
    if evaluation.kind == "number":
        headings = ("docs", "RMSE", _INTERVAL, "Spearman", _INTERVAL)
        yield table("", headings, "agreement", lambda measured: [*_estimate(measured.rmse), *_estimate(measured.spearman)])
    decided = evaluation.groups[ALL][0].at_threshold
    if decided is not None:
        threshold = f"{decided.threshold:g}"
        positive = f"{evaluation.labels[-1]} from {threshold}" if evaluation.kind == "number" else evaluation.labels[-1]
        headings = ("docs", "positive", "AUC", _INTERVAL, "AP", "best F1", "at")
        yield table(f"ranking by the score of {positive}", headings, "ranking", _ranking_cells)
        headings = ("accuracy", _INTERVAL, "F1", _INTERVAL, "precision", "recall")
        yield table(f"at the threshold {threshold}", headings, "at_threshold", _threshold_cells)
        if len(evaluation.models) > 1:
            yield table(f"AUC less that of {evaluation.models[0]}", ("difference", _INTERVAL), "auc_lead", _estimate)


def _named(evaluation: Evaluation) -> Iterator[tuple[str, Measures]]:
    """A row for each group and model of it. The values of a single field name the groups."""
    fields = {group.partition("=")[0] for group in evaluation.groups} - {ALL}
    for group, measures in evaluation.groups.items():
        name = group.partition("=")[2] if len(fields) == 1 and group != ALL else group
        for model, measured in zip(evaluation.models, measures):
            yield (name if len(evaluation.models) == 1 else model if group == ALL else f"{name}, {model}"), measured


def _classes_cells(confusion: Confusion) -> list[str]:
    means = _number(confusion.macro_precision), _number(confusion.macro_recall)
    return [*_estimate(confusion.accuracy), *_estimate(confusion.macro_f1), *means]


def _ranking_cells(ranking: Ranking) -> list[str]:
    best = ["–", "–"] if ranking.best_f1 is None else [_number(ranking.best_f1.f1.value), _number(ranking.best_f1.threshold)]
    return [f"{ranking.positives:,}", *_estimate(ranking.auc), _number(ranking.average_precision.value), *best]


def _threshold_cells(measures: AtThreshold) -> list[str]:
    return [
        *_estimate(measures.accuracy),
        *_estimate(measures.f1),
        _number(measures.precision.value),
        _number(measures.recall.value),
    ]


def _confusion_tables(name: str, confusion: Confusion) -> Iterator[NumberTable]:
    counts = np.array(confusion.confusion)  # [label, predicted]
    rows = [
        [label, f"{real:,}", f"{guessed:,}", _number(of.precision.value), _number(of.recall.value), *_estimate(of.f1)]
        for (label, of), real, guessed in zip(confusion.by_label.items(), counts.sum(axis=1), counts.sum(axis=0))
    ]
    yield NumberTable(name, ["label", "docs", "predicted", "precision", "recall", "F1", _INTERVAL], rows, edges=False)
    labels = list(confusion.by_label)
    if len(labels) <= _MOST_LABELS:
        matrix = [[label, *(f"{count:,}" for count in row)] for label, row in zip(labels, confusion.confusion)]
        yield NumberTable(f"{name}: labels, and what was predicted", ["label", *labels], matrix, edges=False)
        return
    np.fill_diagonal(counts, 0)
    errors = [divmod(int(flat), len(labels)) for flat in np.argsort(-counts, axis=None, kind="stable")[:_MOST_ERRORS]]
    most = [[f"{labels[real]}, {labels[guessed]}", f"{counts[real, guessed]:,}"] for real, guessed in errors]
    most = [row for row in most if row[1] != "0"]
    yield NumberTable(f"{name}: the most frequent errors", ["label, predicted", "docs"], most, edges=False)


def decisions_table(title: str, decided: Iterable[AtThreshold]) -> NumberTable:
    table = NumberTable(title, ("threshold", "kept", "precision", "recall", "F1"), edges=False)
    for each in decided:
        measures = (each.precision, each.recall, each.f1)
        table.add_row(f"{each.threshold:.6g}", f"{each.share_kept:.1%}", *(_number(of.value) for of in measures))
    return table


def _estimate(estimate: Estimate) -> list[str]:
    return [_number(estimate.value), "–" if math.isnan(estimate.low) else f"{_number(estimate.low)}–{_number(estimate.high)}"]


def _number(value: float) -> str:
    """Three decimals, without the zero before the point."""
    if math.isnan(value):
        return "–"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def to_json(evaluation: Evaluation) -> dict[str, Any]:
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
    record: dict[str, Any] = {"documents": measures.num_docs}
    for group in (measures.agreement, measures.ranking, measures.confusion):
        record |= {} if group is None else asdict(group)
    named = {"at_threshold": measures.at_threshold, "auc_less_that_of_the_first": measures.auc_lead}
    return record | {name: asdict(value) for name, value in named.items() if value is not None}

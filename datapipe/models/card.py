"""The figures of a trained model on the held-out documents, and its card, as JSON and as Markdown.

    model, held-out documents  ─▶  Figures  ─▶  tables that are printed
                                           └▶  MODEL.card.json, MODEL.card.md

The figures are those of `datapipe classifier evaluate --json`. Two classes also have a curve: which
threshold keeps which share of documents. Numbers have the measures of "at least" for several
numbers. A card has no time and no property of the machine: the same training gives the same card.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.columns import text_buffers
from datapipe.dataclass import asdict, dataclass
from datapipe.models.evaluation import ALL, Evaluation, Measures, kind_of, measures_of, outcome_of
from datapipe.models.evaluation_tables import decisions_table, record_of, tables_of
from datapipe.models.examples import Examples
from datapipe.models.metrics import AtThreshold, at_threshold
from datapipe.report.cells import rendered
from datapipe.report.layout import NumberTable
from datapipe.stage.models.classifier import Classifier

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the curve
_MOST_CUTS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    evaluation: Evaluation
    labels: dict[str, int]
    curve: list[AtThreshold]
    at_least: list[Measures]

    @property
    def measures(self) -> Measures:
        return self.evaluation.groups[ALL][0]

    def tables(self) -> list[NumberTable]:
        if not self.measures.num_docs:
            return []
        cuts = [measures.at_threshold for measures in self.at_least if measures.at_threshold is not None]
        curve = [decisions_table("threshold and share kept", self.curve)] if self.curve else []
        return [*tables_of(self.evaluation), *curve, *([decisions_table("at least", cuts)] if cuts else [])]

    def to_json(self) -> dict[str, Any]:
        """A record of values that JSON has; None where a figure is not defined."""
        record = record_of(self.measures)
        if self.evaluation.kind == "number":
            of_cuts = map(record_of, self.at_least)
            record["at_least"] = [{"auc": each["auc"]} | each["at_threshold"] for each in of_cuts]
        else:
            record["labels"] = self.labels
        if self.evaluation.kind == "two classes":
            record["curve"] = list(map(asdict, self.curve))
        return json.loads(json.dumps(record), parse_constant=lambda name: None)


def figures_of(name: str, model: Classifier, held_out: Examples) -> Figures:
    offsets, data = text_buffers(held_out.texts)
    scores = model.scores(np.ascontiguousarray(offsets[:-1]), np.ascontiguousarray(offsets[1:]), data)
    kind, labels, targets = kind_of(model), held_out.labels, held_out.targets
    outcome = outcome_of(model, labels, scores).astype(np.float64)
    if kind != "number":
        targets = targets.astype(np.int64)
    thresholds, cuts = _thresholds(outcome) if kind == "two classes" else (), _cuts(targets) if kind == "number" else ()
    measures = measures_of(kind, targets, outcome, labels, 0.5 if kind == "two classes" else None)
    return Figures(
        evaluation=Evaluation(models=(name,), kind=kind, labels=labels, groups={ALL: (measures,)}),
        labels={} if kind == "number" else {label: int((targets == number).sum()) for number, label in enumerate(labels)},
        curve=[at_threshold(targets == 1, outcome, threshold) for threshold in thresholds],
        at_least=[measures_of(kind, targets, outcome, labels, cut) for cut in cuts],
    )


def _thresholds(scores: np.ndarray) -> Sequence[float]:
    """For each of `SHARES` the highest threshold that keeps so many documents."""
    ranked = np.sort(scores)[::-1].tolist()
    return list(dict.fromkeys(ranked[max(math.ceil(share * len(ranked)), 1) - 1] for share in SHARES if ranked))


def _cuts(targets: np.ndarray) -> Sequence[float]:
    """Numbers at which a filter may cut: each of a few whole numbers, else the quartiles."""
    distinct = np.unique(targets)
    if len(distinct) <= _MOST_CUTS + 1 and (distinct == np.rint(distinct)).all():
        return distinct[1:].tolist()
    return np.unique(np.quantile(targets, (0.25, 0.5, 0.75), method="nearest")).tolist()


def card_path(model: Path, ending: str) -> Path:
    return model.with_name(f"{model.name}.card.{ending}")


def card_text(card: dict[str, Any], tables: Sequence[NumberTable]) -> str:
    options = NumberTable("", ("option", "value"), [(name, str(value)) for name, value in card["options"].items()])
    names = {"card": card, "lines": data_lines(card["data"]), "options": options, "tables": tables}
    return rendered("models/card.md.jinja", names)


def data_lines(data: dict[str, Any]) -> list[str]:
    lines = [
        f"inputs: {', '.join(data['inputs'])}",
        f"documents with a label: {data['read']:,}; different texts: {data['kept']:,}; digest {data['digest']}",
        f"trained on {data['trained']:,}, held out {data['held_out']:,}",
    ]
    if data["empty"]:
        lines.append(f"texts of white space alone, left out: {data['empty']:,}")
    if data["conflicting"]:
        what = "have the mean of their numbers" if data["is_number"] else "left out, as texts with several labels teach nothing"
        lines.append(f"equal texts with different labels: {data['conflicting']:,}, {what}")
    if data["labels_are_numbers"]:
        lines.append("the labels are numbers, and were learned as names; --number predicts a number")
    if data["is_full"]:
        lines.append("a sample: the documents have more text than --sample")
    for name, what in (("unlabelled", "documents without a label"), ("rejected", "records that are no documents")):
        if data[name]:
            lines.append(f"{what}, left out: {data[name]:,}")
    return lines

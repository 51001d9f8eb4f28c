"""The card of a model: what it was trained on, how, and what it does, as JSON and as a text to read.

    MODEL.card.json    for programs
    MODEL.card.md      the same, for people

A card holds no time and no absolute number of the machine: the same training gives the same card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

VERSION = 2
_LIBRARIES = ("datapipe", "numpy", "numba", "pyarrow", "scikit-learn", "scipy")


def card_path(model: Path, ending: str) -> Path:
    """The path of the card beside the model; `ending`: "json" or "md"."""
    return model.with_name(f"{model.name}.card.{ending}")


def versions() -> dict[str, str]:
    """The versions of the libraries that decide the bytes of a model."""
    return {name: version(name) for name in _LIBRARIES}


def card_json(card: dict[str, Any]) -> str:
    return json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def card_text(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: dict[str, Any]) -> Iterator[str]:
    data, figures = card["data"], card["figures"]
    yield f"# {card['model']}"
    yield ""
    yield f"A model of the kind `{card['kind']}` that predicts {_predicts(card)}, by `datapipe classifier train`."
    yield ""
    yield "## Data"
    yield ""
    yield from (f"- {line}" for line in data_lines(data))
    yield ""
    yield "## Options"
    yield ""
    yield from _table(("option", "value"), [(name, str(value)) for name, value in card["options"].items()])
    yield ""
    yield f"## Figures on {figures['documents']:,} held-out documents"
    yield ""
    for title, headings, rows in figure_tables(figures):
        yield title
        yield ""
        yield from _table(headings, rows)
        yield ""
    if card["heaviest"]:
        yield "## Heaviest features"
        yield ""
        for label, features in card["heaviest"].items():
            listed = ", ".join(f"`{ngram.strip()}`" for ngram, _ in features)
            yield f"- {label}: {listed}"
        yield ""
    yield "Trained with " + ", ".join(f"{name} {number}" for name, number in card["versions"].items()) + "."


def _predicts(card: dict[str, Any]) -> str:
    return "a number" if card["predicts"] == "number" else "the labels " + ", ".join(f"`{label}`" for label in card["labels"])


def data_lines(data: dict[str, Any]) -> list[str]:
    """What became of the documents, a line each."""
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


Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, headings and rows."""

_AT = ("threshold", "kept", "precision", "recall", "F1")


def figure_tables(figures: dict[str, Any]) -> Iterator[Table]:
    """The figures as tables of text."""
    named = [("AUC", "auc"), ("average precision", "average_precision"), ("accuracy", "accuracy"), ("macro F1", "macro_f1")]
    named += [("RMSE", "rmse"), ("Spearman", "spearman")]
    if not figures["documents"]:
        return
    rows = [(title, *map(_number, figures[name].values())) for title, name in named if name in figures]
    if rows:
        yield "overall", ("", "figure", "from", "to"), rows
    if "curve" in figures:
        decided = [("at 0.5", *_at(figures["at_threshold"]))]
        decided += [] if figures["best_f1"] is None else [("best F1", *_at(figures["best_f1"]))]
        yield "decisions", ("", *_AT), decided
        yield "threshold and share kept", _AT, [_at(point) for point in figures["curve"]]
    if "by_label" in figures:
        columns = ("precision", "recall", "f1")
        of_labels = [(label, *(_number(row[name]["value"]) for name in columns)) for label, row in figures["by_label"].items()]
        yield "by label", ("label", "precision", "recall", "F1"), of_labels
        labels = list(figures["by_label"])
        if len(labels) <= 12:
            confusion = [(label, *map(str, row)) for label, row in zip(labels, figures["confusion"])]
            yield "documents by label, and by what is predicted", ("", *labels), confusion
    if "at_least" in figures:
        yield "at least", ("AUC", *_AT), [(_number(row["auc"]["value"]), *_at(row)) for row in figures["at_least"]]


def _at(point: dict[str, Any]) -> Sequence[str]:
    threshold = f"{point['threshold']:.6g}"
    share = "" if point["share_kept"] is None else f"{point['share_kept']:.1%}"
    return threshold, share, *(_number(point[name]["value"]) for name in ("precision", "recall", "f1"))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    yield from (f"| {' | '.join(row)} |" for row in rows)

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

from datapipe.report.layout import NumberTable

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


def card_text(card: dict[str, Any], tables: Sequence[NumberTable]) -> str:
    """The card as Markdown, with the tables of its figures."""
    return "\n".join(_lines(card, tables)) + "\n"


def _lines(card: dict[str, Any], tables: Sequence[NumberTable]) -> Iterator[str]:
    yield f"# {card['model']}"
    yield ""
    labels = "the labels " + ", ".join(f"`{label}`" for label in card["labels"])
    predicted = "a number" if card["predicts"] == "number" else labels
    yield f"A model of the kind `{card['kind']}` that predicts {predicted}, by `datapipe classifier train`."
    yield ""
    yield "## Data"
    yield ""
    yield from (f"- {line}" for line in data_lines(card["data"]))
    yield ""
    yield "## Options"
    yield ""
    yield from NumberTable("", ("option", "value"), [(name, str(value)) for name, value in card["options"].items()]).markdown()
    yield ""
    yield f"## Figures on {card['figures']['documents']:,} held-out documents"
    yield ""
    for table in tables:
        yield table.title
        yield ""
        yield from table.markdown()
        yield ""
    if card["heaviest"]:
        yield "## Heaviest features"
        yield ""
        for label, features in card["heaviest"].items():
            listed = ", ".join(f"`{ngram.strip()}`" for ngram, _ in features)
            yield f"- {label}: {listed}"
        yield ""
    yield "Trained with " + ", ".join(f"{name} {number}" for name, number in card["versions"].items()) + "."


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

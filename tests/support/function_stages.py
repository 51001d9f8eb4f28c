"""Stages that are functions of one document, for the tests of what every stage must do."""

from collections.abc import Mapping
from typing import Any


def keeps_words(record: Mapping[str, Any], least: int = 3) -> bool:
    """Drops documents of few words."""
    return len(record["text"].split()) >= least


def reverses(record: Mapping[str, Any]) -> str:
    """Turns each text around."""
    return record["text"][::-1]


def scores(record: Mapping[str, Any]) -> bool | dict[str, Any]:
    """Adds a column to some documents, and edits others."""
    if record["rank"] % 3 == 0:
        return record["rank"] % 2 == 0
    if record["rank"] % 3 == 1:
        return {**record, "text": record["text"].strip()}
    return {"share": record["text"].count(" ") / (len(record["text"]) + 1)}


scores.columns = {"share": float}  # type: ignore[attr-defined]

FUNCTIONS = (keeps_words, reverses, scores)

"""`datapipe classifier`: trains, evaluates and applies classifiers of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datapipe.cli.annotate import annotate
from datapipe.cli.evaluate import evaluate
from datapipe.cli.train import train

CLASSIFIER_COMMANDS: dict[str, Callable[..., Any]] = {"train": train, "annotate": annotate, "evaluate": evaluate}
"""The commands of `datapipe classifier` by name, in the order of the help."""

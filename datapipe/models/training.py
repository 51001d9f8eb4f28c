"""The contract of every kind of classifier that can be trained.

    Examples (texts, targets, weights)  ─▶  Trainer.train  ─▶  the bytes of a model file, which `open_classifier` reads

A trainer is a frozen model whose fields are its options. Equal examples, order and options give equal bytes.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Texts to learn from, in an order that follows from their content alone."""

    texts: pa.Array  # (num_docs,) large_string without nulls
    # (num_docs,) float64: the number of the label in `labels`, or the value where `predicts_number`
    targets: np.ndarray
    labels: tuple[str, ...]  # the names of the classes; one name where a number is predicted
    weights: np.ndarray  # (num_docs,) float64, how much each counts; 1 is usual
    predicts_number: bool = False  # whether the targets are values of a scale, and not numbers of labels

    def __len__(self) -> int:
        return len(self.targets)


class Trainer(BaseModel):
    """A kind of model, with the options of its training as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    predicts_numbers: ClassVar[bool] = False
    """Whether the kind can predict a number; if not, its examples always have labels."""

    seed: int = Field(default=0, ge=0, lt=1 << 63, description="Of the order of the examples and all random numbers.")

    @abstractmethod
    def train(self, examples: Examples) -> bytes:
        """The bytes of a model file. Raises UserError where the examples do not suffice."""

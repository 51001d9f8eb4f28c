"""The kinds of model that can be trained, by the name that `--kind` takes."""

from __future__ import annotations

from datapipe.classifier.fasttext_training import FastTextTrainer
from datapipe.classifier.linear_trainer import LinearTrainer
from datapipe.classifier.training import Trainer

TRAINERS: dict[str, type[Trainer]] = {"linear": LinearTrainer, "fasttext": FastTextTrainer}

"""The mixture file as frozen models. Every error names the file, the line, what was found and what was expected."""

from datapipe.config.execution import ExecutionSpec
from datapipe.config.load import load_mixture, starter_mixture
from datapipe.config.mixture import DocumentsSpec, Mixture, PackSpec, ShardsSpec
from datapipe.config.mixture_schedule import MixtureSpec, PhaseSpec, StrataSpec, WeightPhase
from datapipe.config.sources.source import Source
from datapipe.config.stage_use import StageUse
from datapipe.config.tokenizer_spec import TokenizerSpec, TokenizerTraining
from datapipe.weights import integer_weights, proportions

__all__ = [
    "DocumentsSpec",
    "ExecutionSpec",
    "Mixture",
    "MixtureSpec",
    "PackSpec",
    "PhaseSpec",
    "ShardsSpec",
    "Source",
    "StageUse",
    "StrataSpec",
    "TokenizerSpec",
    "TokenizerTraining",
    "WeightPhase",
    "integer_weights",
    "load_mixture",
    "proportions",
    "starter_mixture",
]

"""The mixture file as frozen models. Every error names the file, the line, what was found and what was expected."""

from datapipe.config.load import load_mixture, starter_mixture
from datapipe.config.mixture import Mixture
from datapipe.config.mixture_schedule import WeightPhase
from datapipe.config.stage_use import StageUse

__all__ = ["Mixture", "StageUse", "WeightPhase", "load_mixture", "starter_mixture"]

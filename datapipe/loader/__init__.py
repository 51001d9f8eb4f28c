"""Batches for trainers as a pure function of the step: snapshot in, NumPy out, no torch, no Ray, no YAML."""

from datapipe.loader.loader import Loader

__all__ = ["Loader"]

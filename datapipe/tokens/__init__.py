"""Encodes text to token ids, trains tokenizers on a sample, and packs documents into rows of equal length."""

from datapipe.tokens.encoder import Encoder

__all__ = ["Encoder"]

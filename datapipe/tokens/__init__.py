"""Text to token ids, tokenizers trained on a sample, and the packing of documents into rows of equal length."""

from datapipe.tokens.encoder import Encoder

__all__ = ["Encoder"]

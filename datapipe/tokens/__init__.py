"""Encodes text to token ids, trains tokenizers on a sample, and packs documents into rows of equal length.

`Encoder` is imported on first use, with the libraries that encode: packing needs none of them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.tokens.encoder import Encoder

__all__ = ["Encoder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from datapipe.tokens.encoder import Encoder

    return Encoder

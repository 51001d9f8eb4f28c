"""Batches for trainers as a pure function of the step: snapshot in, NumPy out, no torch, no Ray, no YAML."""

from typing import TYPE_CHECKING, Any

__all__ = ["Loader"]

if TYPE_CHECKING:
    from datapipe.loader.loader import Loader
else:

    def __getattr__(name: str) -> Any:
        """Imports the loader on first use: a run needs the order of its rows alone."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from datapipe.loader.loader import Loader

        return Loader

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

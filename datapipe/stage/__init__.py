"""The contract of a stage: all that the author of a stage imports.

    from datapipe.stage.base import DocumentBatch, Filter, FilterResult

Names are loaded when they are first used, so that importing one module of this package costs that module alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.stage.base import (
        FieldNames,
        Filter,
        FilterResult,
        InputFile,
        Map,
        OpenInput,
        ReadBatch,
        Reader,
        Rejected,
        Rule,
        Split,
        Stage,
        StageContext,
    )
    from datapipe.stage.documents import DocumentBatch
    from datapipe.stage.global_stage import Global

__all__ = [
    "DocumentBatch",
    "FieldNames",
    "Filter",
    "FilterResult",
    "Global",
    "InputFile",
    "Map",
    "OpenInput",
    "ReadBatch",
    "Reader",
    "Rejected",
    "Rule",
    "Split",
    "Stage",
    "StageContext",
]

_MODULES = {"DocumentBatch": "documents", "Global": "global_stage"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'base')}"), name)

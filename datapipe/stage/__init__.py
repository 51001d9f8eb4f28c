"""The contract of a stage: `from datapipe.stage import DocumentBatch, Filter, FilterResult`.

Each name is imported on first use, so that an import of one module of this package loads no other.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.stage.base import Filter, FilterResult, Map, Rule, Stage, StageContext
    from datapipe.stage.documents import DocumentBatch
    from datapipe.stage.global_stage import Global
    from datapipe.stage.reader import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split

__all__ = [
    "DocumentBatch",
    "FieldNames",
    "FieldsSeen",
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

_READER = ("FieldNames", "FieldsSeen", "InputFile", "OpenInput", "ReadBatch", "Reader", "Rejected", "Split")
_MODULES = {"DocumentBatch": "documents", "Global": "global_stage", **dict.fromkeys(_READER, "reader")}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'base')}"), name)

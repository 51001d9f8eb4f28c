"""What keeps a class of the user's from being a stage."""

from __future__ import annotations

import inspect
from typing import Any

from datapipe.stage.base import Filter, Map, Stage


def why_unusable(stage: Any, kinds: tuple[type[Stage], ...]) -> str:
    """Why no stage can be made of something that the user names; empty where one can.

    Args:
        kinds: the classes of which it may be derived.
    """
    if not inspect.isclass(stage) or not issubclass(stage, kinds) or stage in kinds:
        kind = f"a class derived from {stage.__mro__[1].__name__}" if inspect.isclass(stage) else f"a {type(stage).__name__}"
        return (
            f"found {kind}, expected a function of a document, or a class derived from datapipe.stage.Filter, "
            "datapipe.stage.Map or datapipe.stage.Global"
        )
    if "__init__" in vars(stage):
        return (
            "the class has an __init__ of its own, and a stage is a frozen record of options. Declare options as fields, "
            "`least: int = 3`, and load what they name in open(self, context)"
        )
    if issubclass(stage, (Filter, Map)) and stage.process in (Filter.process, Map.process):
        result = "FilterResult" if issubclass(stage, Filter) else "dict[str, pa.Array]"
        return f"the class has no method process. Define process(self, batch: DocumentBatch) -> {result}"
    return ""

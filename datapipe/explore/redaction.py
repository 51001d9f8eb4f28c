"""The redactions of a source, run over everything of its documents that the page shows.

    text, id, column, excerpt, error  ─▶  normalize.*  ─▶  every redacting stage of the source, in its order  ─▶  what is sent

A document may be dropped before the stage that would have redacted it, and a run redacts no column. So the stages of
`stages/redact/`, and classes that derive from theirs, run over every whole string before it leaves the server: half an address
is not recognised. A redaction that fails withholds the text, and so does a class of the user's that cannot be loaded, which may
be one. Stages with `mode: tag` replace nothing. The normalizations before the last redaction run
first, as in the run: a control character hides an address.
"""

from collections.abc import Sequence
from functools import cache
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import make_keys
from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.credentials import masked
from datapipe.errors import DatapipeError
from datapipe.explore.documents import Inspector
from datapipe.stage.base import Filter, Stage, StageContext
from datapipe.stage.documents import DocumentBatch


class RedactionError(DatapipeError):
    """A redaction failed, so a text cannot be shown."""


class _Redactions(NamedTuple):
    """The redactions of a source, the normalizations before the last of them, and why not all are known; empty if they are."""

    stages: list[tuple[StageUse, Filter]]
    normalizations: list[tuple[StageUse, Stage]]
    unknown: str


class Redactor:
    """The redactions of all sources. Safe for several threads; stages are loaded when a text needs them."""

    def __init__(self, output: Inspector) -> None:
        self._output, self._lock = output, RLock()
        self._of = cache(self._load)

    def redacts(self, source: str) -> bool:
        known = self._of(source)
        return bool(known.stages or known.unknown)

    def redacted(self, source: str, texts: Sequence[str]) -> list[str]:
        """The texts after every redaction of a source, and without credentials of URLs that the mixture holds. Raises
        RedactionError where a stage fails: nothing of the texts may then be shown."""
        with self._lock:
            known = self._of(source)
            if any(texts) and known.unknown:
                raise RedactionError(known.unknown)
            if any(texts) and known.stages:
                keys = make_keys(0, np.arange(len(texts), dtype=np.uint64))
                columns = [keys, pa.array([""] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
                batch = DocumentBatch(pa.record_batch(columns, names=["key", "id", "text"]))
                batch.make_read_only()
                for use, stage in (*known.normalizations, *known.stages):
                    batch = _edited(use, stage, batch)
                texts = batch.texts.to_pylist()
        return [masked(text) if "://" in text else text for text in texts]

    def redacted_text(self, source: str, text: str) -> str:
        return self.redacted(source, [text])[0]

    def is_redaction(self, source: str, use: StageUse) -> bool:
        return any(use.alias == known.alias for known, _ in self._of(source).stages)

    def _load(self, source: str) -> _Redactions:
        stages: list[tuple[StageUse, Filter]] = []
        before, normalizing, unknown = 0, list[StageUse](), ""
        for use in self._output.mixture.stages_of(source):
            if use.name.startswith("normalize."):
                normalizing.append(use)
            elif use.name.startswith("redact.") or ":" in use.name:  # others of the catalogue do not redact
                try:
                    bases = catalogue.stage_class(use.name, use.where).__mro__
                    stage = self._opened(use) if any(base.__module__.startswith("stages.redact.") for base in bases) else None
                except Exception as error:  # of a module of the user's: any
                    unknown = (
                        f"{use.alias} cannot be loaded ({type(error).__name__}), and it may be a redaction, so no text of "
                        f"'{source}' is shown. Start `datapipe browse` where its module is found: in the folder of the run."
                    )
                    continue
                if isinstance(stage, Filter) and stage.mode == "drop":
                    stages.append((use, stage))
                    before = len(normalizing)
        return _Redactions(stages, [(use, self._opened(use)) for use in normalizing[:before]], unknown)

    def _opened(self, use: StageUse) -> Stage:
        stage = catalogue.build_stage(use)
        stage.open(StageContext(name=use.alias, seed=self._output.mixture.seed))
        return stage


def _edited(use: StageUse, stage: Stage, batch: DocumentBatch) -> DocumentBatch:
    try:
        result: Any = stage.process(batch)  # type: ignore[attr-defined]
        texts = (result.columns if isinstance(stage, Filter) else result).get("text")
    except Exception as error:
        raise RedactionError(
            f"{use.alias} failed on this document ({type(error).__name__}), so its text cannot be shown unredacted."
        ) from None
    return batch if texts is None else batch.with_columns({"text": texts})

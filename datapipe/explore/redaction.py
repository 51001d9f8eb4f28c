"""The redactions of a source, run over everything of its documents that the page shows.

    text, id, column, excerpt, error  ─▶  normalize.*  ─▶  every redacting stage of the source, in its order  ─▶  what is sent

A document may be dropped before the stage that would have redacted it, and a column is never redacted by a run. So the stages
of `stages/redact/`, and classes that derive from theirs, run over every string before it leaves the server. They run over whole
strings: an excerpt is cut from the redacted text, since half an address is not recognised. A redaction that fails withholds the
text, and so does a class of the user's that cannot be loaded, which may be one. Stages with `mode: tag` replace nothing in the
run, and nothing here.

A control character in an address hides it from a redaction. So the normalizations before the last redaction run first, as they
do in the run.

Of a long text the beginning is redacted, and `MARGIN` characters less are shown: what lies across the end is not recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import make_keys
from datapipe.config.stage_use import StageUse
from datapipe.credentials import masked
from datapipe.errors import DatapipeError
from datapipe.explore.output import Output
from datapipe.stage.base import Filter, Map, StageContext
from datapipe.stage.documents import DocumentBatch

_PACKAGE = "stages.redact."
_NAME = "redact."
_NORMALIZES = "normalize."

MARGIN = 1 << 16
"""Characters; more than any redaction looks for at once, such as a private key."""


class RedactionError(DatapipeError):
    """A redaction failed, so a text cannot be shown."""


class Redactor:
    """The redactions of all sources. Safe for several threads; stages are loaded when a text needs them."""

    def __init__(self, output: Output) -> None:
        self._output, self._lock = output, Lock()
        self._stages: dict[str, tuple[tuple[StageUse, Filter], ...]] = {}
        self._normalizations: dict[str, tuple[tuple[StageUse, Map], ...]] = {}
        self._unknown: dict[str, str] = {}  # by source, why its redactions are not known

    def redacts(self, source: str) -> bool:
        """Whether the source has a redaction, or may have one."""
        return bool(self._of(source)) or source in self._unknown

    def redacted(self, source: str, texts: Sequence[str]) -> list[str]:
        """The texts after every redaction of a source, and without credentials of URLs that the mixture holds.

        Raises RedactionError where a stage fails: nothing of the texts may then be shown."""
        stages = self._of(source)
        if any(texts) and source in self._unknown:
            raise RedactionError(self._unknown[source])
        if any(texts) and stages:
            with self._lock:
                batch = batch_of(texts)
                for use, stage in (*self._before(source), *stages):
                    batch = _edited(use, stage, batch)
                texts = batch.texts.to_pylist()
        return [masked(text) if "://" in text else text for text in texts]

    def one(self, source: str, text: str) -> str:
        """As `redacted`, of one text."""
        return self.redacted(source, [text])[0]

    def beginning(self, source: str, text: str, most_chars: int) -> str:
        """The redacted beginning of a text, at most `most_chars`."""
        return shown(self.one(source, text[: most_chars + MARGIN]), len(text), most_chars)[:most_chars]

    def is_redaction(self, source: str, use: StageUse) -> bool:
        """Whether a stage of the source is one of its redactions."""
        return any(use.alias == known.alias for known, _ in self._of(source))

    def _of(self, source: str) -> tuple[tuple[StageUse, Filter], ...]:
        if source not in self._stages:
            found: list[tuple[StageUse, Filter]] = []
            for use in self._output.uses(source):
                try:
                    stage = self._redaction(use)
                except Exception as error:  # of a module of the user's: any
                    self._unknown[source] = (
                        f"{use.alias} cannot be loaded ({type(error).__name__}), and it may be a redaction, so no text of "
                        f"'{source}' is shown. Start `datapipe browse` where its module is found: in the folder of the run."
                    )
                    continue
                if stage is not None and stage.mode == "drop":
                    found.append((use, stage))
            self._stages[source] = tuple(found)
        return self._stages[source]

    def _before(self, source: str) -> tuple[tuple[StageUse, Map], ...]:
        """The normalizations of a source before its last redaction."""
        if source not in self._normalizations:
            uses = self._output.uses(source)
            last = max(number for number, use in enumerate(uses) if self.is_redaction(source, use))
            found = [(use, catalogue.build_stage(use)) for use in uses[:last] if use.name.startswith(_NORMALIZES)]
            for use, stage in found:
                stage.open(StageContext(name=use.alias, seed=self._output.mixture.seed))
            self._normalizations[source] = tuple((use, stage) for use, stage in found if isinstance(stage, Map))
        return self._normalizations[source]

    def _redaction(self, use: StageUse) -> Filter | None:
        """The opened stage, if it redacts. Stages of other names in the catalogue do not, and are not loaded."""
        if not (use.name.startswith(_NAME) or ":" in use.name):
            return None
        kind = catalogue.stage_class(use.name, use.where)
        if not any(base.__module__.startswith(_PACKAGE) for base in kind.__mro__):
            return None
        stage = catalogue.build_stage(use)
        assert isinstance(stage, Filter)
        stage.open(StageContext(name=use.alias, seed=self._output.mixture.seed))
        return stage


def shown(redacted: str, num_chars: int, most_chars: int) -> str:
    """The part of a redacted beginning that may be shown.

    Args:
        num_chars: of the whole text; its first `most_chars + MARGIN` were redacted.
    """
    return redacted if num_chars <= most_chars + MARGIN else redacted[: max(len(redacted) - MARGIN, 0)]


def batch_of(texts: Sequence[str]) -> DocumentBatch:
    """Documents of these texts, without other columns."""
    keys = make_keys(0, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array([""] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
    batch = DocumentBatch(pa.record_batch(columns, names=["key", "id", "text"]))
    batch.make_read_only()
    return batch


def _edited(use: StageUse, stage: Filter | Map, batch: DocumentBatch) -> DocumentBatch:
    try:
        texts = (stage.process(batch).columns if isinstance(stage, Filter) else stage.process(batch)).get("text")
    except Exception as error:
        raise RedactionError(
            f"{use.alias} failed on this document ({type(error).__name__}), so its text cannot be shown: what it should "
            f"replace would stand in it."
        ) from None
    return batch if texts is None else batch.with_columns({"text": texts})

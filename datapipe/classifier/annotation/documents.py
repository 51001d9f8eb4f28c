"""Where the documents of an annotation come from: always the output of a run without a tokenizer.

    MIXTURE.yaml     its stages are run, without its tokenizer, into a work folder; run again, nothing runs twice
    OUTPUT           of an earlier run with `tokenizer: none`: read as it is
    files, globs     of any supported format: run without stages

So a model sees the text as the stages leave it, which is what a classifier will see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from datapipe.api import run
from datapipe.errors import UserError
from datapipe.shards.datasets.parts import parts_of_documents
from datapipe.shards.manifest import SNAPSHOT, DocumentsSnapshot, read_manifest
from datapipe.storage import Root

_MIXTURE_ENDINGS = (".yaml", ".yml")
_FILES = "files"


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentInput:
    """What the user names.

    Attributes:
        paths: a mixture, an output, or files and globs.
        source: of the mixture or output; None for all.
        settings: values of the mixture by key path.
        text_field: of files.
        limit: documents of each source to read at most.
        workers: processes; None for one on each core.
    """

    paths: tuple[str, ...]
    source: str | None = None
    settings: Mapping[str, Any] | None = None
    text_field: str = "text"
    limit: int | None = None
    workers: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDocuments:
    """The documents of a snapshot; each call begins a pass over their ids and texts."""

    root: Root
    snapshot: DocumentsSnapshot
    source: str | None

    @property
    def fingerprint(self) -> str:
        return f"{self.snapshot.fingerprint}:{self.source or ''}"

    def __call__(self) -> Iterator[pa.RecordBatch]:
        for part in parts_of_documents(self.root, self.snapshot, self.source, None):
            for batch in part.batches():
                yield batch.select(["id", "text"])


def documents_of(wanted: DocumentInput, work: Path, console: Console) -> RunDocuments:
    """The documents that the user names. Runs stages where they have not run.

    Args:
        work: folder of the run, which is kept.

    Raises:
        UserError: the mixture, the files or the name of the source is wrong.
        DatapipeError: the run failed.
    """
    root = _output(wanted.paths)
    if root is None:
        _run(wanted, work, console.is_terminal)
        root = Root(str(work))
    elif wanted.settings or wanted.limit:
        raise UserError(f"{wanted.paths[0]}: --set and --limit go with a mixture or files; this is the output of a run")
    snapshot = read_manifest(root)
    if not isinstance(snapshot, DocumentsSnapshot):
        raise UserError(
            f"{root.url}: this output holds tokens. Expected one of a run with `tokenizer: none`, or the mixture itself"
        )
    return RunDocuments(root=root, snapshot=snapshot, source=wanted.source)


def _output(paths: Sequence[str]) -> Root | None:
    """The output of a run, where that is what the paths name."""
    if len(paths) != 1 or paths[0].endswith(_MIXTURE_ENDINGS) or any(sign in paths[0] for sign in "*?["):
        return None
    if not Path(paths[0]).is_dir():
        return None
    root = Root(paths[0])
    if not root.exists(SNAPSHOT):
        raise UserError(
            f"{paths[0]}: this folder is no output of a run. Expected a mixture, such an output, or files and globs"
        )
    return root


def _run(wanted: DocumentInput, work: Path, shows_progress: bool) -> None:
    mixture: str | dict[str, Any] = wanted.paths[0]
    if any(path.endswith(_MIXTURE_ENDINGS) for path in wanted.paths):
        if len(wanted.paths) > 1:
            raise UserError(f"found {len(wanted.paths)} inputs and a mixture among them. Expected one mixture, or files alone")
    else:
        files = {"path": list(wanted.paths), "text": wanted.text_field}
        mixture = {"name": "annotate", "output": str(work), "sources": {_FILES: files}}
    settings = dict(wanted.settings or {}) | {"tokenizer": "none"}
    run(mixture, set=settings, output=work, workers=wanted.workers, limit=wanted.limit, progress=shows_progress, replace=True)

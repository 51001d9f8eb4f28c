"""From a mixture to a request: finds the inputs and binds the stages. All I/O of planning is here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from datapipe import catalogue
from datapipe.config.mixture import Mixture
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError
from datapipe.executor.inputs import discover
from datapipe.plan.compile import PlannedSource, Request
from datapipe.plan.inputs import check_hashes, group_splits
from datapipe.plan.tasks import BoundStage
from datapipe.stage import InputFile, Reader, Stage


def prepare(mixture: Mixture, limit: int | None = None) -> Request:
    """The request of a mixture at this moment. Raises UserError for anything that is wrong with it."""
    stages = {name: _bound(mixture, name) for name in mixture.sources}
    files = {name: _discovered(mixture, name) for name in mixture.sources}
    check_hashes({name: [file.path for file, _ in found] for name, found in files.items()})
    sources = {name: _planned(mixture, files[name], stages[name]) for name in mixture.sources}
    return Request(mixture=mixture, sources=sources, tokenizer_content=_tokenizer_content(mixture), limit=limit)


def _bound(mixture: Mixture, name: str) -> tuple[BoundStage, ...]:
    return tuple(bind(use) for use in mixture.stages_of(name))


def bind(use: StageUse) -> BoundStage:
    """A stage of the mixture with its options checked and its digest taken."""
    stage = catalogue.build_stage(use)
    return BoundStage(name=use.alias, stage=stage, digest=stage_digest(stage, use.alias))  # type: ignore[arg-type]


def stage_digest(stage: Stage, name: str) -> str:
    """Code, options and the content of the files that options name."""
    contents = []
    for path in stage.input_files():
        try:
            contents.append(hashlib.sha256(Path(path).read_bytes()).hexdigest())
        except OSError as error:
            raise UserError(f"{name}: cannot read {path}: {error.strerror}. Expected a readable file.") from error
    parts = [catalogue.code_digest(stage), stage.model_dump(mode="json"), contents]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _discovered(mixture: Mixture, name: str) -> list[tuple[InputFile, Reader]]:
    source = mixture.sources[name]
    where = mixture.where("sources", name, "path")

    def reader_for(path: str) -> Reader:
        if source.format == "auto":
            return catalogue.reader_for(path, where)
        return catalogue.build_reader(source.format, mixture.where("sources", name, "format"))

    return discover(name, source.path, reader_for, source.fingerprint, where, source.exclude)


def _planned(mixture: Mixture, files: Iterable[tuple[InputFile, Reader]], stages: tuple[BoundStage, ...]) -> PlannedSource:
    found = list(files)
    readers = {file.path: reader for file, reader in found}
    digests: dict[str, str] = {}
    by_path: dict[str, str] = {}
    for path, reader in readers.items():
        key = f"{type(reader).__module__}:{reader!r}"
        if key not in digests:
            digests[key] = stage_digest(reader, "reader")
        by_path[path] = digests[key]
    groups = group_splits(found, mixture.execution.split_bytes)
    return PlannedSource(groups=tuple(groups), readers=readers, reader_digests=by_path, stages=stages)


def _tokenizer_content(mixture: Mixture) -> bytes:
    path = mixture.tokenizer.path
    if path is None:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{mixture.where('tokenizer', 'path')}: cannot read {path}: {error.strerror}. Expected a tokenizer.json."
        ) from error

"""A stage of a mixture becomes a stage of a run: built, with the files of its options and a digest of all that it depends on.

StageUse ─▶ stage ─▶ its files, each with its digest ─┐
              └─▶ its code, and its options as written ┴─▶ digest, which enters the fingerprints of tasks
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.credentials import masked_urls
from datapipe.dataclass import replace
from datapipe.errors import UserError
from datapipe.records.names import REPORT
from datapipe.records.option_files import OptionFile, paths_in, planned_file
from datapipe.stage.base import Filter, Stage
from datapipe.stage.global_stage import Global
from datapipe.stage.when import When
from datapipe.steps.cut import Cut
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.outages import input_error
from datapipe.storage.root import Root


def bind(use: StageUse) -> BoundStage:
    """A stage of the mixture with its options checked and its digest computed."""
    stage, local = catalogue.stage_and_options(use)
    files = _files(stage, use.alias, local.origins)
    _check_when(use, stage)

    def digest(unseen: Collection[str]) -> str:
        whole = stage_digest(stage, use.alias, unseen, files)
        return _digest_of([whole, use.when]) if use.when else whole

    return BoundStage(
        name=use.alias,
        stage=stage,  # type: ignore[arg-type]
        digest=digest(stage.checks),
        emit_digest=digest(stage.unseen_by_emit()) if isinstance(stage, Global) else "",
        libraries=catalogue.libraries_of(stage),
        files=files,
        when=When.of(use.when) if use.when else None,
    )


def _check_when(use: StageUse, stage: Stage) -> None:
    """Raises UserError where a stage makes the documents that others see, and `when` would leave some of them out."""
    makes = (isinstance(stage, Filter) and stage.extracts) or (isinstance(stage, Global) and stage.makes_contents)
    if use.when and (makes or stage.takes_json):
        raise UserError(
            f"{use.where}.{use.name}: when: the stage makes the texts of all documents, and those outside of `when` would have "
            f"none. Leave `when` out here, and give it to the stages that follow, or make a source of these documents."
        )


def _files(stage: Stage, name: str, origins: Mapping[Path, str]) -> tuple[OptionFile, ...]:
    """The files that the options of a stage name, each once."""
    paths = dict.fromkeys(path for path in paths_in(stage) if path.is_file())
    return tuple(_planned(path, origins.get(path, str(path)), name) for path in paths)


def _planned(path: Path, origin: str, name: str) -> OptionFile:
    try:
        return planned_file(path, origin, name)
    except OSError as error:
        raise UserError(f"{name}: cannot read {origin}: {error.strerror}. Expected a readable file.") from error


def stage_digest(stage: Stage, name: str, unseen: Collection[str] = (), files: Sequence[OptionFile] = ()) -> str:
    """The digest of a stage: its code, its options as they are written but for those in `unseen`, and the content of
    `files`, of those that it declares, and the thresholds of the report that hold."""
    every = {file.path: file for file in files}
    every |= {path: _planned(path, str(path), name) for path in map(Path, stage.input_files()) if path not in every}
    contents = [file.digest for file in sorted(every.values(), key=lambda file: Path(file.origin))]
    if (earlier := _threshold_root(stage)) is not None:
        contents += _thresholds_digest(_report_of(earlier, name))
    options = _canonical(stage.model_dump(mode="python", exclude=set(unseen)), {path: every[path].origin for path in every})
    return _digest_of([catalogue.code_digest(stage), options, contents])


def _digest_of(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _canonical(value: Any, origins: Mapping[Path, str]) -> Any:
    """Option values as JSON that is the same in every process and on every machine. URLs lose their credentials, so that
    a new key runs nothing again."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item, origins) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_canonical(item, origins) for item in value), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return [_canonical(item, origins) for item in value]
    if isinstance(value, Path):
        return masked_urls(origins.get(value, str(value)))
    if isinstance(value, str):
        return masked_urls(value)
    return value if isinstance(value, (int, float, bool, type(None))) else to_jsonable_python(value, fallback=repr)


def with_cut(source: str, bound: BoundStage) -> BoundStage:
    """The stage, with the cut of an earlier run if it keeps a share and names such a run. Raises UserError."""
    earlier = _threshold_root(bound.stage)
    if earlier is None:
        return bound
    try:
        thresholds = json.loads(_report_of(earlier, bound.name))["thresholds"]
        return replace(bound, cut=Cut.from_json(thresholds[source][bound.name]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"sources.{source}: {bound.name}: threshold_from: {earlier.child_url(REPORT)} holds no threshold of "
            f"{bound.name} in {source}. Expected an output of a run in which a source and a stage of these names kept a share."
        ) from error


def _threshold_root(stage: Stage) -> Root | None:
    """The output of the earlier run whose thresholds hold for a filter that keeps a share."""
    share = stage.kept_share() if isinstance(stage, Filter) else None
    return Root(share.threshold_from.rstrip("/")) if share is not None and share.threshold_from else None


def _thresholds_digest(report: bytes) -> list[str]:
    """The digest of the thresholds in a report, which every run there writes again; none where it has none."""
    try:
        thresholds = json.dumps(json.loads(report)["thresholds"], sort_keys=True)
    except (KeyError, TypeError, ValueError):
        return []  # the error comes with the cut
    return [hashlib.sha256(thresholds.encode()).hexdigest()]


def _report_of(earlier: Root, name: str) -> bytes:
    try:
        return earlier.read_bytes(REPORT)
    except OSError as error:
        raise input_error(error, f"{name}: threshold_from", "cannot read", earlier.child_url(REPORT)) from error

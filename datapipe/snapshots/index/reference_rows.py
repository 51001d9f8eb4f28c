"""Finds the rows of earlier runs that the global stages of a mixture compare their documents with.

    dedup.minhash: {against: runs/2023}  ─▶  index of runs/2023  ─▶  its stage with an equal row identity  ─▶  files by table

Rows of two runs are comparable when their stages make them in the same way: `Global.row_identity`
is equal. The names of the stages may differ.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from datapipe.config.mixture import Mixture
from datapipe.errors import UserError
from datapipe.records.names import WORK
from datapipe.records.outputs import ExchangeFile, Tables
from datapipe.snapshots.index.write import Index, check_files, open_index
from datapipe.stage.global_stage import Global
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root, is_remote

_KEEP_WORK = (
    "Keep the work/ folder of an output while other runs compare against it, or make a separate index with `datapipe index`."
)

Stages = Mapping[str, Sequence[BoundStage]]  # the stages of each source


StageKey = tuple[str, str]  # Name and digest of a stage


def find_reference_rows(
    mixture: Mixture, stages: Stages, paths: Mapping[str, Sequence[str]], own: Index | None = None
) -> dict[StageKey, Tables]:
    """The rows of earlier runs that each global stage compares its documents with.

    Args:
        mixture: for its seed and output.
        own: the index of the same output, where files are added to it.
        stages: of every source.
        paths: of the input files of every source.

    Raises UserError when a path holds no index, when none of its stages has comparable rows, or
    when its rows are about files of a source that is compared with it.
    """
    opened: dict[str, Index] = {}
    checked: set[tuple[str, str]] = set()
    urls_of: dict[StageKey, list[str]] = {}
    rows: dict[StageKey, Tables] = {}
    for source, bound_stages in stages.items():
        for bound in bound_stages:
            if not isinstance(bound.stage, Global) or bound.stage.makes_contents:
                continue
            where, key = f"sources.{source}: {bound.name}: against: ", (bound.name, bound.digest)
            urls = earlier_runs([bound])
            if urls_of.setdefault(key, urls) != urls:
                raise UserError(f"{where}other sources give this stage another list. Expected the same list for all sources.")
            for url in urls:
                if url not in opened:
                    _check_not_own(url, mixture, where)
                    opened[url] = open_index(url, where)
                if (url, source) not in checked:
                    _check_no_common_file(opened[url], where, source, paths[source])
                    checked.add((url, source))
            indexes = [*([own] if own is not None else []), *(opened[url] for url in urls)]
            if key not in rows and indexes:
                rows[key] = _tables(mixture.seed, bound, indexes, where)
    return rows


def earlier_runs(stages: Iterable[BoundStage]) -> list[str]:
    """The outputs and indexes that these stages compare their documents with, as absolute paths or URLs."""
    globals_ = (bound.stage for bound in stages if isinstance(bound.stage, Global))
    return list(dict.fromkeys(_absolute(url) for stage in globals_ for url in stage.against))


def _absolute(url: str) -> str:
    return url.rstrip("/") if is_remote(url) else os.path.abspath(url.removeprefix("file://"))


def _check_not_own(url: str, mixture: Mixture, where: str) -> None:
    """Raises UserError for the output of this run, which replaces the index there: the rows of
    earlier documents would be lost."""
    own = Root(_absolute(mixture.output))
    if url in (own.url, own.within(WORK).url):
        raise UserError(
            f"{where}{url} is the output of this run, which replaces the index there with its own. "
            "Give the run another output, or first make a separate index of this output with `datapipe index`."
        )


def _check_no_common_file(index: Index, where: str, source: str, paths: Sequence[str]) -> None:
    """Raises UserError for a file of a compared source that the index is about: its documents would
    have the keys of the new ones."""
    known = {file.hash for file in index.files}
    common = next((path for path in paths if file_hash(source, path) in known), None)
    if common is not None:
        raise UserError(
            f"{where}{index.url} already has rows about the file '{common}' of a source '{source}'. If it is the same file, "
            f"leave it out of this run. If it is another file, give the source another name, such as '{source}-2'."
        )


def _tables(seed: int, bound: BoundStage, indexes: Sequence[Index], where: str) -> Tables:
    identity = cast(Global, bound.stage).row_identity(seed)
    tables: dict[str, dict[str, ExchangeFile]] = {}
    seen: dict[int, tuple[set[str], str]] = {}
    for index in indexes:
        numbers = _comparable_stages(index, bound.name, identity, where)
        _check_same_rows(index, numbers, seen, where)
        for number in numbers:
            for table, outputs in index.of_stage(number).items():
                check_files(index, outputs[:1], _KEEP_WORK)
                tables.setdefault(table, {}).update({output.checksum: output for output in outputs})
    return {table: tuple(outputs.values()) for table, outputs in tables.items()}


def _check_same_rows(index: Index, stages: Sequence[int], seen: dict[int, tuple[set[str], str]], where: str) -> None:
    """Raises UserError when another index has different rows about a file of this one: their documents would have equal
    keys. The same rows may come twice, as from an output and from the index that was made of it. `seen` has by file hash
    the checksums of the rows about the file, and the URL of their index."""
    of_group: dict[int, set[str]] = {}
    for rows in index.rows:
        if rows.stage in stages:
            of_group.setdefault(rows.group, set()).add(rows.output.checksum)
    of_file: dict[int, set[str]] = {}
    for file in index.files:
        of_file.setdefault(file.hash, set()).update(of_group.get(file.group, ()))
    for file in index.files:
        checksums, other_url = seen.get(file.hash, (of_file[file.hash], ""))
        if checksums != of_file[file.hash]:
            raise UserError(
                f"{where}{other_url} and {index.url} both have rows about a file '{file.path}' of a source '{file.source}', "
                "and their rows differ. Leave out one of them. If these are two files, name the source of one run "
                f"'{file.source}-2', and run that mixture again."
            )
    seen.update({file: (checksums, index.url) for file, checksums in of_file.items()})


def _comparable_stages(index: Index, name: str, identity: Mapping[str, Any], where: str) -> list[int]:
    """The numbers of the stages in an index whose rows are comparable; those of this name where
    there are several: they were one stage with other options for other sources."""
    comparable = [number for number, stage in enumerate(index.stages) if stage.identity == identity]
    same_name = [number for number in comparable if index.stages[number].name == name]
    if same_name or len({index.stages[number].name for number in comparable}) == 1:
        return same_name or comparable
    if comparable:
        names = ", ".join(dict.fromkeys(index.stages[number].name for number in comparable))
        raise UserError(
            f"{where}{index.url} has several stages with rows that this stage can be compared with: {names}. "
            "Give this stage one of these names."
        )
    raise UserError(f"{where}{index.url} has no rows that this stage can be compared with. {_why(index, identity)}")


def _why(index: Index, identity: Mapping[str, Any]) -> str:
    same = [stage for stage in index.stages if stage.identity.get("stage") == identity["stage"]]
    if not same:
        names = ", ".join(stage.name for stage in index.stages)
        return f"Its stages are {names}. Run that mixture with this stage as well."
    differing = {stage.name: _differing(stage.identity, identity) for stage in same}
    nearest = min(differing, key=lambda name: len(differing[name]))
    return f"In its {nearest}, {'; '.join(differing[nearest])}. Use the same options in both."


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    return [f"{name} is {_written(there.get(name))} there and {_written(here.get(name))} here" for name in names]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

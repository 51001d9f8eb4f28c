"""What the global stages of a mixture are held against: the rows of earlier runs, found by what they mean.

dedup.minhash: {against: runs/2023}  ─▶  runs/2023: the stage whose rows are made in the same way  ─▶  its files, by table
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from datapipe.config.mixture import Mixture
from datapipe.errors import UserError
from datapipe.index.write import Index, check_there, open_index
from datapipe.ledger.names import WORK
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.splits import file_hash
from datapipe.plan.work import BoundStage, Tables
from datapipe.stage.global_stage import Global
from datapipe.storage import Root, is_remote

Stages = Mapping[str, Sequence[BoundStage]]
"""By source its stages."""


def find_reference_rows(mixture: Mixture, stages: Stages, paths: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Tables]:
    """The rows of earlier runs that global stages are held against, by the stage's name and digest.

    Args:
        mixture: for its seed.
        stages: of every source.
        paths: of the input files of every source.

    Raises UserError where a path holds no index, none of its stages has comparable rows, or it is about files of a source that
    is held against it.
    """
    opened: dict[str, Index] = {}
    apart: set[tuple[str, str]] = set()
    wanted: dict[tuple[str, str], tuple[str, ...]] = {}
    found: dict[tuple[str, str], Tables] = {}
    for source, listed in stages.items():
        for one in listed:
            if not isinstance(one.stage, Global):
                continue
            where = f"sources.{source}: {one.name}: against: "
            urls = tuple(dict.fromkeys(_absolute(url) for url in one.stage.against))
            if wanted.setdefault((one.name, one.digest), urls) != urls:
                raise UserError(f"{where}other sources have this stage with another list. Give all of them the same.")
            for url in urls:
                if url not in opened:
                    _check_not_own(url, mixture, where)
                    opened[url] = open_index(url, where)
                if (url, source) not in apart:
                    _check_apart(opened[url], where, source, paths[source])
                    apart.add((url, source))
            if (one.name, one.digest) not in found and urls:
                indexes = [opened[url] for url in urls]
                found[one.name, one.digest] = _tables(mixture.seed, one, indexes, where)
    return found


def earlier_runs(stages: Iterable[BoundStage]) -> list[str]:
    """The outputs and indexes that these stages are held against, from wherever they are looked for."""
    return list(dict.fromkeys(_absolute(url) for one in stages if isinstance(one.stage, Global) for url in one.stage.against))


def _absolute(url: str) -> str:
    return url.rstrip("/") if is_remote(url) else os.path.abspath(url.removeprefix("file://"))


def _check_not_own(url: str, mixture: Mixture, where: str) -> None:
    """Raises UserError for the output of this very run, whose index goes when the run ends: what is held there would be
    forgotten, and nothing would say so."""
    own = Root(_absolute(mixture.output))
    if url in (own.url, own.within(WORK).url):
        raise UserError(
            f"{where}{url} is the output of this run, which puts an index of its own documents in the place of what is there. "
            "Give the run another output, or make an index of this one first with `datapipe index`."
        )


def _check_apart(index: Index, where: str, source: str, paths: Sequence[str]) -> None:
    """Raises UserError for a file of a source that is in the index too: its documents would be told from themselves by nothing.
    Sources that are held against other rows, or against none, may be in it."""
    known = {one.hash for one in index.files}
    again = next((path for path in paths if file_hash(source, path) in known), None)
    if again is not None:
        raise UserError(
            f"{where}{index.url} is about the file '{again}' of a source '{source}' too. If that is the same file, "
            f"leave it out here; if it is another one, name the source otherwise, such as '{source}-2'."
        )


def _tables(seed: int, bound: BoundStage, indexes: Sequence[Index], where: str) -> Tables:
    identity = cast(Global, bound.stage).row_identity(seed)
    tables: dict[str, dict[str, ExchangeFile]] = {}
    seen: dict[int, tuple[set[str], str]] = {}
    for index in indexes:
        numbers = _numbers(index, bound.name, identity, where)
        _check_once(index, numbers, seen, where)
        for number in numbers:
            for name, outputs in index.of_stage(number).items():
                check_there(index, outputs)
                tables.setdefault(name, {}).update({one.checksum: one for one in outputs})
    return {name: tuple(outputs.values()) for name, outputs in tables.items()}


def _check_once(index: Index, stages: Sequence[int], seen: dict[int, tuple[set[str], str]], where: str) -> None:
    """Raises UserError where another index has other rows about a file of this one: their documents would have the same keys.
    The same rows may come twice, as from an output and the index that was made of it.

    Args:
        seen: by the hash of a file, the checksums of the rows that are about it, and whose they are; added to.
    """
    of_group: dict[int, set[str]] = {}
    for one in index.rows:
        if one.stage in stages:
            of_group.setdefault(one.group, set()).add(one.output.checksum)
    own: dict[int, set[str]] = {}
    for file in index.files:
        own.setdefault(file.hash, set()).update(of_group.get(file.group, ()))
    for file in index.files:
        rows, other = seen.get(file.hash, (own[file.hash], ""))
        if rows != own[file.hash]:
            raise UserError(
                f"{where}{other} and {index.url} are both about a file '{file.path}' of a source '{file.source}', and say "
                "different things of it. Leave out one of them; if these are two files, name the source of one run "
                f"'{file.source}-2', and run that mixture again."
            )
    seen.update({number: (rows, index.url) for number, rows in own.items()})


def _numbers(index: Index, name: str, identity: Mapping[str, Any], where: str) -> list[int]:
    """Which of the index's stages have rows that mean the same; by name where they have several names. Those of one name were
    one stage with other options for other sources, each with the documents of its own."""
    alike = [number for number, one in enumerate(index.stages) if one.identity == identity]
    named = [number for number in alike if index.stages[number].name == name]
    if len({index.stages[number].name for number in alike}) == 1 or named:
        return named or alike
    there = f"{where}{index.url}"
    if alike:
        names = ", ".join(dict.fromkeys(index.stages[number].name for number in alike))
        raise UserError(
            f"{there} has several stages that this one could be held against: {names}. Name this one as one of them."
        )
    raise UserError(f"{there} has no rows that this stage's could be held against. {_why(index, identity)}")


def _why(index: Index, identity: Mapping[str, Any]) -> str:
    """What tells the stages of an index from the one that is looked for."""
    same = [one for one in index.stages if one.identity.get("stage") == identity["stage"]]
    if not same:
        return f"It was made by {', '.join(one.name for one in index.stages)}. Run that mixture with this stage, too."
    differing = {one.name: _differing(one.identity, identity) for one in same}
    nearest = min(differing, key=lambda name: len(differing[name]))
    return f"Of its {nearest}, {'; '.join(differing[nearest])}. Make them the same, here or there."


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    return [f"{name} is {_written(there.get(name))} there and {_written(here.get(name))} here" for name in names]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""The folders of additions: which files each was begun with, and which of them an output still needs.

additions/00001/files.json    the choice, before anything runs: a run that was stopped goes on with it
additions/00001/              an output of its own: its tasks, index and shards
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from datapipe.errors import DatapipeError
from datapipe.records.names import WORK
from datapipe.shards.manifest import Snapshot, has_snapshot, read_snapshot
from datapipe.shards.snapshots import ADDITIONS, folder_of, published_additions, read_note
from datapipe.storage.root import Root

_CHOICE = "files.json"
_OF_TAKEDOWNS = {"removed", "lists", "fingerprint"}


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Files that are added together.

    Attributes:
        number: of its folder, from 1.
        base: fingerprint of the snapshot that it is added to.
        files: by source, paths as the source lists them.
    """

    number: int
    base: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def folder(self) -> str:
        return f"{ADDITIONS}/{self.number:05d}"


def begun_addition(root: Root, base: str) -> Addition | None:
    """The addition to a snapshot that a run has begun, and not published; None where there is none."""
    number = _last_number(root)
    addition = _read(root, number) if number else None
    return addition if addition is not None and is_base(root, addition.base, base) else None


def is_base(root: Root, base: str, newest: str) -> bool:
    """Whether the snapshot that an addition was begun for is the newest one, or was until documents were taken down."""
    if base == newest or not has_snapshot(root, base):
        return base == newest
    before, after = read_snapshot(root, base), read_snapshot(root, newest)
    is_same = before.model_dump(exclude=_OF_TAKEDOWNS) == after.model_dump(exclude=_OF_TAKEDOWNS)
    return is_same and before.shards == after.shards


def _read(root: Root, number: int) -> Addition | None:
    def made(content: Any) -> Addition:
        files = {str(name): tuple(map(str, paths)) for name, paths in content["files"].items()}
        return Addition(number=number, base=str(content["base"]), files=files)

    remedy = (
        "It lists the files of an addition. Delete the folder, and follow again: the addition is then chosen and built anew."
    )
    return read_note(root, f"{ADDITIONS}/{number:05d}/{_CHOICE}", made, remedy, DatapipeError)


def begin_addition(root: Root, base: str, files: Mapping[str, tuple[str, ...]]) -> Addition:
    """Notes the choice of an addition. A run that is stopped after this goes on with these files."""
    addition = Addition(number=_last_number(root) + 1, base=base, files=files)
    content = {"base": base, "files": {name: list(paths) for name, paths in sorted(files.items())}}
    root.write_atomic(f"{addition.folder}/{_CHOICE}", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return addition


def addition_folders(root: Root) -> list[str]:
    """The folders of all additions, in their order: listed by themselves, not with the files in them, which are many."""
    return [f"{ADDITIONS}/{name}" for name in root.within(ADDITIONS).folders() if name.isdigit()]


def _last_number(root: Root) -> int:
    begun = (folder for folder in reversed(addition_folders(root)) if root.exists(f"{folder}/{_CHOICE}"))
    return next((int(PurePosixPath(folder).name) for folder in begun), 0)


def unneeded_files(root: Root, kept: Iterable[Snapshot]) -> list[tuple[str, int]]:
    """Path and bytes of the files of additions that no kept snapshot has, that no later addition is compared with, and that no
    run goes on with.

    Args:
        kept: the snapshots that stay.
    """
    files = [(path, size) for path, size in root.list_files(ADDITIONS) if not path.startswith(f"{ADDITIONS}/{WORK}/")]
    if not files:
        return []
    newest = read_snapshot(root)
    begun = begun_addition(root, newest.fingerprint)
    needed = {*published_additions(root, newest), *([] if begun is None else [begun.folder])}
    needed |= {folder_of(entry.path) for snapshot in kept for entry in snapshot.shards}
    return [(path, size) for path, size in files if folder_of(path) not in needed]

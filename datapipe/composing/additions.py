"""The folders of additions: which files each was begun with, and which of them an output still needs.

additions/00001/files.json    the choice, before anything runs: a run that was stopped goes on with it
additions/00001/              an output of its own: its tasks, index and shards
snapshots/FINGERPRINT/additions.json     the folders that a snapshot is made of
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from datapipe.errors import DatapipeError
from datapipe.ledger.names import ADDED
from datapipe.shards.manifest import Manifest, has_snapshot, read_manifest, snapshot_folder
from datapipe.storage import Root, parquet_table

ADDITIONS = "additions"
_CHOICE = "files.json"
_OF_TAKEDOWNS = {"removed", "fingerprint"}


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
    if not number:
        return None
    addition = _read(root, number)
    return addition if is_base(root, addition.base, base) else None


def is_base(root: Root, base: str, newest: str) -> bool:
    """Whether the snapshot that an addition was begun for is the newest one, or was until documents were taken down."""
    if base == newest or not has_snapshot(root, base):
        return base == newest
    before, after = read_manifest(root, base), read_manifest(root, newest)
    return before.model_dump(exclude=_OF_TAKEDOWNS) == after.model_dump(exclude=_OF_TAKEDOWNS)


def _read(root: Root, number: int) -> Addition:
    path = f"{ADDITIONS}/{number:05d}/{_CHOICE}"
    try:
        content = json.loads(root.read_bytes(path))
        files = {str(name): tuple(map(str, paths)) for name, paths in content["files"].items()}
        return Addition(number=number, base=str(content["base"]), files=files)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DatapipeError(
            f"{root.child_url(path)}: the file was edited or damaged: {error}. It lists the files of an addition. Delete the "
            f"folder, and follow again: the addition is then chosen and built anew."
        ) from error


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


def published_additions(root: Root) -> list[str]:
    """The folders of the additions that the newest snapshot is made of. Those that kept no document are among them, since their
    rows tell of what was dropped; those that were built and never published are not."""
    newest = read_manifest(root)
    try:
        return [str(folder) for folder in json.loads(root.read_bytes(f"{snapshot_folder(newest.fingerprint)}/{ADDED}"))]
    except FileNotFoundError:  # no addition, or a version of datapipe that did not note them
        return sorted({_folder(entry.path) for entry in newest.data_files if entry.path.startswith(f"{ADDITIONS}/")})
    except (ValueError, TypeError) as error:
        raise DatapipeError(
            f"{root.child_url(snapshot_folder(newest.fingerprint))}/{ADDED}: the file was edited or damaged: {error}. It lists "
            f"the folders of the additions in this snapshot. Restore it, or build anew with `datapipe run --repack`."
        ) from error


def files_of(root: Root, path: str) -> set[tuple[str, str]]:
    """Source and path of the files that a table names."""
    table = parquet_table(root.read_bytes(path), ["source", "path"])
    return set(zip(table.column("source").to_pylist(), table.column("path").to_pylist()))


def unneeded_files(root: Root, kept: Iterable[Manifest]) -> list[tuple[str, int]]:
    """Path and bytes of the files of additions that no kept snapshot has, that no later addition is compared with, and that no
    run goes on with.

    Args:
        kept: the snapshots that stay.
    """
    files = root.list_files(ADDITIONS)
    if not files:
        return []
    begun = begun_addition(root, read_manifest(root).fingerprint)
    needed = {*published_additions(root), *([] if begun is None else [begun.folder])}
    needed |= {_folder(entry.path) for snapshot in kept for entry in snapshot.data_files}
    return [(path, size) for path, size in files if _folder(path) not in needed]


def _folder(path: str) -> str:
    """The first two folders of a path: "additions/00001"."""
    return "/".join(path.split("/", 2)[:2])

"""The folder of an export, or of an index: empty, unfinished, or whole, and of what.

    _UNFINISHED ─▶ data ─▶ the files that readers begin with ─▶ _EXPORTED ─▶ _UNFINISHED is deleted

`_UNFINISHED` holds the request, from before the first file until after the last: a folder with it
is no export. `_EXPORTED` holds the request, the result, and the sizes of the data files. So the
same command goes on after a kill, by deleting what the killed one left and writing all files, and
marks a complete export. Any other folder that is not empty is refused.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.machine.files import UNFINISHED
from datapipe.records.names import SNAPSHOT
from datapipe.shards.snapshot_folder import read_note
from datapipe.storage.root import Root

MARK, RECORD = "_UNFINISHED", "_EXPORTED"

_ABOUT = re.compile(
    r"README\.md|croissant\.json|mixture\.yaml|snapshot\.json|tokenizer\.json|(files|removed)\.parquet"
    r"|index\.json|rows/\d{6,}-\w+\.exchange(\.taken(\.link)?)?"
)
_DATA = re.compile(
    r"data/(train|validation)-\d+\.(parquet|jsonl\.zst)"
    r"|(train|validation)/(index\.json|shard\.\d+\.mds(\.zstd)?)"
    r"|shards/[^/]+/[\w.-]+\.(arrow|parquet)|lists/[0-9a-f]{32}\.parquet"
    r"|[^/]+/(train|validation)(-\d+)?\.(bin|idx)"
)


_LOCK = re.compile(r"work/lock(\.json)?")  # of an index, which is made under a lock


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFolder:
    """The folder of an export, and what is asked for."""

    root: Root | None  # of the snapshot, below which nothing is written; None where there is none
    target: Root
    # what the files follow from, as data that JSON holds: the snapshot, and the options
    request: Mapping[str, Any]

    def begin(self) -> Any:
        """Makes the folder ready. Returns the result of this export where it is whole already, else None.
        Raises UserError for a folder with anything else: another export, whole or not, or other files."""
        whole, target = self.check(), self.target
        if whole is not None:
            target.delete(MARK)
        else:
            target.write_atomic(MARK, self._text(self.request))
            others = [path for path in self._paths() if path != MARK]
            for path in sorted(others, key=lambda path: _ABOUT.fullmatch(path) is None):
                target.delete(path)
        return whole

    def check(self) -> Any:
        """As `begin`, without a change."""
        unfinished, whole = (read_note(self.target, path, dict, "Delete the folder.", UserError) for path in (MARK, RECORD))
        if unfinished is not None:
            self._check_same(unfinished, "an unfinished export")
        if whole is not None:
            self._check_same(whole.get("request", whole), "a whole export")
            self._check_files(whole["files"])
            return whole["result"]
        if unfinished is None:
            check_target(self.root, self.target)
        for path in self._paths():
            if not any(own.fullmatch(path) for own in (_ABOUT, _DATA, UNFINISHED)) and path != MARK:
                raise UserError(f"--to {self.target.url}: holds {path} beside an unfinished export. Move it away")
        return None

    def _paths(self) -> list[str]:
        return [path for path, _ in self.target.list_files("") if not _LOCK.fullmatch(path)]

    def end(self, result: Any) -> None:
        """Marks the export as whole. `result` is data that JSON holds, which `begin` returns from now on."""
        data = {path: size for path, size in self.target.list_files("") if _DATA.fullmatch(path)}
        record = {"request": self.request, "result": result, "files": data}
        self.target.write_atomic(RECORD, self._text(record))
        self.target.delete(MARK)

    @staticmethod
    def _text(content: Mapping[str, Any]) -> bytes:
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()

    def _check_same(self, found: Mapping[str, Any], what: str) -> None:
        names = [name for name in {**self.request, **found} if found.get(name) != self.request.get(name)]
        if names:
            others = ", ".join(
                f"{name} {_short(found.get(name))} in place of {_short(self.request.get(name))}" for name in names
            )
            raise UserError(
                f"--to {self.target.url}: holds {what} of something else: {others}. Run that command again, or give an empty "
                f"folder, or one that does not exist yet"
            )

    def _check_files(self, files: Mapping[str, int]) -> None:
        sizes = dict(self.target.list_files(""))
        wrong = next((path for path, size in files.items() if sizes.get(path) != size), None)
        if wrong is not None:
            found = f"has {sizes[wrong]:,} bytes, expected {files[wrong]:,}" if wrong in sizes else "is gone"
            raise UserError(
                f"--to {self.target.url}: holds this export, but {wrong} {found}. Delete the folder, and run the same command "
                f"again"
            )


def is_whole(target: Root) -> bool:
    """Whether a folder holds a whole export."""
    return target.exists(RECORD) and not target.exists(MARK)


def _short(value: Any) -> str:
    return "none" if value is None else f"'{value[:12]}'" if isinstance(value, str) else json.dumps(value)


def check_target(root: Root | None, target: Root) -> None:
    """Raises UserError for anything but an empty folder outside of the snapshot, or one that does not exist yet."""
    other = target if root is None else root
    same_store = root is not None and (target.local is None) == (root.local is None)
    if same_store and f"{target.location}/".startswith(f"{other.location}/"):
        raise UserError(f"--to {target.url} is inside the snapshot, which an export does not change. Give a folder outside")
    if target.local is not None and target.local.is_file():
        raise UserError(f"--to {target.url}: a file. Expected an empty folder, or one that does not exist yet")
    if target.local is not None:
        _check_folder(target.url, target.local)
    existing = [path for path, _ in target.list_files("") if not (UNFINISHED.fullmatch(path) or _LOCK.fullmatch(path))]
    if existing:
        raise UserError(
            f"--to {target.url}: not empty: it holds {existing[0]} and {len(existing) - 1} more files. "
            f"Expected an empty folder, or one that does not exist yet"
        )


def _check_folder(url: str, folder: Path) -> None:
    """Raises UserError for a folder below another snapshot (links resolved) or one that cannot be written. Creates it."""
    resolved = folder.resolve()
    for above in (resolved, *resolved.parents):
        if (above / SNAPSHOT).is_file() and above != resolved:
            raise UserError(
                f"--to {url} is inside the snapshot {above}, which an export does not change. Give a folder outside"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--to {url}: cannot be written: {error.strerror}. Expected a writable folder") from error

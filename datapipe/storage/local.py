"""Lists a local folder: every file with its size.

Four times as fast as Arrow's listing. Four threads look at many folders, since a disk and a network file system answer several
requests at once: 60,000 files in 20,000 folders take 1.4 s where the system does not have them in its cache, and 0.35 to 0.4 s
where it has. One thread takes 2.3 and 0.3 s (November 2026).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

_THREADS = 4
_FOLDERS_AT_ONCE = 256
"""That a thread takes."""

_Folder = tuple[str, str]
"""A folder's path, and what the paths of its files begin with."""


def local_files(folder: Path, prefix: str, *, recursive: bool) -> list[tuple[str, int]]:
    """(path, bytes) of the files in a folder, or anywhere below it, in no order. Each path begins with `prefix` in place of the
    folder. Files that are deleted meanwhile, and a folder that is not there, are left out."""
    files, folders = _files_and_folders([(str(folder), prefix)])
    with ThreadPoolExecutor(_THREADS) as pool:  # starts no thread before it gets work
        while folders and recursive:
            parts = [folders[start : start + _FOLDERS_AT_ONCE] for start in range(0, len(folders), _FOLDERS_AT_ONCE)]
            folders = []
            for found, below in (map if len(parts) == 1 else pool.map)(_files_and_folders, parts):
                files += found
                folders += below
    return files


def _files_and_folders(folders: Sequence[_Folder]) -> tuple[list[tuple[str, int]], list[_Folder]]:
    """What is directly in the folders."""
    files: list[tuple[str, int]] = []
    below: list[_Folder] = []
    for folder, prefix in folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    below.append((entry.path, f"{prefix}{entry.name}/"))
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        files.append((prefix + entry.name, status.st_size))
    return files, below

"""The Hugging Face Hub, `hf://datasets/OWNER/NAME[@REVISION]/path`, through huggingface_hub's file system.

    hf://datasets/me/data/*.parquet ─▶ the commit of the revision, when planning ─▶ hf://datasets/me/data@COMMIT/*.parquet

A branch moves and a commit does not, so all tasks of a run read one commit, and the commit is the stamp of a file. The token
is that of huggingface_hub: HF_TOKEN, or of `hf auth login`. Everything printed masks it.
"""

import errno
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa

from datapipe.credentials import remember
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.machine.libraries import require
from datapipe.storage.local import FileState

_SCHEME = "hf://"
_NOT_FOUND = (
    "the Hub has no such data set or revision, or this user may not read it. Check the name; for a private or gated one, set "
    "HF_TOKEN or run `hf auth login`"
)
_COMMIT = re.compile(r"hf://[^@]*@([0-9a-f]{40})(?:/|$)")
_REVISION = re.compile(r"(hf://[^@]*)@(?:refs/(?:convert|pr)/[^/]+|[^/]*)")
_WILD = re.compile(r"[*?\[]")


def is_hub(url: str) -> bool:
    return url.startswith(_SCHEME)


def commit_of(url: str) -> str | None:
    found = _COMMIT.match(url)
    return None if found is None else found[1]


def without_revision(url: str) -> str:
    """A URL or pattern of the Hub without its revision; any other unchanged."""
    return _REVISION.sub(r"\1", url, count=1) if is_hub(url) else url


def pinned(url: str) -> str:
    """A URL or pattern of the Hub with the commit of its revision; one of a bucket, which has no revisions, unchanged."""
    require("huggingface_hub", url)
    from huggingface_hub import HfApi, HfFileSystem, constants, get_token

    remember(get_token() or "", "${HF_TOKEN}", "")
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"cannot open {url}: HF_HUB_OFFLINE is set, so the Hub is not asked. Unset it; or download the files where the Hub "
            f"can be reached, with `hf download`, and name their folder here."
        )
    if commit_of(url) is not None:
        return url
    wild = _WILD.search(url)
    stop = url.rindex("/", 0, wild.start()) if wild else len(url)
    folder, below = url[:stop], url[stop:]
    try:
        resolved: Any = HfFileSystem().resolve_path(folder)
    except FileNotFoundError as error:  # its text has several lines
        raise FileNotFoundError(errno.ENOENT, _NOT_FOUND, folder) from error
    if not hasattr(resolved, "repo_type"):
        return url
    commit = HfApi().repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=resolved.revision).sha
    kind = "" if resolved.repo_type == "model" else f"{resolved.repo_type}s/"
    inside = f"/{resolved.path_in_repo}" if resolved.path_in_repo else ""
    return f"{_SCHEME}{kind}{resolved.repo_id}@{commit}{inside}{below}"


@dataclass(frozen=True)
class HubFiles:
    """Files of the hub to read, by URL, with the methods of a `Bucket`."""

    name = "hub"

    @cached_property
    def _files(self) -> Any:
        require("huggingface_hub", _SCHEME)
        from huggingface_hub import HfFileSystem

        return HfFileSystem()

    def state(self, url: str) -> FileState:
        found = self._files.info(url)
        if found["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
        return FileState(num_bytes=found["size"])

    def is_folder(self, url: str) -> bool:
        return self._files.isdir(url)

    def open(self, url: str, num_bytes: int | None = None) -> pa.NativeFile:
        return pa.PythonFile(self._files.open(url, "rb"), mode="r")

    def read(self, url: str) -> bytes:
        return self._files.cat_file(url)

    def entries(self, folder: str, *, recursive: bool) -> Iterator[tuple[str, FileState | None]]:
        depth = None if recursive else 1
        found = self._files.find(folder, maxdepth=depth, withdirs=True, detail=True) if self.is_folder(folder) else {}
        for path, info in found.items():
            if path.strip("/") != folder.removeprefix(_SCHEME):
                yield f"{_SCHEME}{path}", FileState(num_bytes=info["size"]) if info["type"] == "file" else None

"""Uploads an export to a data set of the Hugging Face hub: `datapipe export OUTPUT … --to hf://datasets/OWNER/NAME`.

    OUTPUT ─▶ export, in a folder beside OUTPUT ─▶ files that the hub lacks, in batches ─▶ a commit each ─▶ the card, last

Files on the hub are compared by content, so a second call, also after a kill, uploads only what is missing. A data file of an
earlier export that this one does not have is deleted with the last commit, since a pattern of the card would match it. Other
files of the data set stay. The token, HF_TOKEN or that of `hf auth login`, is never printed.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datapipe.credentials import masked, remember
from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError, UserError
from datapipe.machine.libraries import require
from datapipe.quantities import counted, size
from datapipe.shards.snapshots import DATA_PATH
from datapipe.snapshots.export.folder import RECORD
from datapipe.storage.root import Root

_URL = re.compile(r"hf://datasets/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?/?", re.ASCII)
_DATA = re.compile(r"data/(train|validation)-\d{5}(-of-\d{5})?\.(parquet|jsonl\.zst)")
"""Data files of exports in the hub's layout; `DATA_PATH` has those of shards."""

MOST_FILES, MOST_BYTES = 50, 5 << 30
"""Of one commit. A commit that fails is repeated whole, and the hub advises at most 100 files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubTarget:
    """A data set on the hub: "OWNER/NAME", and the branch."""

    name: str
    revision: str = "main"


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """What an upload did, in files; `bytes` are those that were sent."""

    sent: int
    bytes: int
    there: int
    deleted: int
    url: str


def hub_target(url: str) -> HubTarget:
    """The data set that a URL names. Raises UserError for another URL, and without a token."""
    found = _URL.fullmatch(url)
    if found is None:
        raise UserError(f"--to {url}: expected hf://datasets/OWNER/NAME, or hf://datasets/OWNER/NAME@BRANCH")
    require("huggingface_hub", f"--to {url}")
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise UserError(f"--to {url}: no token of the hub. Set HF_TOKEN to one that may write, or run `hf auth login`")
    remember(token, "${HF_TOKEN}", "")
    return HubTarget(name=found[1], revision=found[2] or "main")


@contextmanager
def staged(root: Root, target: HubTarget, request: Mapping[str, Any], write: Callable[[Root], None]) -> Iterator[Path]:
    """The folder of an export that `request` identifies, written unless a killed call has written it, and deleted when the
    block ends well. It is beside the output, and of one in an object store below the working directory."""
    beside = Path(f"{root.local}-upload") if root.local is not None else Path("upload")
    folder = beside / target.name.replace("/", "--")
    done, content = folder / "written.json", json.dumps([request, target.revision], sort_keys=True)
    if not done.is_file() or done.read_text(encoding="utf-8") != content:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write(Root(str(folder / "files")))
        done.write_text(content, encoding="utf-8")
    yield folder / "files"
    shutil.rmtree(folder)
    if not any(beside.iterdir()):
        beside.rmdir()


def upload(folder: Path, target: HubTarget, *, is_private: bool, emit: Callable[[str], None]) -> Uploaded:
    """Uploads a folder; `is_private` holds for a data set that this call creates.
    Raises UserError where the hub refuses it, and DatapipeError where it fails."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _upload(folder, target, is_private, emit)
    except (OSError, RuntimeError) as error:  # the library raises RuntimeError for a file that does not get through
        text = masked(" ".join(f"{error} {error.__cause__ or ''}".split()))
        if isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", None) in (401, 403, 404):
            refused = f"the hub refuses {target.name}: {text}. Check the name, and that the token may write there"
            raise UserError(refused) from error
        raise DatapipeError(f"upload to {target.name}: {text}. Run the same command again: what is there stays") from error


def _upload(folder: Path, target: HubTarget, is_private: bool, emit: Callable[[str], None]) -> Uploaded:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # a line after each commit reports the progress
    api = HfApi()
    created = api.create_repo(target.name, repo_type="dataset", private=is_private, exist_ok=True)
    if target.revision != "main":
        api.create_branch(target.name, branch=target.revision, repo_type="dataset", exist_ok=True)
    listed = api.list_repo_tree(target.name, recursive=True, repo_type="dataset", revision=target.revision)
    there = {file.path: file for file in listed if isinstance(file, RepoFile)}
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    missing = [path for path in paths if path not in there or not _is_same(folder / path, there[path])]
    stale = sorted(path for path in there.keys() - set(paths) if _DATA.fullmatch(path) or DATA_PATH.fullmatch(path))
    data = [path for path in missing if "/" in path]
    batches = [*_batches(folder, data), [path for path in missing if "/" not in path]]
    num_sent = num_bytes = 0
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        operations: list[Any] = [CommitOperationAdd(path, str(folder / path)) for path in batch]
        operations += [CommitOperationDelete(path) for path in stale] if is_last else []
        if not operations:
            continue
        message = "Add the card" if is_last else f"Add {counted(len(batch), 'data file')}"
        api.create_commit(
            target.name, operations, commit_message=message, repo_type="dataset", revision=target.revision, num_threads=4
        )
        num_sent += len(batch)
        num_bytes += sum((folder / path).stat().st_size for path in batch)
        emit(f"  {counted(num_sent, 'file')} of {len(missing):,} uploaded, {size(num_bytes)}")
    return Uploaded(
        sent=num_sent, bytes=num_bytes, there=len(paths) - len(missing), deleted=len(stale), url=masked(str(created))
    )


def _batches(folder: Path, paths: list[str]) -> Iterator[list[str]]:
    """Files of one commit after another: at most `MOST_FILES`, and `MOST_BYTES` unless one file has more."""
    batch: list[str] = []
    num_bytes = 0
    for path in paths:
        file_bytes = (folder / path).stat().st_size
        if batch and (len(batch) == MOST_FILES or num_bytes + file_bytes > MOST_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(path)
        num_bytes += file_bytes
    if batch:
        yield batch


def _is_same(path: Path, file: Any) -> bool:
    """Whether a `RepoFile` has this content: by SHA-256, a small file by the digest of git."""
    if file.lfs is None:
        return hashlib.sha1(f"blob {path.stat().st_size}\0".encode() + path.read_bytes()).hexdigest() == file.blob_id
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.lfs.sha256

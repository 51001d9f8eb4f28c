"""The additions that a snapshot is made of: outputs of their own below the output, each of new files.

additions/00001/                         an output of its own: its tasks, index and shards
snapshots/FINGERPRINT/additions.json     the folders that a snapshot is made of
"""

from __future__ import annotations

import json

from datapipe.errors import DatapipeError
from datapipe.shards.manifest import Manifest, read_manifest, snapshot_folder
from datapipe.storage import Root

ADDITIONS = "additions"
ADDED = "additions.json"


def folder_of(path: str) -> str:
    """The folder of the addition that a file belongs to: "additions/00001"."""
    return "/".join(path.split("/", 2)[:2])


def published_additions(root: Root, snapshot: Manifest) -> list[str]:
    """The folders of the additions that a snapshot is made of; none where nothing was added. Those that kept no document are
    among them, since their rows tell of what was dropped; those that were built and never published are not. Raises
    DatapipeError for a damaged list."""
    path = f"{snapshot_folder(snapshot.fingerprint)}/{ADDED}"
    try:
        return [str(folder) for folder in json.loads(root.read_bytes(path))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise DatapipeError(
            f"{root.child_url(path)}: the file was edited or damaged: {error}. It lists the folders of the additions in this "
            f"snapshot. Restore it, or build anew with `datapipe run --repack`."
        ) from error


def with_additions(url: str) -> list[str]:
    """An output with the additions that its newest snapshot is made of, as paths or URLs; anything else alone."""
    root = Root(url.rstrip("/"))
    try:
        has_any = bool(root.within(ADDITIONS).folders())
    except OSError:  # no such bucket, or no answer: whoever reads it tells
        has_any = False
    return [url, *map(root.child_url, published_additions(root, read_manifest(root)))] if has_any else [url]

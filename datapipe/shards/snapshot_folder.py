"""The folders of snapshots in an output: their names, and the small files beside a manifest."""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from datapipe.errors import DatapipeError, SnapshotError
from datapipe.records.names import SNAPSHOT, SNAPSHOTS
from datapipe.storage.root import Root

PUBLICATION = "publication.json"
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_LENGTH_FOLDER = re.compile(r"(?P<output>.+)/length-(?P<length>\d+)/?")
_Note = TypeVar("_Note")


def snapshot_folder(fingerprint: str) -> str:
    return f"{SNAPSHOTS}/{fingerprint}"


def folder_names(root: Root) -> list[str]:
    """The fingerprints of the snapshots that have a folder in an output, sorted. Some may be unfinished."""
    return [name for name in root.within(SNAPSHOTS).folders() if _FINGERPRINT.fullmatch(name)]


def fingerprints(root: Root) -> list[str]:
    """The fingerprints of the snapshots whose folder has a manifest, sorted."""
    return [name for name in folder_names(root) if has_snapshot(root, name)]


def has_snapshot(root: Root, fingerprint: str) -> bool:
    return root.exists(f"{snapshot_folder(fingerprint)}/{SNAPSHOT}")


def find_snapshot(root: Root, name: str) -> str:
    """The fingerprint that `name` begins. Raises SnapshotError, which lists the snapshots, for none and for several."""
    known = fingerprints(root)
    fitting = [fingerprint for fingerprint in known if name and fingerprint.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(fingerprint[:12] for fingerprint in fitting or known) or "none"
    count = "several snapshots begin" if fitting else "no snapshot begins"
    raise SnapshotError(f"{root.url}: {count} with '{name}'. There are: {there}. `datapipe snapshots` lists them.")


def output_of(root: Root) -> tuple[Root, int | None]:
    """The output of a run, and the further sequence length, for the folder of its shards, OUTPUT/length-8192; else the root
    itself, and None."""
    match = _LENGTH_FOLDER.fullmatch(root.url)
    if match is None or root.exists(SNAPSHOT) or not Root(match["output"]).exists(SNAPSHOT):
        return root, None
    return Root(match["output"]), int(match["length"])


def read_note(
    root: Root, path: str, made: Callable[[Any], _Note], remedy: str, kind: type[DatapipeError] = SnapshotError
) -> _Note | None:
    """What `made` makes of a small JSON file; None where there is none. Raises an error of this
    kind, which ends with the remedy, for a damaged one."""
    try:
        return made(json.loads(root.read_bytes(path)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise kind(f"{root.child_url(path)}: the file was edited or damaged: {error}. {remedy}") from error

"""What is new in the sources of an output, found by listing them, and whether it has been written to its end.

    listing ─▶ files that no snapshot has ─▶ same size and time as at the look before ─▶ ready
                                         └▶ changed since, or seen for the first time ─▶ still being written, perhaps

A file that appears under its name at once, by a rename or in an object store, is ready at the
second look. A file that a list names (`path: "@new.txt"`) is ready at the first: whoever lists it
has written it. A line without its end, and a file that is not there yet, are left to a later look.

A file that a snapshot has and that changed is told, and not read again: its rows are published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from datapipe.config.mixture import Mixture
from datapipe.engine.prepare import listed_files
from datapipe.inputs.entries import Notes
from datapipe.inputs.path_lists import SIGN
from datapipe.records.names import INPUTS
from datapipe.shards.document_files import files_of
from datapipe.shards.manifest import Snapshot
from datapipe.stage.reader import InputFile
from datapipe.storage.root import Root, parquet_table

_Name = tuple[str, str]  # Source and path


@dataclass(frozen=True, kw_only=True)
class News:
    """What a look found."""

    ready: Mapping[str, tuple[str, ...]]  # by source, paths of the new files that can be read, sorted
    ready_bytes: int  # of them
    # new files that were not the same at the look before, and lines of lists whose files are not there yet
    unfinished: tuple[str, ...]
    changed: tuple[str, ...]  # files of a snapshot that are not as they were when they were read
    gone: tuple[str, ...]  # files of a snapshot that are no longer there


@dataclass(slots=True)
class Watch:
    """Looks at the sources of a mixture, again and again."""

    mixture: Mixture
    root: Root
    _seen: dict[_Name, tuple[int, str]] = field(default_factory=dict)

    def look(self, snapshot: Snapshot) -> News:
        known, facts = files_of(self.root, snapshot), facts_of_files(self.root)
        notes, sources = Notes(may_grow=True), self.mixture.sources
        lists = {name for name in sources if all(path.startswith(SIGN) for path in sources[name].path)}
        now = {(name, file.path): file for name, files in listed_files(self.mixture, notes).items() for file in files}
        new = {key: file for key, file in now.items() if key not in known}
        ready = {key: file for key, file in new.items() if key[0] in lists or self._seen.get(key) == _fact(file)}
        self._seen = {key: _fact(file) for key, file in new.items()}
        by_source: dict[str, list[str]] = {}
        for name, path in sorted(ready):
            by_source.setdefault(name, []).append(path)
        return News(
            ready={name: tuple(paths) for name, paths in by_source.items()},
            ready_bytes=sum(file.num_bytes for file in ready.values()),
            unfinished=(*(f"{name}/{path}" for name, path in sorted(new.keys() - ready.keys())), *notes.not_there_yet),
            changed=tuple(
                f"{name}/{path}"
                for name, path in sorted(known & now.keys())
                if facts.get((name, path)) not in (None, _fact(now[name, path]))
            ),
            gone=tuple(f"{name}/{path}" for name, path in sorted(known - now.keys()) if name in self.mixture.sources),
        )


def facts_of_files(root: Root) -> dict[_Name, tuple[int, str]]:
    """Size and time of input files as they were read."""
    if not root.exists(INPUTS):
        return {}
    rows = parquet_table(root.read_bytes(INPUTS), ["source", "path", "num_bytes", "stamp"]).to_pylist()
    return {(row["source"], row["path"]): (row["num_bytes"], row["stamp"]) for row in rows}


def _fact(file: InputFile) -> tuple[int, str]:
    return file.num_bytes, file.stamp

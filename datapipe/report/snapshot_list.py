"""`datapipe snapshots` and `datapipe clean` in words: when each snapshot was published, what changed, and what it takes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table
from ruamel.yaml import YAML

from datapipe.engine.clean import Cleaning
from datapipe.ledger.names import MIXTURE
from datapipe.metrics import counted, size
from datapipe.shards.manifest import Manifest, Snapshot, snapshot_file, snapshot_folder
from datapipe.shards.snapshots import Publication, files_needed
from datapipe.storage import Root, parquet_table

NAME_DIGITS = 12
_LISTED_CHANGES = 5


def snapshots_table(root: Root, every: Sequence[Publication]) -> Table:
    """The snapshots of an output, the newest last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("snapshot", no_wrap=True)
    table.add_column("published", no_wrap=True)
    table.add_column("holds", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("its own", justify="right", no_wrap=True)
    table.add_column("what changed", overflow="fold")
    owners = Counter(path for each in every for path in files_needed([each.snapshot]))
    for number, each in enumerate(every):
        shards = files_needed([each.snapshot])
        own = sum(num_bytes for path, num_bytes in shards.items() if owners[path] == 1)
        table.add_row(
            each.fingerprint[:NAME_DIGITS],
            when(each),
            amount(each.snapshot),
            size(sum(shards.values())),
            size(own),
            "\n".join(changes(root, every[number - 1].snapshot, each.snapshot)) if number else "the first there is",
        )
    return table


def amount(snapshot: Manifest) -> str:
    """How much a snapshot holds: "1,234 tokens"."""
    if isinstance(snapshot, Snapshot):
        return counted(sum(entry.tokens for entry in snapshot.shards), "token")
    return counted(sum(entry.documents for entry in snapshot.documents), "document")


def when(publication: Publication) -> str:
    """The time of a publication, in this machine's zone."""
    if publication.published_at is None:
        return "not noted"
    return datetime.fromtimestamp(publication.published_at).strftime("%Y-%m-%d %H:%M")


def cleaning_lines(cleaning: Cleaning) -> list[str]:
    """What a cleaning deletes, a line each."""
    dropped = ", ".join(publication.fingerprint[:NAME_DIGITS] for publication in cleaning.dropped)
    parts = [
        (len(cleaning.dropped), "snapshot", f": {dropped}" if dropped else "", cleaning.files),
        (len(cleaning.shards), "data file", " that no kept snapshot has", cleaning.shards),
        (len(cleaning.work_files), "file", " of tasks that no kept snapshot and not the last run needs", cleaning.work_files),
    ]
    return [
        f"{counted(count, noun)}{text}, {size(sum(num_bytes for _, num_bytes in files))}"
        for count, noun, text, files in parts
        if count
    ]


# ------------------------------------------------------------------------------------------------ what changed


def changes(root: Root, before: Manifest, after: Manifest) -> list[str]:
    """The differences between two snapshots of an output, a line each: sources, options, input files, shards."""
    options = list(_option_changes(_mixture(root, before), _mixture(root, after)))
    if len(options) > _LISTED_CHANGES:
        options = [*options[:_LISTED_CHANGES], f"and {counted(len(options) - _LISTED_CHANGES, 'more option')}"]
    lines = [*_source_changes(before, after), *options, *_file_changes(root, before, after)]
    return lines or list(_shard_changes(before, after)) or ["nothing but the manifest"]


def _source_changes(before: Manifest, after: Manifest) -> Iterator[str]:
    yield from (f"source {name} added" for name in sorted(after.sources.keys() - before.sources.keys()))
    yield from (f"source {name} removed" for name in sorted(before.sources.keys() - after.sources.keys()))


def _option_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """The options of a mixture that differ; those of sources that were added or removed are not listed."""
    known = [set(content.get("sources", {})) for content in (before, after)]
    strangers = tuple(f"sources.{name}." for name in known[0] ^ known[1])
    old, new = dict(_flat(before, "")), dict(_flat(after, ""))
    if not old or not new:
        return
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and not key.startswith((*strangers, "execution.", "output")):
            yield f"{key}: {_shown(old.get(key))} → {_shown(new.get(key))}"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every leaf of nested options with its dotted key."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from _flat(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(child, Mapping | list) for child in value):
        for number, child in enumerate(value):
            yield from _flat(child, f"{key}[{number}]")
    else:
        yield key, value


def _mixture(root: Root, snapshot: Manifest) -> Mapping[str, Any]:
    """The mixture of a snapshot; empty where it is not known."""
    try:
        content = root.read_bytes(f"{snapshot_folder(snapshot.fingerprint)}/{MIXTURE}")
    except FileNotFoundError:
        return {}
    return YAML(typ="safe").load(io.BytesIO(content)) or {}


def _file_changes(root: Root, before: Manifest, after: Manifest) -> Iterator[str]:
    old, new = _files(root, before), _files(root, after)
    for source in sorted(before.sources.keys() & after.sources.keys()):
        added, removed = (len(one.get(source, set()) - other.get(source, set())) for one, other in ((new, old), (old, new)))
        told = [f"{count:,} {word}" for count, word in ((added, "added"), (removed, "removed")) if count]
        if told:
            yield f"files of {source}: {', '.join(told)}"


def _files(root: Root, snapshot: Manifest) -> dict[str, set[str]]:
    """The input files of a snapshot, by source."""
    if snapshot.files is None:
        return {}
    table = parquet_table(root.read_bytes(snapshot_file(root, snapshot, snapshot.files.path)), ["source", "path"])
    found: dict[str, set[str]] = {}
    for source, path in zip(table.column("source").to_pylist(), table.column("path").to_pylist()):
        found.setdefault(source, set()).add(path)
    return found


def _shard_changes(before: Manifest, after: Manifest) -> Iterator[str]:
    for source in sorted(after.sources):
        old, new = ({entry.checksum for entry in each.data_files if entry.source == source} for each in (before, after))
        if new - old:
            noun = "shard" if isinstance(after, Snapshot) else "file"
            yield f"{len(new - old):,} of {counted(len(new), noun)} of {source}"

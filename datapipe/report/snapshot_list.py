"""`datapipe snapshots` and `datapipe clean` in words: when each snapshot was published, what changed, and what it takes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from datapipe.config.interpolation import parsed_yaml
from datapipe.credentials import masked
from datapipe.quantities import counted, size
from datapipe.records.names import MIXTURE
from datapipe.report.layout import line_width, print_lines, print_wrapped
from datapipe.shards.manifest import Snapshot, snapshot_file
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.shards.snapshots import Pin, Publication, files_needed, pins
from datapipe.snapshots.clean import Cleaning
from datapipe.steps.reasons import flat, stage_changes, value_changes
from datapipe.storage.root import Root, parquet_table

NAME_DIGITS = 12
_LISTED_CHANGES = 8


def print_snapshots(root: Root, every: Sequence[Publication], console: Console) -> None:
    """Prints the snapshots of an output, the newest last: a line for each, and below it what changed since the one before."""
    owners = Counter(path for each in every for path in files_needed([each.snapshot]))
    width = line_width(console)
    pinned = pins(root)
    before: Snapshot | None = None
    for each, is_again in _history(every):
        shards = files_needed([each.snapshot])
        whole, own = sum(shards.values()), sum(num_bytes for path, num_bytes in shards.items() if owners[path] == 1)
        published = "published again" if is_again else when(each)
        head = f"{each.fingerprint[:NAME_DIGITS]}  {published}  {each.snapshot.amount}  {size(whole)}"
        shared = "" if is_again or own == whole else f"its own: {size(own)}"
        changed = ["the first there is"] if before is None else changes(root, before, each.snapshot)
        before = each.snapshot
        print_lines([head] if cell_len(head) <= width else head.split("  "), console, "bold")
        own_pins = [] if is_again else [pin for pin in pinned if pin.fingerprint == each.fingerprint]
        print_wrapped((f"  {masked(line)}" for line in [*map(pin_line, own_pins), shared, *changed] if line), console)


def _history(every: Sequence[Publication]) -> list[tuple[Publication, bool]]:
    """The snapshots by the time of their first publication; then the newest once more, if others were published after it."""
    *others, newest = every  # the newest last, whenever it was published first
    at = newest.published_at
    later = [] if at is None else [each for each in others if (each.published_at or 0.0) > at]
    earlier = others[: len(others) - len(later)]
    return [(each, False) for each in (*earlier, newest, *later)] + ([(newest, True)] if later else [])


def pin_line(pin: Pin) -> str:
    """A pin in words: "pinned on 2026-11-23: for the run of May"."""
    day = datetime.fromtimestamp(pin.pinned_at).strftime("%Y-%m-%d")
    return f"pinned on {day}{': ' if pin.why else ''}{pin.why}"


def when(publication: Publication) -> str:
    """The time of a publication, in this machine's zone."""
    if publication.published_at is None:
        return "not noted"
    return datetime.fromtimestamp(publication.published_at).strftime("%Y-%m-%d %H:%M")


def cleaning_lines(cleaning: Cleaning) -> list[str]:
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
    ] + _work_lines(cleaning)


def _work_lines(cleaning: Cleaning) -> list[str]:
    num_files = len(cleaning.unread) + len(cleaning.index)
    num_bytes = cleaning.unread_bytes + sum(num_bytes for _, num_bytes in cleaning.index)
    if not num_files:
        return []
    then = ["without them:", *(f"  {line}" for line in cleaning.no_longer)]
    return [f"{counted(num_files, 'file')} of tasks that only further work needs, {size(num_bytes)}", *then]


def changes(root: Root, before: Snapshot, after: Snapshot) -> list[str]:
    """The differences between two snapshots of an output, a line each: sources, stages, options, input files, shards."""
    lines = [*_manifest_changes(before, after), *_mixture_changes(root, before, after), *_file_changes(root, before, after)]
    return lines or list(_shard_changes(before, after)) or ["nothing but the manifest"]


def _manifest_changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    yield from (f"source {name} added" for name in sorted(after.sources.keys() - before.sources.keys()))
    yield from (f"source {name} removed" for name in sorted(before.sources.keys() - after.sources.keys()))
    if after.trusted and after.trusted != before.trusted:
        listed = (f"{entry.library} {entry.made_with}" for entry in after.trusted)
        yield f"tasks of {', '.join(listed)} kept (--trust-records)"
    more = after.num_removed - before.num_removed
    if more:
        yield f"{counted(abs(more), 'document')} {'taken down' if more > 0 else 'no longer taken down'}"


def _mixture_changes(root: Root, before: Snapshot, after: Snapshot) -> Iterator[str]:
    options = option_changes(_mixture(root, before), _mixture(root, after))
    yield from options[:_LISTED_CHANGES]
    if len(options) > _LISTED_CHANGES:
        yield f"and {len(options) - _LISTED_CHANGES:,} more"


def option_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The stages and options of a mixture that differ; those of sources that were added or removed are not listed."""
    if not before or not after:
        return []
    known = [set(content.get("sources", {})) for content in (before, after)]
    strangers = tuple(f"sources.{name}." for name in known[0] ^ known[1])
    old, new = (
        {key: value for key, value in flat(content).items() if not key.startswith((*strangers, "execution.", "output"))}
        for content in (before, after)
    )
    return [*stage_changes(before, after), *value_changes(old, new, sorted(old.keys() | new.keys()))]


def _mixture(root: Root, snapshot: Snapshot) -> Mapping[str, Any]:
    """The mixture of a snapshot; empty where it is not known, or no mixture."""
    try:
        content = parsed_yaml(root.read_bytes(f"{snapshot_folder(snapshot.fingerprint)}/{MIXTURE}").decode())
    except (FileNotFoundError, ValueError):
        return {}
    sources = content.get("sources")
    return content if isinstance(sources, Mapping) and all(isinstance(each, Mapping) for each in sources.values()) else {}


def _file_changes(root: Root, before: Snapshot, after: Snapshot) -> Iterator[str]:
    old, new = _files(root, before), _files(root, after)
    for source in sorted(before.sources.keys() & after.sources.keys()):
        counts = (("added", len(new[source] - old[source])), ("removed", len(old[source] - new[source])))
        if changed := [f"{count:,} {word}" for word, count in counts if count]:
            yield f"files of {source}: {', '.join(changed)}"


def _files(root: Root, snapshot: Snapshot) -> Mapping[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    if snapshot.files is not None:
        table = parquet_table(root.read_bytes(snapshot_file(root, snapshot, snapshot.files.path)), ["source", "path"])
        for source, path in zip(*(table.column(name).to_pylist() for name in ("source", "path"))):
            found[source].add(path)
    return found


def _shard_changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for source in sorted(after.sources):
        old, new = ({entry.checksum for entry in each.shards if entry.source == source} for each in (before, after))
        if new - old:
            noun = "shard" if after.has_tokens else "file"
            yield f"{len(new - old):,} of {counted(len(new), noun)} of {source}"

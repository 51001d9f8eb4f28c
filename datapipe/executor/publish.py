"""From committed shards to snapshots: every shard under its deterministic name, snapshot.json last.

    work/attempts/…/part-00003-00000.arrow  ─▶  shards/web/part-00003-00000.arrow
    tokenizer.json, mixture.yaml, files.parquet, and then snapshot.json

The first sequence length is published in the output itself, each further one as a snapshot of its own in length-N/ below it;
those of lengths that the mixture no longer has are removed. An old snapshot.json is removed before the first shard changes, so
that whoever finds one finds all it names. A snapshot that is there already, equal and whole, is left alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.config.mixture import Mixture, WeightPhase
from datapipe.config.weights import integer_weights
from datapipe.errors import DatapipeError, SnapshotError
from datapipe.executor.exchange import damaged
from datapipe.executor.partitions import committed_bytes
from datapipe.plan.compile import Plan, Request
from datapipe.plan.inputs import file_hash
from datapipe.plan.tasks import OutputRef, PackTask
from datapipe.shards.checksum import bytes_checksum, file_checksum
from datapipe.shards.manifest import (
    SNAPSHOT,
    FileEntry,
    Phase,
    ShardEntry,
    Snapshot,
    SourceEntry,
    TokenizerEntry,
    length_folders,
    read_snapshot,
)
from datapipe.storage import Root

FILES = "files.parquet"
TOKENIZER = "tokenizer.json"
MIXTURE = "mixture.yaml"

_SHARD_NAME = re.compile(r"shards/[^/]+/(part|validation)-\d{5,}(-pieces-\d{5,})?-\d{5,}\.(arrow|parquet)")


def publish(root: Root, request: Request, plan: Plan) -> tuple[Snapshot, list[str]]:
    """Publishes the snapshots of a committed plan. Returns that of the output itself, and what the user should hear."""
    tokenizer = next(output for step in plan.of_kind("train") for output in step.outputs("tokenizer"))
    files, spec = _files(request), request.mixture.pack
    small = {TOKENIZER: committed_bytes(root, tokenizer), FILES: files}
    warnings = _clear_folders(root, {spec.folder(length) for length in spec.sequence_length})
    snapshots: list[Snapshot] = []
    for length in spec.sequence_length:
        shards = _shards(plan, length)
        snapshot, warned = make_snapshot(request.mixture, length, tokenizer, [entry for entry, _ in shards], files)
        warnings += warned + _publish_one(root, spec.folder(length), snapshot, shards, small)
        snapshots.append(snapshot)
    return snapshots[0], list(dict.fromkeys([*warnings, *_slowly_encoded(tokenizer)]))


def _slowly_encoded(tokenizer: OutputRef) -> list[str]:
    """That the tokenizer is none that kernels know, and why."""
    reason = (tokenizer.facts or {}).get("unusual")
    return [f"the library `tokenizers` encoded, thirty times slower than the kernels: {reason}"] if reason else []


def _publish_one(
    root: Root, folder: str, snapshot: Snapshot, shards: list[tuple[ShardEntry, OutputRef]], small: Mapping[str, bytes]
) -> list[str]:
    """Publishes a snapshot in `folder` below the output, or in the output itself. Returns warnings."""
    place = root.within(folder)
    if _is_published(place, snapshot, small):
        return []
    place.delete(SNAPSHOT)
    for number, (entry, output) in enumerate(shards):
        if place.size(entry.path) != entry.bytes or not _same_file(place, entry.path, root, output.path):
            if file_checksum(root, output.path)[0] != output.checksum:
                raise damaged(output, "not what was committed")
            root.publish(output.path, f"{folder}/{entry.path}".lstrip("/"), f"work/publish/{number:06d}")
    warnings = _clear(place, folder, {entry.path for entry, _ in shards})
    for path, content in small.items():
        place.write_atomic(path, content)
    place.write_atomic(SNAPSHOT, snapshot.to_json())
    return warnings


def _clear(place: Root, folder: str, wanted: set[str]) -> list[str]:
    """Deletes shards of an earlier snapshot. What no run can have put there is left alone, and the user hears of it."""
    warnings: list[str] = []
    for path, _ in place.list_files("shards"):
        if path in wanted:
            continue
        if _SHARD_NAME.fullmatch(path):
            place.delete(path)
        else:
            found = f"{folder}/{path}".lstrip("/")
            warnings.append(f"{found} is no shard of this run; it is left where it is, but nothing else belongs there")
    return warnings


def _clear_folders(root: Root, wanted: set[str]) -> list[str]:
    """Takes away the snapshots of sequence lengths that are no longer asked for: what this run makes would not be in them."""
    warnings: list[str] = []
    for folder in length_folders(root):
        if folder in wanted:
            continue
        place = root.within(folder)
        place.delete(SNAPSHOT)
        warnings += _clear(place, folder, set())
        for path in (TOKENIZER, FILES):
            place.delete(path)
        if not place.list_files(""):
            root.delete_folder(folder)
    return warnings


def _same_file(place: Root, published: str, root: Root, committed: str) -> bool:
    """Whether the published name is a link to the committed file already."""
    if place.local is None or root.local is None:
        return False
    return (place.local / published).samefile(root.local / committed)


def _is_published(root: Root, snapshot: Snapshot, small: Mapping[str, bytes]) -> bool:
    """Whether the snapshot is there with shards of the right sizes, and the small files as they should be."""
    try:
        there = read_snapshot(root)
    except SnapshotError:
        return False
    if there.fingerprint != snapshot.fingerprint:
        return False
    listed = {path: size for path, size in root.list_files("shards") if _SHARD_NAME.fullmatch(path)}
    if listed != {entry.path: entry.bytes for entry in snapshot.shards}:
        return False
    return all(root.exists(path) and root.read_bytes(path) == content for path, content in small.items())


def _shards(plan: Plan, sequence_length: int) -> list[tuple[ShardEntry, OutputRef]]:
    """What is published where in the snapshot of a sequence length, by path."""
    found: list[tuple[ShardEntry, OutputRef]] = []
    for step in plan.of_kind("pack"):
        for task, record in zip(step.tasks or (), step.records):
            assert isinstance(task, PackTask)
            if task.sequence_length != sequence_length:
                continue
            for output in record.of("shards"):
                facts = output.facts or {}
                entry = ShardEntry(
                    path=f"shards/{step.source}/{output.path.rpartition('/')[2]}",
                    source=step.source,
                    split=task.split,
                    sequences=output.rows,
                    tokens=int(facts["tokens"]),
                    documents=int(facts["documents"]),
                    bytes=output.bytes,
                    checksum=output.checksum,
                    piece_length=int(facts["piece_length"]) if "piece_length" in facts else None,
                    hashes=(task.start, task.stop),
                )
                found.append((entry, output))
    return sorted(found, key=lambda one: one[0].path)


def _files(request: Request) -> bytes:
    """files.parquet: which input file the first half of a document's key stands for."""
    rows = sorted((name, path) for name, source in request.sources.items() for path in source.files)
    table = pa.table(
        {
            "hash": pa.array([file_hash(name, path) for name, path in rows], pa.uint64()),
            "source": pa.array([name for name, _ in rows], pa.string()),
            "path": pa.array([path for _, path in rows], pa.string()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def make_snapshot(
    mixture: Mixture, sequence_length: int, tokenizer: OutputRef, shards: list[ShardEntry], files: bytes
) -> tuple[Snapshot, list[str]]:
    """The manifest, and warnings. Raises DatapipeError where nothing is left to train on."""
    filled = {entry.source for entry in shards if entry.split == "train"}
    empty = [name for name in mixture.sources if name not in filled]
    phases = tuple(_phase(mixture, phase, empty) for phase in mixture.weight_phases())
    facts = tokenizer.facts or {}
    own = integer_weights({name: source.weight for name, source in mixture.sources.items()})
    snapshot = Snapshot(
        name=mixture.name,
        seed=mixture.seed,
        sequence_length=sequence_length,
        shard_format=mixture.shards.format,
        tokenizer=TokenizerEntry(
            path=TOKENIZER,
            fingerprint=str(facts["fingerprint"]),
            vocab_size=int(facts["vocab_size"]),
            eos_id=int(facts["eos_id"]),
        ),
        sources={
            name: SourceEntry(
                weight=0 if name in empty else own[name],
                max_epochs=mixture.max_epochs_of(name),
                license=source.license,
                synthetic=source.synthetic,
            )
            for name, source in mixture.sources.items()
        },
        phases=phases,
        total_tokens=mixture.mixture.tokens,
        exhausted=mixture.mixture.exhausted,
        window_shards=mixture.mixture.window,
        files=FileEntry(path=FILES, bytes=len(files), checksum=bytes_checksum(files)),
        shards=tuple(shards),
    )
    warned = [f"source '{name}' kept no document to train on: its weight goes to the others" for name in empty]
    return snapshot.sealed(), warned


def _phase(mixture: Mixture, phase: WeightPhase, empty: list[str]) -> Phase:
    weights: Mapping[str, int] = {name: 0 if name in empty else weight for name, weight in phase.weights.items()}
    if not any(weights.values()):
        raise DatapipeError(
            f"nothing to train on: no source with a weight above 0 kept a document (empty: {', '.join(empty)}). "
            f"The funnel shows where they went; loosen the stage that dropped them, or check the text field."
        )
    return Phase(until_tokens=phase.until_tokens, weights=dict(weights))

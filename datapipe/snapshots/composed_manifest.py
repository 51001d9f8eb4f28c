"""The manifest of a snapshot: weights, sources and phases of the mixture, over shards that are packed; and its publication."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from datapipe.config.mixture import Mixture
from datapipe.errors import DatapipeError, SnapshotError
from datapipe.records.checksum import bytes_checksum
from datapipe.records.names import CHAT_TEMPLATE, FILES, REPORT, SNAPSHOT, TOKENIZER
from datapipe.records.outputs import TokenizerFile
from datapipe.shards.manifest import FileEntry, Phase, RemovedEntry, Snapshot, TokenizerEntry, read_snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.shards.source_entry import SourceEntry
from datapipe.snapshots.cells import FoundCells, made_cells, phases_of_cells, with_limit
from datapipe.steps import weighting
from datapipe.steps.warnings import RunWarning
from datapipe.storage.lock import OutputLock
from datapipe.storage.root import Root
from datapipe.weights import integer_weights

_SHOWN_SHARES = 10
_SPARE_ROWS = 2  # the loader's quotas are within two rows of a weight (`loader/order/mixing.py`)


def file_entry(files: bytes) -> FileEntry:
    """files.parquet as the manifest names it."""
    return FileEntry(path=FILES, bytes=len(files), checksum=bytes_checksum(files))


def make_snapshot(
    mixture: Mixture,
    sequence_length: int,
    tokenizer: TokenizerFile | TokenizerEntry,
    shards: list[ShardEntry],
    files: bytes,
    taken: Mapping[str, SourceEntry] | None = None,
    removed: RemovedEntry | None = None,
    found: Mapping[str, FoundCells] | None = None,
) -> tuple[Snapshot, list[RunWarning]]:
    """The manifest, and warnings. `taken` are the sources of other outputs, `removed` the documents that were taken down,
    `found` the cells of sources that are split.
    Raises DatapipeError where no source has tokens, or one ends early and `mixture.exhausted` is `refuse`."""
    known, warned = taken or {}, list[RunWarning]()
    sources: dict[str, SourceEntry] = {}
    for name in mixture.all_sources:
        limit = mixture.max_epochs_of(name)
        changed = {"weight": 0, "max_epochs": limit}
        if name in known:
            cells = with_limit(known[name].cells, limit)
            sources[name] = known[name].model_copy(update={**changed, "cells": cells})
            continue
        cells = None
        if found is not None and name in found:
            cells, of_cells = made_cells(mixture, name, found[name], shards, sequence_length)
            warned += of_cells
        sources[name] = SourceEntry(**changed, **mixture.sources[name].entry(), cells=cells)
    sizes = weighting.epoch_tokens(sources, shards, sequence_length)
    empty = [name for name, size in sizes.items() if not size]
    given_phases = weighting.weight_phases(mixture, sizes, spare=_SPARE_ROWS * sequence_length)
    phases, of_phases = phases_of_cells(given_phases, sources)
    warned += of_phases
    given = {name: source.weight for name, source in mixture.all_sources.items()}
    own = integer_weights(given) if mixture.mixture.weighting == "given" else phases[0].weights
    snapshot = Snapshot(
        name=mixture.name,
        seed=mixture.seed,
        sequence_length=sequence_length,
        shard_format=mixture.shards.format,
        tokenizer=TokenizerEntry(
            path=TOKENIZER,
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            bos_id=tokenizer.bos_id,
        ),
        sources={
            name: source.model_copy(update={"weight": 0 if name in empty else own[name]}) for name, source in sources.items()
        },
        phases=tuple(Phase(until_tokens=phase.until_tokens, weights=phase.weights) for phase in phases),
        total_tokens=mixture.mixture.tokens,
        exhausted=mixture.mixture.exhausted,
        window_shards=mixture.mixture.window,
        bos_aligned=mixture.pack.bos_aligned,
        files=file_entry(files),
        removed=removed,
        shards=tuple(shards),
    )
    nothing = f"kept no document to train on. Its weight goes to the others{_shares_of_others(own, empty)}."
    warned += [RunWarning(kind="nothing_to_draw", source=name, text=f"source '{name}' {nothing}") for name in empty]
    short = {} if snapshot.exhausted == "redistribute" else weighting.exhausted(snapshot)
    if short and snapshot.exhausted == "refuse":
        raise DatapipeError(
            f"{next(iter(short.values()))}, which mixture.exhausted: refuse forbids. Raise max_epochs, lower its weight or "
            f"mixture.tokens, add text to it, or write exhausted: redistribute. Packed shards stay; run the same command again "
            f"to publish them."
        )
    _check_synthetic(mixture, snapshot)
    ends = (
        "Training ends with its text (mixture.exhausted: stop). Add text, lower its weight, or write exhausted: redistribute."
    )
    warned += [RunWarning(kind="ends_early", source=name, text=f"{text}. {ends}") for name, text in short.items()]
    return snapshot.sealed(), warned


def _check_synthetic(mixture: Mixture, snapshot: Snapshot) -> None:
    """Raises DatapipeError where training would draw more of synthetic sources than `mixture.max_synthetic`: weights that are
    computed, empty sources and epoch caps are known only now."""
    limit, written = mixture.mixture.max_synthetic, [name for name, source in snapshot.sources.items() if source.synthetic]
    if limit is None or not written:
        return
    from datapipe.loader.order.batch_order import drawn_tokens, run_order  # a plan draws nothing

    drawn: Mapping[str, int | Fraction] = drawn_tokens(snapshot, run_order(snapshot)) or weighting.drawn_shares(snapshot)
    share = Fraction(sum(drawn[name] for name in written)) / (sum(drawn.values()) or 1)
    spare = Fraction(_SPARE_ROWS * len(written) * snapshot.sequence_length, snapshot.total_tokens or 1 << 62)
    if share > limit + spare:  # quotas are whole rows
        raise DatapipeError(
            f"training would draw {float(share):.2%} of its tokens from sources that models wrote ({', '.join(written)}), and "
            f"mixture.max_synthetic allows {float(limit):.2%}. Lower their weights or max_epochs, add other text, or raise "
            f"max_synthetic. Packed shards stay; run the same command again to publish them."
        )


def _shares_of_others(weights: Mapping[str, int], empty: Sequence[str]) -> str:
    """What the weights of the sources with rows became, in words; nothing for one source that has all, and for many."""
    left = {name: weight for name, weight in weights.items() if weight and name not in empty}
    if not 1 < len(left) <= _SHOWN_SHARES:
        return ""
    return ": " + ", ".join(f"'{name}' {weight / sum(left.values()):.2%}" for name, weight in left.items())


def publish_files(
    lock: OutputLock,
    snapshot: Snapshot,
    # needed, about: content by path of the files that its manifest names, and of others in its folder
    needed: Mapping[str, bytes],
    about: Mapping[str, bytes],
    shown: Sequence[str] = (),  # those of `about` that the output itself has, too
) -> None:
    """Publishes a snapshot whose shards are there: its folder, the manifest last, and then the output itself."""
    target, manifest = lock.root, snapshot.to_files()
    content = {**about, **needed, SNAPSHOT: manifest.pop(SNAPSHOT)}
    newest = _keep_newest(target)
    for path, text in manifest.items():
        if not holds(target, path, text):
            target.write_atomic(path, text)
    for path, text in content.items():
        target.write_atomic(f"{snapshot_folder(snapshot.fingerprint)}/{path}", text)
    lock.replace({path: content[path] for path in (*shown, *needed, SNAPSHOT)})
    for path in () if newest is None else newest.own_files.keys() & {CHAT_TEMPLATE} - snapshot.own_files.keys():
        target.delete(path)


def holds(root: Root, path: str, content: bytes) -> bool:
    return root.exists(path) and root.read_bytes(path) == content


def _keep_newest(target: Root) -> Snapshot | None:
    """The newest snapshot, which gets a folder where it has none: that of an export lies in the output itself."""
    try:
        newest = read_snapshot(target)
    except SnapshotError:
        return None
    own = snapshot_folder(newest.fingerprint)
    if target.exists(f"{own}/{SNAPSHOT}"):
        return newest
    content = target.read_bytes(SNAPSHOT)
    for path in (*newest.own_files, REPORT):
        if target.exists(path):
            target.write_atomic(f"{own}/{path}", target.read_bytes(path))
    target.write_atomic(f"{own}/{SNAPSHOT}", content)
    return newest

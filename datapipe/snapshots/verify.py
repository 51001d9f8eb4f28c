"""Verifies every byte of a snapshot: that each file is the committed one, and that its content is valid.

    every shard       size, checksum; if one is wrong, the blocks of damaged rows
                      counts, ids, end-of-text and padding; each document's file is listed in files.parquet, and its
                      shuffle hash lies in the range of the shard
    every split       the pieces of each cut document fit together; in BOS-aligned rows, every piece begins its document
    tokenizer.json    fingerprint
    files.parquet     size, checksum; so is removed.parquet
    all, again        the copies in the output itself, of its newest snapshot; and the manifest in the snapshot's folder
    documents         of a run without a tokenizer, in place of the above: size and checksum of each file, its rows and columns
    shards/, documents/       hold no files but those of snapshots

The checksums find damage. The checks of content, made only where the checksum is right, find errors
of the run that wrote the shard. Memory is one record batch and the hashes of the input files; for
sources whose documents have segments, up to 16 bytes more for each piece.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.dataclass import dataclass, field
from datapipe.errors import CorruptionError, DatapipeError, SnapshotError
from datapipe.records.checksum import file_checksum
from datapipe.rng import shuffle_hash
from datapipe.shards.document_files import files_with_hashes
from datapipe.shards.documents.reader import count_documents
from datapipe.shards.manifest import Snapshot, read_snapshot, snapshot_file
from datapipe.shards.packed_documents import piece_stops, position_hashes, starts_of
from datapipe.shards.schemas import UNLEARNED
from datapipe.shards.shard_file import open_shard
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.snapshot_folder import fingerprints, has_snapshot
from datapipe.shards.snapshots import DATA_PATH, data_files, files_needed
from datapipe.storage.root import Root

_NO_HASHES = np.zeros(0, np.uint64)


@dataclass(slots=True)
class _Cuts:
    """Sums over the cuts of a split's documents: `difference` is 0 modulo 2^64 if each cut has one piece that continues it."""

    ends: int = 0
    continuations: int = 0
    difference: int = 0
    # documents with segments may mean the end-of-text token in their middle. open_ends: hashes of the ends of pieces that end
    # with it; starts: of the pieces that continue such documents
    open_ends: list[np.ndarray] = field(default_factory=list)
    starts: list[np.ndarray] = field(default_factory=list)

    def add(self, ends: np.ndarray, starts: np.ndarray) -> None:
        """Adds hashes of (document, token position): of cuts, and of the pieces that continue there."""
        self.ends += len(ends)
        self.continuations += len(starts)
        self.difference += int(ends.sum(dtype=np.uint64)) - int(starts.sum(dtype=np.uint64))

    def fit(self) -> bool:
        """Whether the pieces of each cut document fit together. An open end is a cut where a piece continues it."""
        open_ends, starts = (np.concatenate([_NO_HASHES, *hashes]) for hashes in (self.open_ends, self.starts))
        continued = open_ends[np.isin(open_ends, starts)]
        difference = self.difference + int(continued.sum(dtype=np.uint64))
        return difference % (1 << 64) == 0 and self.ends + len(continued) == self.continuations


def verify_snapshot(root: Root, snapshot: Snapshot) -> list[str]:
    """One line for each problem: the file, the value, the expected value. An empty list if there is none."""
    problems: list[str] = []
    for path, (checksum, num_bytes) in snapshot.own_files.items():
        problems += file_problems(root, snapshot_file(root, snapshot, path), checksum, num_bytes)
    for entry in (entry for rows in (snapshot, *snapshot.further) for entry in rows.lists):
        problems += file_problems(root, entry.path, entry.checksum, entry.bytes)
    if snapshot.has_tokens:
        has_files = not problems
        for length in snapshot.sequence_lengths:
            problems += _token_problems(root, snapshot.of_length(length), has_files=has_files)
    else:
        problems += [line for entry in snapshot.shards for line in _documents_problems(root, snapshot, entry)]
    return problems + _copy_problems(root, snapshot) + _unlisted(root, snapshot)


def _copy_problems(root: Root, snapshot: Snapshot) -> list[str]:
    """Problems of the files that the output itself has of its newest snapshot, beside those in the
    snapshot's folder, and of the manifest in that folder."""
    problems: list[str] = []
    try:
        if has_snapshot(root, snapshot.fingerprint):
            read_snapshot(root, snapshot.fingerprint)
    except SnapshotError as error:
        problems.append(str(error))
    try:
        is_newest = read_snapshot(root).fingerprint == snapshot.fingerprint
    except SnapshotError:  # `snapshot` was read by its name
        return []
    for path, (checksum, num_bytes) in snapshot.own_files.items() if is_newest else ():
        if snapshot_file(root, snapshot, path) != path:
            problems += file_problems(root, path, checksum, num_bytes)
    return problems


def _documents_problems(root: Root, snapshot: Snapshot, entry: ShardEntry) -> list[str]:
    problems = file_problems(root, entry.path, entry.checksum, entry.bytes)
    if problems:
        return problems
    try:
        counts = count_documents(root, entry.path)
    except (pa.ArrowException, OSError, ValueError) as error:
        return [f"{entry.path}: {error}; expected valid {snapshot.shard_format}"]
    return _count_problems(entry.path, counts, {"documents": entry.documents, "bytes of text": entry.text_bytes})


def _token_problems(root: Root, snapshot: Snapshot, *, has_files: bool) -> list[str]:
    problems: list[str] = []
    hashes: dict[str, list[int]] = {name: [] for name in snapshot.sources} if has_files and snapshot.files else {}
    for number, source, _ in files_with_hashes(root, snapshot) if has_files else ():
        hashes[source].append(number)
    known = {source: np.array(numbers, np.uint64) for source, numbers in hashes.items()}
    cuts: dict[tuple[str, str], _Cuts] = defaultdict(_Cuts)
    for entry in sorted(snapshot.shards, key=lambda shard: shard.path):
        problems += _shard_problems(root, snapshot, entry, known.get(entry.source), cuts[entry.source, entry.split])
    return problems or [
        f"shards/{source}: {split} documents have {sums.ends} cuts and {sums.continuations} continuing pieces; expected the "
        f"piece that follows each cut"
        for (source, split), sums in cuts.items()
        if not sums.fit()
    ]


def _unlisted(root: Root, snapshot: Snapshot) -> list[str]:
    """Problems of the files among the shards and documents that no snapshot of the output lists."""
    listed = files_needed([snapshot])
    paths = [path for path, _ in data_files(root) if path not in listed]
    try:
        needed = files_needed(read_snapshot(root, name) for name in (fingerprints(root) if paths else ()))
    except SnapshotError as error:
        return [str(error)]
    return [
        f"{path}: in no snapshot of this output; "
        + ("`datapipe clean` deletes it" if DATA_PATH.fullmatch(path) else "expected only files of snapshots here")
        for path in paths
        if path not in needed
    ]


def file_problems(root: Root, path: str, checksum: str, size: int | None) -> list[str]:
    """One line if a file is not the committed one, none if it is."""
    try:
        actual, num_bytes = file_checksum(root, path, checksum)
    except FileNotFoundError:
        return [f"{path}: no such file, expected one with checksum {checksum}"]
    except OSError as error:  # a folder, or a failing disk; the other files are still read
        return [f"{path}: cannot be read: {error}; expected a file with checksum {checksum}"]
    if size is not None and num_bytes != size:
        return [f"{path}: {num_bytes} bytes, expected {size}"]
    return [] if actual == checksum else [f"{path}: checksum {actual}, expected {checksum}"]


def _shard_problems(root: Root, snapshot: Snapshot, entry: ShardEntry, files: np.ndarray | None, cuts: _Cuts) -> list[str]:
    problems = file_problems(root, entry.path, entry.checksum, entry.bytes)
    if not problems:
        return _content_problems(root, snapshot, entry, files, cuts)
    if root.size(entry.path) == entry.bytes:
        return [f"{problems[0]}; {_damage(root, snapshot, entry)}"]
    return problems


def _damage(root: Root, snapshot: Snapshot, entry: ShardEntry) -> str:
    try:
        opened = open_shard(root, entry, snapshot.form)
    except (DatapipeError, OSError, pa.ArrowException, ValueError) as error:
        return f"its header or footer is damaged, and no row can be read: {error}"
    damaged: list[str] = []
    with closing(opened) as shard:
        for number in range(shard.num_batches):
            try:
                shard.checked_batch(number)
            except (CorruptionError, OSError, pa.ArrowException, ValueError):  # expected: the file is known to be damaged
                damaged.append(shard.rows_of(number))
    return (
        f"damaged: {' '.join(damaged).removesuffix(',')}" if damaged else "all rows are intact: the damage lies outside of them"
    )


def _content_problems(root: Root, snapshot: Snapshot, entry: ShardEntry, files: np.ndarray | None, cuts: _Cuts) -> list[str]:
    try:
        with closing(open_shard(root, entry, snapshot.form)) as shard:
            counts, of_runs = np.zeros(3, np.int64), dict[tuple[int, bool], np.ndarray]()
            for number in range(shard.num_batches):
                batch, tokenizer = shard.checked_batch(number), snapshot.tokenizer
                was_cut = snapshot.removed is not None
                ids = tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id
                problem = batch_problem(batch, *ids, entry.piece_length, was_cut=was_cut)
                problem = problem or _document_problem(batch, entry, files, snapshot.seed)
                if problem:
                    return [f"{entry.path}: {shard.rows_of(number)} hold {problem}"]
                starts = columns.numbers(batch.column("starts").values)
                lengths = columns.numbers(batch.column("lengths").values)
                counts += (batch.num_rows, lengths.sum(), np.count_nonzero(starts == 0))
                _count_runs(entry, batch, number * shard.rows_per_batch, of_runs)
                if snapshot.bos_aligned:
                    if np.any(starts):
                        where = f"{entry.path}: {shard.rows_of(number)}"
                        return [f"{where} hold a piece that starts at token {starts.max()} of its document, expected 0"]
                    continue
                if entry.piece_length is None:  # else a document's pieces lie in several shards or are dropped
                    _add_cuts(cuts, batch, snapshot.tokenizer.eos_id)
    except DatapipeError as error:
        return [str(error)]
    except pa.ArrowInvalid as error:
        return [f"{entry.path}: {error}; expected valid record batches"]
    expected = {"sequences": entry.sequences, "tokens": entry.tokens, "documents": entry.documents}
    problems = _count_problems(entry.path, counts.tolist(), expected)
    for run in () if problems else entry.cells or ():
        of_runs[run.cell, run.again] -= (run.rows, run.tokens, run.documents)
    wrong = next((cell for (cell, _), left in of_runs.items() if left.any()), None)
    return problems if wrong is None else [f"{entry.path}: the rows of cell {wrong} are not those in the manifest"]


def _count_runs(entry: ShardEntry, batch: pa.RecordBatch, first: int, counts: dict[tuple[int, bool], np.ndarray]) -> None:
    """Adds the rows, tokens and documents of the runs of a batch that begins with row `first`, by cell."""
    offsets = columns.numbers(batch.column("lengths").offsets)
    tokens, starting = (
        np.concatenate([[0], np.cumsum(values)])[offsets]  # (num_rows + 1,) before each row
        for values in (
            columns.numbers(batch.column("lengths").values).astype(np.int64),
            columns.numbers(batch.column("starts").values) == 0,
        )
    )
    for run, start, stop in entry.runs_between(first, first + batch.num_rows):
        begin, end = start - first, stop - first
        of_run = counts.setdefault((run.cell, run.again), np.zeros(3, np.int64))
        of_run += (end - begin, tokens[end] - tokens[begin], starting[end] - starting[begin])


def _count_problems(path: str, counts: Sequence[int | None], expected: Mapping[str, int]) -> list[str]:
    """Counts that are not the expected ones; one that is None is unknown."""
    return [
        f"{path}: {count} {name}, expected {wanted}"
        for count, (name, wanted) in zip(counts, expected.items())
        if count not in (None, wanted)
    ]


def batch_problem(
    batch: pa.RecordBatch,
    vocab_size: int,
    eos_id: int,
    # the token that begins every document, and occurs nowhere else; None where nothing does
    bos_id: int | None = None,
    # the length of every piece, if all have one; such pieces may end anywhere in their document
    piece_length: int | None = None,
    *,
    # whether documents may have been taken out of the rows, so that the last piece of a row may end anywhere
    was_cut: bool = False,
) -> str | None:
    """The first problem in rows of `schemas.sequences`, or None. Where pieces may have any length,
    only the end of a row cuts a document. So the last token of a piece that ends before its row
    does must be the end-of-text token. No text encodes to that token, so it occurs nowhere else."""
    batch.validate(full=True)
    lists = [batch.column(name) for name in ("lengths", "keys", "starts")]
    offsets = columns.numbers(lists[0].offsets).astype(np.int64)
    if any(not np.array_equal(offsets, columns.numbers(column.offsets)) for column in lists[1:]):
        return "lengths, keys and starts that differ in number; expected one of each per piece"
    width = batch.column("tokens").type.list_size
    tokens = columns.numbers(batch.column("tokens").values)  # (num_rows * S,)
    lengths = columns.numbers(lists[0].values).astype(np.int64)  # (num_pieces,)
    if len(tokens) and int(tokens.max()) >= vocab_size:
        return f"token id {int(tokens.max())}, expected ids below {vocab_size}"
    if len(lengths) and (int(lengths.min()) < 1 or offsets[0] != 0 or offsets[-1] != len(lengths)):
        return f"a piece of {int(lengths.min())} tokens, or one in no row; expected at least 1 each"
    if len(lengths) and int(columns.numbers(lists[2].values).min()) < 0:
        return "a piece that starts before its document; expected starts from 0"
    sums = np.concatenate([[0], np.cumsum(lengths)])
    filled = sums[offsets[1:]] - sums[offsets[:-1]]  # (num_rows,)
    misfit = filled[(filled < 1) | (filled > width)]
    if len(misfit):
        return f"a row of {int(misfit[0])} tokens, expected 1 to {width}"
    stops = piece_stops(batch)
    last = tokens[stops - 1]
    may_end = np.zeros(len(stops), np.bool_)
    may_end[offsets[1:] - 1] = was_cut
    wrong = last[(stops % width != 0) & (last != eos_id) & ~may_end]
    if piece_length is not None and np.any(lengths != piece_length):
        return f"a piece of {int(lengths[lengths != piece_length][0])} tokens, expected {piece_length} in all of this shard"
    if piece_length is None and len(wrong):
        return f"a document that ends with id {int(wrong[0])}, expected end-of-text, {eos_id}"
    padding = int(batch.num_rows * width - filled.sum())
    if np.count_nonzero(tokens.reshape(-1, width)[np.arange(width) >= filled[:, None]] == eos_id) != padding:
        return f"padding with other ids than end-of-text, {eos_id}"
    has_segments = UNLEARNED in batch.schema.names  # which may mean either token anywhere
    if has_segments and (problem := _run_problem(batch, filled)):
        return problem
    inside = np.count_nonzero(tokens == eos_id) - padding - np.count_nonzero(last == eos_id)
    if inside and not has_segments:
        return f"{inside} end-of-text tokens, {eos_id}, inside documents; expected them at their ends only"
    if bos_id is None:
        return None
    is_begin = columns.numbers(lists[2].values) == 0
    begins = tokens[(stops - lengths)[is_begin]]
    if np.any(begins != bos_id):
        return f"a document that begins with id {int(begins[begins != bos_id][0])}, expected {bos_id}"
    within = 0 if has_segments else np.count_nonzero(tokens == bos_id) - len(begins)
    return f"{within} tokens of id {bos_id} inside documents; expected them at their beginnings only" if within else None


def _run_problem(batch: pa.RecordBatch, filled: np.ndarray) -> str | None:
    """The first row whose runs of unlearned tokens do not ascend within its tokens `filled`, (num_rows,)."""
    lists = batch.column(UNLEARNED)
    runs, counts = columns.numbers(lists.flatten()).astype(np.int64), np.diff(columns.numbers(lists.offsets))
    row = np.repeat(np.arange(batch.num_rows), counts)
    is_first = np.ones(len(runs), np.bool_)
    is_first[1:] = row[1:] != row[:-1]
    number = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
    gap = np.diff(runs, prepend=0)
    wrong = np.where(is_first, runs < 0, gap < number % 2) | (runs > filled[row])
    if np.any(counts % 2):
        return f"{int(counts[counts % 2 == 1][0])} borders of unlearned runs in a row; expected a start and a stop each"
    if wrong.any():
        return (
            f"an unlearned run with a border at {int(runs[wrong][0])}; expected runs that ascend within the tokens of the row"
        )
    return None


def _document_problem(batch: pa.RecordBatch, entry: ShardEntry, files: np.ndarray | None, seed: int) -> str | None:
    """The first document whose file is not known, or else whose shuffle hash is outside the range of the shard, or None."""
    halves = columns.key_halves(batch.column("keys").values)
    wrong, what = np.zeros(0, np.int64), ""
    if files is not None:
        wrong, what = np.flatnonzero(~np.isin(halves[0], files)), "file is not listed for this source in files.parquet"
    if not len(wrong) and entry.hashes is not None:
        hashes, (start, stop) = shuffle_hash(halves, seed), entry.hashes
        wrong = np.flatnonzero((hashes < np.uint64(start)) | (hashes > np.uint64(stop - 1)))
        what = f"shuffle hash is not in the range of this shard, {start:#x} to {stop:#x}"
    return f"document {halves[0][wrong[0]]:016x}{halves[1][wrong[0]]:016x}, whose {what}" if len(wrong) else None


def _add_cuts(cuts: _Cuts, batch: pa.RecordBatch, eos_id: int) -> None:
    """Adds the pieces that do not end their document, and those that continue one."""
    starts, lengths = (columns.numbers(batch.column(name).values) for name in ("starts", "lengths"))
    ends, continuing = position_hashes(batch, starts + lengths), starts_of(batch)
    is_cut = columns.numbers(batch.column("tokens").values)[piece_stops(batch) - 1] != eos_id
    cuts.add(ends[is_cut], continuing)
    if UNLEARNED in batch.schema.names:
        cuts.open_ends.append(ends[~is_cut])
        cuts.starts.append(continuing)

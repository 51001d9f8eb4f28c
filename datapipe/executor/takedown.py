"""Indexes that stand by themselves: made of the outputs of runs, and rid of documents that are to be forgotten.

    OUTPUT, OUTPUT, …  ─▶  INDEX            the files of rows linked, or copied where links cannot go
    INDEX, documents   ─▶  INDEX            the files that hold rows about them written again without; the old ones deleted

The rows of an input file lie in the files of its group alone, so a document costs reading those and no others. Both end with
`index.json` put in place, so that whoever is killed on the way leaves the index as it was, and may begin again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_BYTES, key_matrix
from datapipe.errors import UserError
from datapipe.executor.exchange import ExchangeWriter, read_blocks
from datapipe.executor.index import INDEX, ROWS, Index, IndexedFile, IndexedRows, IndexedStage, open_index, write_index
from datapipe.plan.inputs import file_hash
from datapipe.plan.tasks import HASH_SPACE, OutputRef
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root, open_input

_COPY_BYTES = 8 << 20


# ---------------------------------------------------------------------------------------------------- indexes of outputs


def make_index(outputs: Sequence[str], target: str) -> Index:
    """Makes one index of the rows of several outputs (or indexes). Raises UserError where `target` holds anything, or two of
    them are about one input file."""
    root = Root(target.rstrip("/"))
    if root.list_files(""):
        raise UserError(f"{target}: there are files here already. Expected a folder that is empty, or is not there yet.")
    stages: list[IndexedStage] = []
    rows: list[IndexedRows] = []
    files: list[IndexedFile] = []
    for url in outputs:
        index = open_index(url)
        _check_apart(index, files, url)
        numbers = [_number(stages, stage) for stage in index.stages]
        offset = 1 + max((one.group for one in files), default=-1)
        for one in index.rows:
            path = f"{ROWS}/{len(rows):06d}-{one.table}.exchange"
            output = _copied(index, one.output, root, path)
            rows.append(IndexedRows(stage=numbers[one.stage], group=one.group + offset, table=one.table, output=output))
        files += [replace(one, group=one.group + offset) for one in index.files]
    made = Index(root=root, stages=tuple(stages), rows=tuple(rows), files=tuple(files))
    write_index(made)
    return made


def _check_apart(index: Index, files: Sequence[IndexedFile], url: str) -> None:
    known = {one.hash for one in files}
    again = next((one for one in index.files if one.hash in known), None)
    if again is not None:
        raise UserError(f"{url}: the file '{again.path}' of source '{again.source}' is in another of these too. Leave out one.")


def _number(stages: list[IndexedStage], stage: IndexedStage) -> int:
    """The number of a stage, which is added where it is not there."""
    if stage not in stages:
        stages.append(stage)
    return stages.index(stage)


def _copied(index: Index, output: OutputRef, root: Root, path: str) -> OutputRef:
    """A file of rows under another root: the same file by a hard link, or a copy that was checked."""
    source = index.root.child_url(output.path)
    if index.root.size(output.path) != output.bytes:
        raise UserError(f"{source}: this file of the index is gone, or not what it was, so nothing was made of it.")
    if index.root.local is not None and root.local is not None:
        target = root.local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(index.root.local / output.path, target)
        except OSError:  # another disk
            shutil.copyfile(index.root.local / output.path, target)
    else:
        with open_input(source) as stream, root.open_output(path) as copy:
            while chunk := stream.read_buffer(_COPY_BYTES):
                copy.write(chunk)
    if file_checksum(root, path)[0] != output.checksum:
        raise UserError(f"{source}: not what was written, so nothing was made of it. Run the output's mixture again.")
    return replace(output, path=path, url="")


# ---------------------------------------------------------------------------------------------------- takedown


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenDown:
    """What a takedown did: rows that went, by stage; documents that had none, as they were named."""

    rows: Mapping[str, int]
    unknown: tuple[str, ...]


def take_down(url: str, documents: Sequence[str]) -> TakenDown:
    """Deletes all rows about documents from an index.

    Args:
        url: of an index that `make_index` made. Raises UserError for others: what a run committed belongs to that run.
        documents: each as SOURCE/PATH:PLACE, or the 32 hex digits of its key. Raises UserError for what is neither, or names
            a file that the index does not know.
    """
    root = Root(url.rstrip("/"))
    if not root.exists(INDEX):
        raise UserError(
            f"{url}: documents are taken down from an index that `datapipe index` made. Of an output, take them out of the "
            f"input, "
            "and run the same command again."
        )
    index = open_index(url)
    named = {_key(index, document): document for document in documents}
    hashes = {int.from_bytes(key[:8], "big") for key in named}
    groups = {one.group for one in index.files if one.hash in hashes}
    wanted = np.array(sorted(named), f"S{KEY_BYTES}")
    gone: Counter[str] = Counter()
    found: set[bytes] = set()
    rows: list[IndexedRows] = []
    replaced: list[str] = []
    for one in index.rows:
        output = one.output if one.group not in groups else _without(root, one, wanted, found)
        if output is not one.output:
            gone[index.stages[one.stage].name] += one.output.rows - (output.rows if output else 0)
            replaced.append(one.output.path)
        if output is not None:
            rows.append(replace(one, output=output))
    if replaced:
        write_index(replace(index, rows=tuple(rows)))
    _delete_others(root, {one.output.path for one in rows})
    return TakenDown(rows=dict(gone), unknown=tuple(name for key, name in named.items() if key not in found))


def _key(index: Index, document: str) -> bytes:
    """The key of a document, by what the user calls it."""
    if len(document) == 2 * KEY_BYTES and all(one in "0123456789abcdef" for one in document.lower()):
        key, where = bytes.fromhex(document), "its file"
    else:
        source, slash, rest = document.partition("/")
        path, colon, place = rest.rpartition(":")
        if not (slash and colon and place.isascii() and place.isdigit() and int(place) < HASH_SPACE):
            raise UserError(f"{document!r}: expected SOURCE/PATH:PLACE, as `inspect` shows it, or the 32 hex digits of a key.")
        key, where = file_hash(source, path).to_bytes(8, "big") + int(place).to_bytes(8, "big"), f"'{path}' of '{source}'"
    if all(one.hash != int.from_bytes(key[:8], "big") for one in index.files):
        raise UserError(f"{document}: the index has no documents of {where}.")
    return key


def _without(root: Root, one: IndexedRows, wanted: np.ndarray, found: set[bytes]) -> OutputRef | None:
    """The file of rows without those about the wanted documents: the same where it has none, None where nothing is left."""
    num_hits = 0
    schema = pa.schema([])
    for block in read_blocks(root, one.output, (0,), (HASH_SPACE,)):
        hit = _hits(block, wanted)
        found.update(block.column("key").filter(pa.array(hit)).to_pylist())
        num_hits += int(hit.sum())
        schema = block.schema
    if num_hits in (0, one.output.rows):
        return None if num_hits else one.output
    writer = ExchangeWriter(root, f"{ROWS}/{uuid.uuid4().hex}-{one.table}.exchange", schema)
    for block in read_blocks(root, one.output, (0,), (HASH_SPACE,)):
        writer.add(block.filter(pa.array(~_hits(block, wanted))))
    return writer.finish()


def _hits(block: pa.RecordBatch, wanted: np.ndarray) -> np.ndarray:
    """Which rows are about one of the sorted keys, (num_rows,) bool."""
    keys = np.ascontiguousarray(key_matrix(block.column("key"))).view(f"S{KEY_BYTES}").reshape(-1)
    return wanted[np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)] == keys


def _delete_others(root: Root, named: set[str]) -> None:
    """Deletes files of rows that the index does not name (any more)."""
    for path, _ in root.list_files(ROWS):
        if path not in named:
            root.delete(path)

"""Indexes that stand by themselves: made of the outputs of runs, and rid of documents that are to be forgotten.

    OUTPUT, OUTPUT, …  ─▶  INDEX            the files of rows linked, or copied where links cannot go
    INDEX, documents   ─▶  INDEX            the files that hold rows about them written again without; the old ones deleted

The rows of an input file lie in the files of its group alone, so a document costs reading those and no others. Both end with
`index.json` put in place, so that whoever is killed on the way leaves the index as it was, and may begin again. One at a time:
of two that are at work on an index the second is refused, since it would bring back, or delete, what the first one wrote.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_BYTES, key_matrix
from datapipe.errors import UserError
from datapipe.exchange.files import ExchangeWriter, read_blocks
from datapipe.index.write import INDEX, ROWS, Index, IndexedFile, IndexedRows, IndexedStage, open_index, write_index
from datapipe.ledger.lock import exclusive
from datapipe.ledger.names import LEASE, LOCK
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.splits import file_hash
from datapipe.plan.work import HASH_SPACE
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root, open_input

_COPY_BYTES = 8 << 20
_LOCKS = LOCK, LEASE
_LEFT = re.compile(
    rf"{ROWS}/\d{{6,}}-\w+\.exchange|index/(tables|files)-[0-9a-f]{{16}}\.parquet|(index/)?\.[\w.-]+\.tmp|{'|'.join(_LOCKS)}"
)
"""Files of an index that was not finished; and the lock, which stays."""

_OF = re.compile(r" \(of [^()]*\).*$")
_BETWEEN = re.compile(r"  +")
"""How `inspect` prints a document: `web  part-0.jsonl:123 (of runs/2024)  4,194 characters`."""


# ---------------------------------------------------------------------------------------------------- indexes of outputs


def make_index(outputs: Sequence[str], target: str) -> Index:
    """Makes one index of the rows of several outputs (or indexes). Raises UserError where `target` holds anything, two of them
    are about one input file, or one has rows of a stage that another lacks."""
    root = Root(target.rstrip("/"))
    _check_free(root)
    with exclusive(root):
        _check_free(root)  # somebody else may have been the first
        for path, _ in root.list_files(""):
            if path not in _LOCKS:
                root.delete(path)
        made = _made(outputs, root)
        write_index(made)
    return made


def _check_free(root: Root) -> None:
    """Raises UserError where there is more than what a killed `datapipe index` leaves."""
    others = [path for path, _ in root.list_files("") if not _LEFT.fullmatch(path)]
    if others:
        raise UserError(
            f"{root.url}: there are files here already, such as {others[0]}. Expected a folder that is empty, or "
            "is not there yet."
        )


def _made(outputs: Sequence[str], root: Root) -> Index:
    """The index, with its rows in place."""
    stages: tuple[IndexedStage, ...] = ()
    rows: list[IndexedRows] = []
    files: list[IndexedFile] = []
    for url in outputs:
        index = open_index(url)
        _check_apart(index, files, url)
        stages = stages or _distinct(index.stages)
        numbers = _numbers(stages, index, url)
        offset = 1 + max((one.group for one in files), default=-1)
        for one in index.rows:
            path = f"{ROWS}/{len(rows):06d}-{one.table}.exchange"
            output = _copied(index, one.output, root, path)
            rows.append(IndexedRows(stage=numbers[one.stage], group=one.group + offset, table=one.table, output=output))
        files += [replace(one, group=one.group + offset) for one in index.files]
    return Index(root=root, stages=stages, rows=tuple(rows), files=tuple(files))


def _check_apart(index: Index, files: Sequence[IndexedFile], url: str) -> None:
    known = {one.hash for one in files}
    again = next((one for one in index.files if one.hash in known), None)
    if again is not None:
        raise UserError(
            f"{url}: the file '{again.path}' of source '{again.source}' is in another of these too. If it is the same file, "
            "leave out one of them. Two files of one name cannot be in one index, since their documents have the same keys: "
            f"give the source of one run another name, such as '{again.source}-2', and run that mixture again."
        )


def _distinct(stages: Sequence[IndexedStage]) -> tuple[IndexedStage, ...]:
    """Stages without those that a run had twice, for different sources, with options that change no row."""
    return tuple(one for number, one in enumerate(stages) if one not in stages[:number])


def _numbers(stages: Sequence[IndexedStage], index: Index, url: str) -> list[int]:
    """The number of each of an index's stages among `stages`: the one of this name whose rows mean the same, or the only one
    whose rows do.

    Raises UserError where they have not the same stages. A run held against both would be held, for some of its stages, against
    the documents of one of them alone, and nothing would say so.
    """
    own = _distinct(index.stages)
    numbers = [_like(stages, one) for one in own]
    if sorted(numbers) != list(range(len(stages))):
        here, before = (", ".join(one.name for one in listed) for listed in (own, stages))
        raise UserError(
            f"{url}: its stages are {here}, those of the outputs before it {before}, and they do not go together one by one. "
            "Make an index of each, and give every stage those that it can be held against, as in against: [INDEX, INDEX]."
        )
    return [numbers[own.index(one)] for one in index.stages]


def _like(stages: Sequence[IndexedStage], stage: IndexedStage) -> int:
    """Which of `stages` has rows that mean the same; by name where several do. -1 where there is none."""
    alike = [number for number, one in enumerate(stages) if one.identity == stage.identity]
    if len(alike) > 1:
        alike = [number for number in alike if stages[number].name == stage.name]
    return alike[0] if alike else -1


def _copied(index: Index, output: ExchangeFile, root: Root, path: str) -> ExchangeFile:
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
        documents: each as SOURCE/PATH:PLACE, PATH:PLACE where one source alone has such a file, as `inspect` prints it, or the
            32 hex digits of its key. Raises UserError for what is none of these.
    """
    root = Root(url.rstrip("/"))
    if not root.exists(INDEX):
        raise UserError(
            f"{url}: documents are taken down from an index that `datapipe index` made. Of an output, take them out of the "
            "input, and run the same command again."
        )
    with exclusive(root):
        return _take_down(open_index(url), documents)


def _take_down(index: Index, documents: Sequence[str]) -> TakenDown:
    root = index.root
    named = {_key(index, document): document for document in documents}
    hashes = {int.from_bytes(key[:8], "big") for key in named}
    groups = {one.group for one in index.files if one.hash in hashes}
    wanted = np.array(sorted(named), f"S{KEY_BYTES}")
    gone: Counter[str] = Counter()
    found: set[bytes] = set()
    rows: list[IndexedRows] = []
    for one in index.rows:
        output = one.output if one.group not in groups else _without(root, one, wanted, found)
        if output is not one.output:
            gone[index.stages[one.stage].name] += one.output.rows - (output.rows if output else 0)
        if output is not None:
            rows.append(replace(one, output=output))
    write_index(replace(index, rows=tuple(rows)))  # where nothing was found too: a killed takedown may have left old ones
    _delete_others(root, {one.output.path for one in rows})
    return TakenDown(rows=dict(gone), unknown=tuple(name for key, name in named.items() if key not in found))


def _key(index: Index, document: str) -> bytes:
    """The key of a document, by what the user calls it."""
    if len(document) == 2 * KEY_BYTES and all(one in "0123456789abcdef" for one in document.lower()):
        return bytes.fromhex(document)
    named, colon, place = _OF.sub("", document).strip().rpartition(":")
    if not (named and colon and place.isascii() and place.isdigit() and int(place) < HASH_SPACE):
        raise UserError(f"{document!r}: expected SOURCE/PATH:PLACE, a line of `inspect`, or the 32 hex digits of a key.")
    named = _BETWEEN.sub("/", named, count=1)
    sources = {one.source for one in index.files if one.path == named}
    if len(sources) > 1:
        raise UserError(f"{document!r}: {' and '.join(sorted(sources))} have such a file. Expected SOURCE/PATH:PLACE.")
    source, path = (sources.pop(), named) if sources else (named.partition("/")[0], named.partition("/")[2])
    return file_hash(source, path).to_bytes(8, "big") + int(place).to_bytes(8, "big")


def _without(root: Root, one: IndexedRows, wanted: np.ndarray, found: set[bytes]) -> ExchangeFile | None:
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

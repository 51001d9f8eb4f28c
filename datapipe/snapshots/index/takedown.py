"""Indexes in separate folders: made of the outputs of runs, and rid of documents by takedowns.

    OUTPUT, OUTPUT, …  ─▶  INDEX      files of rows are hard links, or copies where links are impossible
    INDEX, documents   ─▶  INDEX      files with rows of these documents are written again without them

The rows of an input file are in the files of its group alone, so a takedown reads the groups of its documents and no others.
Both commands end by replacing `index.json`. A killed command leaves the index as it was, and the same command starts again. The
folder of a new index is marked like that of an export (`snapshots/export/folder.py`). Of two commands on one index the
second is refused: it would restore or delete files that the first one writes.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from datapipe.columns import key_matrix
from datapipe.credentials import masked
from datapipe.dataclass import dataclass, replace
from datapipe.document_name import InputFiles
from datapipe.errors import UserError
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.ranges import HASH_SPACE, read_blocks
from datapipe.records.checksum import bytes_checksum, file_checksum
from datapipe.records.outputs import ExchangeFile
from datapipe.shards.removed import Removed
from datapipe.snapshots.export.folder import MARK, ExportFolder
from datapipe.snapshots.index.write import (
    INDEX,
    ROWS,
    Index,
    IndexedFile,
    IndexedRows,
    IndexedStage,
    check_files,
    open_index,
    write_index,
)
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root


def make_index(outputs: Sequence[str], target: str) -> Index:
    """Makes one index of the rows of several outputs or indexes. One that was made of the same rows is left as it is. Raises
    UserError when `target` contains anything else, when two outputs are about one input file, or have different stages."""
    root = Root(target.rstrip("/"))
    made_of = {masked(url): bytes_checksum(open_index(url).root.read_bytes(INDEX)) for url in outputs}
    folder = ExportFolder(root=None, target=root, request={"kind": "index", **made_of})
    folder.check()
    with exclusive(root):
        if folder.begin() is None:  # another process may have made it meanwhile
            write_index(_copy_rows(outputs, root))
            folder.end(True)
        index = open_index(root.url)
    check_files(index, (rows.output for rows in index.rows), "Delete the folder, and run the same command again.")
    return index


def _copy_rows(outputs: Sequence[str], root: Root) -> Index:
    stages: tuple[IndexedStage, ...] = ()
    rows: list[IndexedRows] = []
    files: list[IndexedFile] = []
    for url in outputs:
        index = open_index(url)
        _check_no_common_file(index, files, url)
        stages = stages or _distinct(index.stages)
        numbers = _stage_numbers(stages, index, url)
        group_offset = 1 + max((file.group for file in files), default=-1)
        for old in index.rows:
            path = f"{ROWS}/{len(rows):06d}-{old.table}.exchange"
            output = _copied(index, old.output, root, path)
            rows.append(replace(old, stage=numbers[old.stage], group=old.group + group_offset, output=output))
        files += [replace(file, group=file.group + group_offset) for file in index.files]
    return Index(root=root, stages=stages, rows=tuple(rows), files=tuple(files))


def _check_no_common_file(index: Index, files: Sequence[IndexedFile], url: str) -> None:
    known = {file.hash for file in files}
    common = next((file for file in index.files if file.hash in known), None)
    if common is not None:
        raise UserError(
            f"{url}: the file '{common.path}' of source '{common.source}' is in another of these outputs too. If it is the "
            "same file, leave out one of the outputs. Two files of one name cannot be in one index, because their documents "
            "have the same keys: give the source of one run another name, such as "
            f"'{common.source}-2', and run that mixture again."
        )


def _distinct(stages: Sequence[IndexedStage]) -> tuple[IndexedStage, ...]:
    """The stages without repetitions. A run has a stage twice where sources give it different options that change no row."""
    return tuple(stage for number, stage in enumerate(stages) if stage not in stages[:number])


def _stage_numbers(stages: Sequence[IndexedStage], index: Index, url: str) -> list[int]:
    """For each stage of an index, the number of the stage with comparable rows among `stages`. Raises UserError when they
    do not correspond one to one: a run would compare some of its documents with one output alone, without a message."""
    distinct = _distinct(index.stages)
    numbers = [_comparable(stages, stage) for stage in distinct]
    if sorted(numbers) != list(range(len(stages))):
        here, before = (", ".join(stage.name for stage in listed) for listed in (distinct, stages))
        raise UserError(
            f"{url}: its stages are {here}, those of the outputs before it are {before}. They do not correspond one to one. "
            "Make an index of each output, and give every stage the indexes that it can be compared with, as in "
            "against: [INDEX, INDEX]."
        )
    return [numbers[distinct.index(stage)] for stage in index.stages]


def _comparable(stages: Sequence[IndexedStage], stage: IndexedStage) -> int:
    """The number of the stage whose rows are comparable; the one of the same name where there are several. -1 for none."""
    comparable = [number for number, other in enumerate(stages) if other.identity == stage.identity]
    if len(comparable) > 1:
        comparable = [number for number in comparable if stages[number].name == stage.name]
    return comparable[0] if comparable else -1


def _copied(index: Index, output: ExchangeFile, root: Root, path: str) -> ExchangeFile:
    """A file of rows below another root: a hard link or a copy, with its checksum verified."""
    check_files(index, [output], "No index was made.")
    root.take(index.root, output.path, path, f"{path}.taken")
    if file_checksum(root, path, output.checksum)[0] != output.checksum:
        source = index.root.child_url(output.path)
        raise UserError(
            f"{source}: the content does not match its checksum. No index was made. Run the output's mixture again."
        )
    return replace(output, path=path, url="")


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenDown:
    """The result of a takedown from an index, or from an output."""

    num_documents: int  # how many the user named, each counted once
    # num_new, num_before: of these, documents that this takedown took down, and that one before it did, as
    # far as that is known: an index has no list of them
    num_new: int
    num_before: int = 0
    rows: Mapping[str, int]  # rows of indexes that were deleted, by stage
    # documents that are not taken down, as the user named them, each with the reason
    unknown: Mapping[str, str]


def take_down(url: str, documents: Sequence[str]) -> TakenDown:
    """Deletes all rows of some documents, in the forms of `InputFiles.key`, from an index that
    `make_index` made. Raises UserError for an output, whose files belong to its run."""
    root = Root(url.rstrip("/"))
    if not root.exists(INDEX):
        raise UserError(
            f"{url}: no index, and no snapshot. Expected an index that `datapipe index` made, or the output of a run."
        )
    with exclusive(root):
        root.delete(MARK)  # of a command that was killed at its end: the same command would make the index again
        index = open_index(url)
        files = InputFiles((file.hash, file.source, file.path) for file in index.files)
        try:
            named = {document: files.key(document) for document in documents}
        except UserError as error:
            raise UserError(
                f"{error} An index holds no ids of your own: `datapipe inspect OUTPUT --document ID` prints the name of a "
                f"document."
            ) from None
        rows, known = delete_rows(index, Removed.none().with_takedown({key for key in named.values() if key is not None}))
    hashes = {file.hash for file in index.files}
    unknown = {
        document: "it has no rows" if key is not None and int.from_bytes(key[:8], "big") in hashes else "no such input file"
        for document, key in named.items()
        if key not in known
    }
    num_documents = len({key or document for document, key in named.items()})
    return TakenDown(num_documents=num_documents, num_new=len(known), rows=dict(rows), unknown=unknown)


def delete_rows(index: Index, removed: Removed) -> tuple[Counter[str], set[bytes]]:
    """Writes an index without the rows of some documents. Returns the number of deleted rows by stage,
    and the keys that had rows. Files of rows that a run made stay, and are no longer listed."""
    root = index.root
    hashes = set(removed.halves[0].tolist())
    groups = {file.group for file in index.files if file.hash in hashes}
    num_deleted: Counter[str] = Counter()
    known: set[bytes] = set()
    kept: list[IndexedRows] = []
    for rows in index.rows:
        output = rows.output if rows.group not in groups else _without(root, rows, removed, known)
        if output is not rows.output:
            num_deleted[index.stages[rows.stage].name] += rows.output.rows - (output.rows if output else 0)
        if output is not None:
            kept.append(replace(rows, output=output))
    write_index(replace(index, rows=tuple(kept)))  # also without a hit: a killed takedown may have left old files
    named = {rows.output.path for rows in kept}
    for path, _ in root.list_files(ROWS):
        if path not in named:
            root.delete(path)
    return num_deleted, known


def _without(root: Root, rows: IndexedRows, removed: Removed, known: set[bytes]) -> ExchangeFile | None:
    """A file of rows without those of some documents: the same file where it has none, None where
    it has no other. Adds the keys with rows to `known`."""
    num_hits = 0
    schema = pa.schema([])
    for block in read_blocks(root, rows.output, (0,), (HASH_SPACE,)):
        hits = removed.holds(key_matrix(block.column("key")))
        known.update(block.column("key").filter(pa.array(hits)).to_pylist())
        num_hits += int(hits.sum())
        schema = block.schema
    if num_hits in (0, rows.output.rows):
        return None if num_hits else rows.output
    writer = ExchangeWriter(root, f"{ROWS}/{uuid.uuid4().hex}-{rows.table}.exchange", schema)
    for block in read_blocks(root, rows.output, (0,), (HASH_SPACE,)):
        writer.add(block.filter(pa.array(~removed.holds(key_matrix(block.column("key"))))))
    return writer.finish()

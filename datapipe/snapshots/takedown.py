"""Takedowns: documents that no loader hands out any more, from the next snapshot of an output on.

    keys ─▶ removed.parquet of a new snapshot    its shards are the same, and loaders pad the tokens of these documents in place
         ─▶ the index of the output              their rows are deleted: no later document is dropped as a copy of them

The order of rows stays, so a trainer moves to the new snapshot with its place, and steps before that are as they were. The list
goes on into every later snapshot of the output, and of outputs that take its rows. What erases the tokens from the disk is an
export, which writes the shards without them.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing

from datapipe import columns
from datapipe.credentials import masked
from datapipe.document_name import InputFiles
from datapipe.errors import UserError
from datapipe.quantities import counted
from datapipe.records.names import CARD, CROISSANT, REMOVED, REPORT, SNAPSHOT, WORK, published_tasks
from datapipe.rng import shuffle_hash
from datapipe.shards.document_files import files_in, files_with_hashes, find_keys
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.removed import Removed, read_removed, removed_entry
from datapipe.shards.shard_file import open_shard
from datapipe.shards.shard_table import RowForm, ShardEntry
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.shards.snapshots import PIN, PUBLICATION, newest_manifest, note_publication
from datapipe.snapshots.composed_manifest import publish_files
from datapipe.snapshots.index.takedown import TakenDown, delete_rows
from datapipe.snapshots.index.write import INDEX, open_index
from datapipe.stage.decoding import BrokenStreamError, as_utf8
from datapipe.steps.request import TakenSource
from datapipe.steps.warnings import RunWarning
from datapipe.storage.lock import OutputLock, exclusive
from datapipe.storage.root import Root, open_input

NO_ROW = "It was dropped before, or there is no document at this position: nothing was taken down."

_BYTE_ORDER_MARK = "\ufeff"
_LISTED = 10  # Documents, or pairs of files, that warnings name


def take_down(root: Root, documents: Sequence[str]) -> tuple[Snapshot, TakenDown]:
    """Publishes a snapshot that leaves documents out, and deletes their rows from the index of an
    output. The next takedown completes one that was killed. Raises UserError for text that names no
    document.

    Documents that no row has are not taken down: they were dropped, or there is none at their
    position. On object stores this is not checked, because it would read all shards."""
    with exclusive(root) as lock:
        before = read_snapshot(root)
        if not before.has_tokens:
            raise UserError(
                f"{root.url}: this output holds documents, not tokens. Remove them from the input, and run the mixture again."
            )
        by_document = dict(zip(documents, find_keys(files_with_hashes(root, before), documents)))
        keys = {key for key in by_document.values() if key is not None}
        there = keys if root.local is None else documents_with_rows(root, before.shards, keys, before.seed, before.form)
        removed = read_removed(root, before)
        after = removed.with_takedown(there)
        snapshot = before if after is removed else _publish(lock, before, after)
        rows = delete_from_index(root, after)
    unknown = {
        document: "no such input file" if key is None else f"no row has it. {NO_ROW}"
        for document, key in by_document.items()
        if key is None or key not in there
    }
    num_documents, num_new = len({key or document for document, key in by_document.items()}), len(after) - len(removed)
    num_before = len(there) - num_new
    done = TakenDown(num_documents=num_documents, num_new=num_new, num_before=num_before, rows=rows, unknown=unknown)
    return snapshot, done


def _publish(lock: OutputLock, before: Snapshot, removed: Removed) -> Snapshot:
    entry, needed = removed_entry(removed, REMOVED)
    after = before.model_copy(update={"removed": entry}).sealed()
    note_publication(lock.root, after.fingerprint)
    about = _files_about(lock.root, before, after)
    tasks = published_tasks(before.fingerprint)
    if lock.root.exists(tasks):  # noted before the snapshot is published, since this process may be killed
        lock.root.write_atomic(published_tasks(after.fingerprint), lock.root.read_bytes(tasks))
    publish_files(lock, after, needed, about, [REPORT] if REPORT in about else [])
    return after


def _files_about(target: Root, old: Snapshot, new: Snapshot) -> dict[str, bytes]:
    """The other files of a snapshot's folder, for one with the same shards. The caller writes the card again."""
    within = target.within(snapshot_folder(old.fingerprint))
    names = {path for path, _ in within.list_files("", recursive=False)} - {SNAPSHOT, PUBLICATION, PIN, CARD, CROISSANT}
    about = {name: within.read_bytes(name) for name in names}
    if REPORT in about:
        report = json.loads(about[REPORT])
        if report.get("shards"):
            changed = {"fingerprint": new.fingerprint, "before": old.fingerprint, "taken_down": new.num_removed}
            report["shards"] |= changed
            about[REPORT] = (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode()
    return about


def delete_from_index(root: Root, removed: Removed) -> dict[str, int]:
    """Deletes the rows of documents from the index of an output. Returns how many, by stage."""
    hashes = set(removed.halves[0].tolist())
    if not hashes or not root.exists(f"{WORK}/{INDEX}"):
        return {}
    index = open_index(root.url)
    return dict(delete_rows(index, removed)[0]) if hashes & {file.hash for file in index.files} else {}


def takedown_warnings(
    named: Sequence[str], taken: Mapping[str, TakenSource], files: bytes, removed: Removed
) -> list[RunWarning]:
    """Warnings about a list of takedowns (`named`): documents that it names and that no file or no row has, and files of one
    name in two outputs, whose documents have the same keys. `files` is files.parquet of the snapshot, `removed` its list."""
    known = files_in(files)
    keys = dict(zip(named, find_keys(known, named)))
    unknown = [document for document, key in keys.items() if key is None]
    rowless = [document for document, key in keys.items() if key is not None and not removed.has(key)]
    warnings: list[RunWarning] = []
    for documents, what in ((unknown, "of files that are not there"), (rowless, "that no row has")):
        if documents:
            text = f"takedown names {counted(len(documents), 'document')} {what}, such as {documents[0]}"
            why = "" if documents is unknown else f". {NO_ROW}"
            details = {"documents": documents[:_LISTED], "count": len(documents)}
            warnings.append(RunWarning(kind="takedown_of_nothing", text=text + why, details=details))
    hashes = set(removed.halves[0].tolist())
    places: dict[int, dict[str, str]] = {}
    for number, source, path in known:
        if number in hashes:
            place = taken[source].root.url if source in taken else ""
            places.setdefault(number, {})[place] = f"{source}/{path}"
    for names in [sorted(names.values()) for names in places.values() if len(names) > 1][:_LISTED]:
        text = (
            f"{names[0]} and {names[1]} are files of two outputs with one name, so their documents have the same keys: what "
            f"was taken down of one is left out of both. Run one of their mixtures again with another name for the source."
        )
        warnings.append(RunWarning(kind="takedown_of_two", text=text, details={"files": names}))
    return warnings


def documents_with_rows(
    root: Root, shards: Iterable[ShardEntry], keys: Collection[bytes], seed: int, form: RowForm
) -> set[bytes]:
    """Those of the documents that rows of shards have, by the keys of the shards that may have
    them. `seed` and `form` are those of the snapshot."""
    wanted = Removed.none().with_takedown(keys)
    hashes = shuffle_hash(wanted.halves, seed)
    present: set[bytes] = set()
    for entry in shards:
        if not entry.may_have(hashes):
            continue
        with closing(open_shard(root, entry, form)) as shard:
            for number in range(shard.num_batches):
                matrix = columns.key_matrix(shard.batch(number).column("keys").values)
                present.update(key.tobytes() for key in matrix[wanted.holds(matrix)])
    return present


def named_in(path: str | None, wrong: list[str] | None = None) -> list[str]:
    """The documents that a file or URL names, one a line, each as `InputFiles.key` takes it. A comment begins with #. Raises
    UserError for a file that cannot be read, and for a line that names no document. `wrong` is given for a file that grows: it
    gets these errors, and a line without its end does not count."""
    if path is None:
        return []
    try:
        with open_input(path) as stream:
            content = b"".join(as_utf8(iter([stream.read()]))).decode()
    except (OSError, ValueError, BrokenStreamError) as error:
        raise UserError(f"{masked(path)}: {error}. Expected a text file with one document a line.") from error
    if wrong is not None:
        content = content[: content.rfind("\n") + 1]
    named: list[str] = []
    for number, line in enumerate(content.split("\n"), 1):
        text = line.strip().lstrip(_BYTE_ORDER_MARK).strip()
        if not text or text.startswith("#"):
            continue
        try:
            InputFiles(()).key(text)
        except UserError as error:
            message = f"{masked(path)}, line {number}: {error}"
            if wrong is None:
                raise UserError(message) from None
            wrong.append(message)
        else:
            named.append(text)
    return named


def removed_documents(
    root: Root,
    named: Sequence[str],
    taken: Mapping[str, TakenSource],
    files: bytes,
    with_rows: Callable[[set[bytes]], set[bytes]] | None = None,
) -> Removed:
    """The documents that the next snapshot leaves out: those of the newest snapshot, those of the
    outputs in `taken`, and those that the mixture names (`named`) and that are in its files.
    `with_rows` finds those of some documents that rows have."""
    removed = read_removed(root, newest_manifest(root))
    others = {source.snapshot.fingerprint: source for source in taken.values()}
    of_others = [key for source in others.values() for key in read_removed(source.root, source.snapshot).keys.tolist()]
    known = files_in(files) if named else []
    named_keys = {key for key in find_keys(known, named) if key is not None}
    of_taken = {number for number, source, _ in known if source in taken}
    searched = {key for key in named_keys if int.from_bytes(key[:8], "big") not in of_taken}
    absent = searched - with_rows(searched) if with_rows is not None and searched else set()
    return removed.with_takedown([*of_others, *(named_keys - absent)])

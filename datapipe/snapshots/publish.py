"""From committed files to snapshots: every shard, or file of documents, under its own name, snapshot.json last.

    work/attempts/…/part-00003-00000.arrow  ─▶  shards/web/part-00003-00000-<digest>.arrow, which the pack task has done
    snapshots/<fingerprint>/     tokenizer, file table, mixture, report, publication.json, and then the manifest
    OUTPUT/                      the newest tokenizer, file table and report, and then snapshot.json
    removed.parquet              in both, where documents were taken down: those of the snapshot before, and new ones

Nothing that an earlier snapshot needs is changed or deleted, so loaders of any snapshot go on. A run that is killed while it
publishes leaves files that no manifest names; the next run completes them, or `datapipe clean` deletes them. Shards of a
further sequence length have names below length-N/.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from operator import attrgetter

from datapipe.dataclass import dataclass, replace
from datapipe.errors import DatapipeError, SnapshotError
from datapipe.exchange.tables import check_committed, committed_bytes
from datapipe.quantities import counted
from datapipe.records.checksum import bytes_checksum
from datapipe.records.ledger import Ledger
from datapipe.records.names import CHAT_TEMPLATE, FILES, MIXTURE, PUBLISH, REMOVED, REPORT, TOKENIZER
from datapipe.records.outputs import DocumentsFile, OutputFile, ShardFile, TokenizerFile
from datapipe.records.versions import TrustedRecords
from datapipe.shards.document_files import files_in, files_parquet, files_with_hashes
from datapipe.shards.manifest import FileEntry, FurtherLength, Snapshot, read_snapshot
from datapipe.shards.removed import read_removed, removed_entry
from datapipe.shards.shard_table import RowForm, ShardEntry, with_digest
from datapipe.shards.snapshot_folder import has_snapshot, snapshot_folder
from datapipe.shards.snapshots import DATA_PATH, data_files, files_needed, note_publication
from datapipe.shards.source_entry import SourceEntry
from datapipe.snapshots.cells import FoundCells
from datapipe.snapshots.committed_steps import write_steps
from datapipe.snapshots.composed_manifest import file_entry, holds, make_snapshot, publish_files
from datapipe.snapshots.held_out import held_out_warnings
from datapipe.snapshots.index.write import index_of_run, index_of_snapshot, joined_index, write_index
from datapipe.snapshots.snapshot_sources import TakenShard, copy_shards, taken_files, taken_shards
from datapipe.snapshots.takedown import delete_from_index, documents_with_rows, named_in, removed_documents, takedown_warnings
from datapipe.steps.counts import source_counts, why_nothing_is_left
from datapipe.steps.grid import axes_of, names_of
from datapipe.steps.kind import Plan
from datapipe.steps.pack import PackTask
from datapipe.steps.request import Request
from datapipe.steps.splits import file_hash
from datapipe.steps.trusted import joined, trusted_records
from datapipe.steps.warnings import RunWarning
from datapipe.storage.lock import OutputLock
from datapipe.storage.root import Root

_REASONS = 5
_COPIES_AT_ONCE = 16  # on an object store
Show = Callable[[str], None]
MakeReport = Callable[[Plan, Snapshot, Sequence[RunWarning]], bytes]
"""Makes the content of report.json, with the warnings about the snapshot."""


def publish(
    lock: OutputLock,
    request: Request,
    plan: Plan,
    report: MakeReport | None,
    show: Show | None = None,
    *,
    keeps_index: bool = True,
) -> tuple[Snapshot, list[RunWarning]]:
    """Publishes the snapshot and the index of a committed plan. Returns the snapshot, and warnings. `report` makes the
    content of report.json; `show` gets lines about shards of other outputs, where they take a while. `keeps_index`: False
    where rows of the index were freed."""
    root, is_text, before = lock.root, request.mixture.tokenizer.is_none, request.added_to
    index = index_of_run(root, request, plan) if keeps_index else None
    if index is not None:
        write_index(index if before is None else joined_index(index_of_snapshot(root, before), index))
    own = [(file_hash(name, path), name, path) for name, source in request.sources.items() for path in source.files]
    earlier = () if before is None else files_with_hashes(root, before)
    _check_something_is_left(request, plan)
    files = files_parquet([*earlier, *own, *taken_files(request.taken)])
    make = _documents if is_text else _tokens
    made, warnings = make(root, request, plan, files)
    snapshot = made.snapshot
    warnings += _other_files(root, snapshot)
    about = {MIXTURE: request.mixture.resolved_yaml().encode()}
    if report is not None:
        about[REPORT] = report(plan, snapshot, warnings)
    write_steps(root, snapshot.fingerprint, plan)
    note_publication(root, snapshot.fingerprint)
    _publish_snapshot(lock, made, about, show)
    if snapshot.num_removed:
        delete_from_index(root, read_removed(root, snapshot))
    return snapshot, warnings


def unpublished(ledger: Ledger, request: Request, plan: Plan) -> set[str]:
    """The tasks of a committed plan whose shards were freed when they were published, and are published no longer."""
    if not ledger.has_freed:
        return set()
    if request.mixture.tokenizer.is_none:
        data = _document_files(request, plan, () if request.added_to is None else request.added_to.shards)
    else:
        data = [shard for length in request.mixture.pack.sequence_length for shard in _shards(plan, length)]
    sizes = dict(data_files(ledger.root))
    return ledger.freed_by(output for entry, output in data if sizes.get(entry.path) != entry.bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unpublished:
    """A snapshot that is made, and not published yet."""

    snapshot: Snapshot
    # its shards or files of documents, each with the committed file
    data: Sequence[tuple[ShardEntry, OutputFile]]
    needed: Mapping[str, bytes]  # content by path of the other files that the manifest names
    taken: Sequence[TakenShard] = ()  # its shards that other outputs have


def _tokens(root: Root, request: Request, plan: Plan, files: bytes) -> tuple[_Unpublished, list[RunWarning]]:
    """The snapshot of all sequence lengths, and warnings. It is made before anything is changed, since it may be refused."""
    tokenizer, before = plan.tokenizer, request.added_to
    assert tokenizer is not None
    named = named_in(request.mixture.takedown, None if before is None else [])
    checks_rows = root.local is not None and before is None
    with_rows = partial(_with_rows, root, request, plan, tokenizer) if checks_rows else None
    taken_down = removed_documents(root, named, request.taken, files, with_rows)
    removed, listed = removed_entry(taken_down, REMOVED)
    template, of_template = _chat_template(request)
    needed = {TOKENIZER: committed_bytes(root, tokenizer), FILES: files, **listed, **of_template}
    data: list[tuple[ShardEntry, OutputFile]] = []
    taken: list[TakenShard] = []
    lengths: list[Snapshot] = []
    warnings = takedown_warnings(named, request.taken, files, taken_down)
    found = {
        name: FoundCells(axes=axes_of(plan, name, source.split.by), names=names_of(plan, name))
        for name, source in request.mixture.sources.items()
        if source.split is not None
    }
    for length in request.mixture.pack.sequence_length:
        folder = f"length-{length}/" if lengths else ""
        own, others = _shards(plan, length), taken_shards(request.taken, length, folder, request.mixture.seed)
        entries = sorted([*(entry for entry, _ in own), *(shard.entry for shard in others)], key=attrgetter("numbered_path"))
        known = {name: source.entry for name, source in request.taken.items()}
        if before is not None:
            entries = [*before.of_length(length).shards, *entries]
            known = {name: before.sources[name] for name in request.mixture.snapshot_sources}
        made, warned = make_snapshot(request.mixture, length, tokenizer, entries, files, known, removed, found)
        warnings += [warning for warning in warned if warning not in warnings]
        data, taken, lengths = [*data, *own], [*taken, *others], [*lengths, made]
    also = {"further": tuple(map(FurtherLength.of, lengths[1:])), "trusted": _trusted(request, plan), "chat_template": template}
    snapshot = lengths[0].model_copy(update=also).sealed()
    own_shards, whole = [entry for entry in snapshot.shards if entry.source in request.sources], plan.with_earlier()
    held_out = held_out_warnings(root, request.mixture.validation, whole, own_shards, files_in(files))
    warnings = [*_with_reasons(request, whole, warnings), *held_out]
    return _Unpublished(snapshot=snapshot, data=data, taken=taken, needed=needed), warnings


def _chat_template(request: Request) -> tuple[FileEntry | None, dict[str, bytes]]:
    """The chat template of the sources, that of the first one that has any, as the manifest names it and by path."""
    stages = (bound.stage for source in request.sources.values() for bound in source.stages)
    text = next((text for stage in stages if (text := stage.chat_template()) is not None), None)
    if text is None:
        return None, {}
    content = text.encode()
    entry = FileEntry(path=CHAT_TEMPLATE, bytes=len(content), checksum=bytes_checksum(content))
    return entry, {CHAT_TEMPLATE: content}


def _check_something_is_left(request: Request, plan: Plan) -> None:
    """Raises DatapipeError where no source keeps a document, with the reason: such an output would hold nothing."""
    counts = {name: source_counts(plan, name) for name in request.sources}
    if request.taken or request.added_to is not None or any(source.document_counts.kept for source in counts.values()):
        return
    reasons = [f"source '{name}': {why_nothing_is_left(counts[name], request.sources[name].files)}" for name in counts]
    more = f"; and {counted(len(reasons) - _REASONS, 'more source')}" if len(reasons) > _REASONS else ""
    raise DatapipeError(
        f"no document is left, so nothing was published. {'; '.join(reasons[:_REASONS])}{more}. Loosen what drops them, or "
        f"check the files and the text field of the source."
    )


def _with_reasons(request: Request, plan: Plan, warnings: Sequence[RunWarning]) -> list[RunWarning]:
    def with_reason(warning: RunWarning) -> RunWarning:
        name = warning.source
        if warning.kind != "nothing_to_draw" or name not in request.sources or (counts := source_counts(plan, name)).tokens:
            return warning
        reason = why_nothing_is_left(counts, request.sources[name].files)
        return replace(warning, text=f"{warning.text} Why: {reason}.")

    return [with_reason(warning) for warning in warnings]


def _with_rows(root: Root, request: Request, plan: Plan, tokenizer: TokenizerFile, keys: set[bytes]) -> set[bytes]:
    length = request.mixture.pack.sequence_length[0]
    own = _shards(plan, length)  # a committed file is freed once it is published
    shards = [entry.model_copy(update={"path": output.path}) if root.exists(output.path) else entry for entry, output in own]
    form = RowForm(length, tokenizer.fingerprint, tokenizer.vocab_size)
    return documents_with_rows(root, shards, keys, request.mixture.seed, form)


def _documents(root: Root, request: Request, plan: Plan, files: bytes) -> tuple[_Unpublished, list[RunWarning]]:
    mixture = request.mixture
    before = () if request.added_to is None else request.added_to.shards
    data = _document_files(request, plan, before)
    entries = [*before, *(entry for entry, _ in data)]
    snapshot = Snapshot(
        name=mixture.name,
        seed=mixture.seed,
        shard_format=mixture.documents.format,
        sources={name: SourceEntry(weight=0, **source.provenance()) for name, source in mixture.sources.items()},
        files=file_entry(files),
        trusted=_trusted(request, plan),
        shards=tuple(entries),
    ).sealed()
    empty = sorted(mixture.sources.keys() - {entry.source for entry in entries})
    nothing = "kept no document."
    warnings = [RunWarning(kind="nothing_to_draw", source=name, text=f"source '{name}' {nothing}") for name in empty]
    warnings = _with_reasons(request, plan.with_earlier(), warnings)
    return _Unpublished(snapshot=snapshot, data=data, needed={FILES: files}), warnings


def _trusted(request: Request, plan: Plan) -> tuple[TrustedRecords, ...]:
    """The tasks that other versions of libraries ran, those of the snapshot that the files are added to included."""
    before = () if request.added_to is None else request.added_to.trusted
    return joined([*before, *trusted_records(plan.steps)])


def _document_files(request: Request, plan: Plan, before: Sequence[ShardEntry]) -> list[tuple[ShardEntry, DocumentsFile]]:
    """The files of documents with their entries in the snapshot, by path. The files of a source are counted, so that none
    seems to be missing where a document is larger than a file; those of files that are added follow those before."""
    entries: list[tuple[ShardEntry, DocumentsFile]] = []
    part, numbers = request.part, Counter(entry.source for entry in before)
    for step in plan.of_kind("write"):
        written = sorted(step.outputs("files", DocumentsFile), key=lambda output: output.number)
        for number, output in enumerate(written, numbers[step.source]):
            ending = output.path.rpartition("/")[2].partition(".")[2]
            path = with_digest(f"documents/{step.source}/part-{number:05d}.{ending}", output.checksum)
            entry = ShardEntry(
                path=path,
                source=step.source,
                split="train",
                sequences=0,
                tokens=0,
                documents=output.rows,
                text_bytes=output.text_bytes,
                bytes=output.bytes,
                checksum=output.checksum,
                part=part,
            )
            entries.append((entry, output))
    return sorted(entries, key=lambda each: each[0].path)


def _publish_snapshot(lock: OutputLock, unpublished: _Unpublished, about: Mapping[str, bytes], show: Show | None) -> None:
    """Publishes a snapshot. One that is published again keeps its files `about` it."""
    root, snapshot, needed = lock.root, unpublished.snapshot, unpublished.needed
    if _is_published(root, snapshot, needed):
        return
    lock.check_pending_deletions(files_needed([snapshot]))
    sizes = dict(data_files(root))
    missing = [  # those that no task of this output has published, or that were deleted since
        (entry, output)
        for entry, output in unpublished.data
        if sizes.get(entry.path) != entry.bytes or not _same_file(root, entry.path, output.path)
    ]
    with ThreadPoolExecutor(_COPIES_AT_ONCE if root.local is None else 1) as pool:
        for _ in pool.map(lambda each: check_committed(root, each[1]), missing):
            pass
        for _ in pool.map(partial(_take, root), count(), missing):
            pass
    copy_shards(root, unpublished.taken, PUBLISH, show)
    publish_files(lock, snapshot, needed, {} if has_snapshot(root, snapshot.fingerprint) else about)


def _take(root: Root, number: int, missing: tuple[ShardEntry, OutputFile]) -> None:
    entry, output = missing
    root.take(root, output.path, entry.path, f"{PUBLISH}/{number:06d}")


def _other_files(root: Root, snapshot: Snapshot) -> list[RunWarning]:
    """Warnings about files among the shards and documents that no run writes, and about documents
    of earlier snapshots beside those of the newest: a pattern reads them all."""
    paths, own = [path for path, _ in data_files(root)], files_needed([snapshot])
    strange = [path for path in paths if not DATA_PATH.fullmatch(path)]
    reason = "is no file of a run. It stays, but nothing else belongs there."
    warnings = [RunWarning(kind="stray_file", text=f"{name} {reason}", details={"path": name}) for name in strange]
    older = [path for path in paths if path.startswith("documents/") and path not in own and DATA_PATH.fullmatch(path)]
    if older and not snapshot.has_tokens:
        text = (
            f"documents/ also has {counted(len(older), 'file')} of earlier snapshots, such as {older[0]}. A pattern such as "
            f"documents/*/* reads them too. `datapipe clean` deletes them; snapshot.json lists the files of the newest."
        )
        warnings.append(RunWarning(kind="older_documents", text=text, details={"count": len(older)}))
    return warnings


def _same_file(root: Root, published: str, committed: str) -> bool:
    """Whether the published name, whose size is right, is that of the committed file. On an object
    store the digest in the name decides. Locally a name is linked again after its task has run
    again, so that the disk holds the content once. A committed file may have been freed."""
    if root.local is None or not root.exists(committed):
        return True
    file = root.local / committed
    is_copied = not published.startswith("documents/") and file.stat().st_nlink == 1  # by its task, where nothing can be linked
    return is_copied or (root.local / published).samefile(file)


def _is_published(root: Root, snapshot: Snapshot, needed: Mapping[str, bytes]) -> bool:
    own = snapshot_folder(snapshot.fingerprint)
    try:
        if {read_snapshot(root).fingerprint, read_snapshot(root, snapshot.fingerprint).fingerprint} != {snapshot.fingerprint}:
            return False
    except SnapshotError:
        return False
    sizes = dict(data_files(root))
    if any(sizes.get(path) != num_bytes for path, num_bytes in files_needed([snapshot]).items()):
        return False
    written = {place: content for path, content in needed.items() for place in (f"{own}/{path}", path)}
    return all(holds(root, path, content) for path, content in (written | snapshot.to_files()).items())


def _shards(plan: Plan, sequence_length: int) -> list[tuple[ShardEntry, ShardFile]]:
    """The shards of a sequence length with their entries in the snapshot, by path."""
    shards: list[tuple[ShardEntry, ShardFile]] = []
    for step in plan.of_kind("pack"):
        for task, record in zip(step.tasks or (), step.records):
            assert isinstance(task, PackTask)
            if task.sequence_length != sequence_length:
                continue
            for output in record.of("shards", ShardFile):
                entry = ShardEntry.of(output, path=task.published(output), part=task.part, **task.of_shards)
                shards.append((entry, output))
    return sorted(shards, key=lambda shard: shard[0].numbered_path)

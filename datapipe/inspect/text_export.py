"""The documents of a snapshot with tokens as text: `datapipe export --text`.

    tasks of the snapshot ─▶ the last ones that passed documents on ─▶ `tasks/write.py` ─▶ documents/<source>/… + snapshot.json

The texts are those that were tokenized, byte for byte: they are read from work/, not decoded from tokens. The files equal those
of a run with `tokenizer: none`, and so do their sizes and columns. Held-out documents are among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from datapipe.errors import UserError, suggest
from datapipe.ledger.ledger import Ledger
from datapipe.ledger.names import published_tasks
from datapipe.plan.outputs import DocumentsFile
from datapipe.plan.work import Record, WriteTask
from datapipe.plan.written import WRITTEN_BYTES, documents_by_part
from datapipe.shards.documents.writer import DocumentFormat
from datapipe.shards.export import check_target, copy_files, sync_all
from datapipe.shards.manifest import SNAPSHOT, DocumentsEntry, DocumentsSnapshot, DocumentsSource, Snapshot
from datapipe.storage import Root
from datapipe.tasks.write import run_write


def export_text(
    root: Root,
    snapshot: Snapshot,
    target: Root,
    format: DocumentFormat,
    source: str | None = None,
    target_bytes: int = 256 << 20,
    report: Callable[[str], None] = lambda source: None,
) -> DocumentsSnapshot:
    """Writes the documents of a snapshot, or of one source of it. Returns the manifest of the export.

    Args:
        target: an empty folder, or one that does not exist yet.
        target_bytes: of text in a file.
        report: called with each source before its documents are read.

    Raises:
        UserError: the source or the target is wrong, or work/ has lost the texts.
    """
    if source is not None and source not in snapshot.sources:
        known = ", ".join(sorted(snapshot.sources))
        raise UserError(f"no source '{source}'.{suggest(source, snapshot.sources)} Expected one of: {known}")
    check_target(root, target)
    cleaned = _cleaned(root, snapshot)
    names = sorted(snapshot.sources) if source is None else [source]
    entries: list[DocumentsEntry] = []
    for name in names:
        report(name)
        entries += _write_source(root, snapshot, target, name, cleaned.get(name, []), format, target_bytes)
    copy_files(root, target, snapshot)
    sync_all(target)
    sources = {name: snapshot.sources[name] for name in names}
    exported = DocumentsSnapshot(
        name=snapshot.name,
        document_format=format,
        sources={name: DocumentsSource(license=entry.license, synthetic=entry.synthetic) for name, entry in sources.items()},
        files=snapshot.files,
        documents=tuple(entries),
    ).sealed()
    target.write_atomic(SNAPSHOT, exported.to_json())
    return exported


def _cleaned(root: Root, snapshot: Snapshot) -> dict[str, list[Record]]:
    """By source, the records of the last step that passed its documents on. Raises UserError where one is gone."""
    lost = (
        f"{root.url}: work/ has lost the texts of snapshot {snapshot.fingerprint[:12]}. Run its mixture again, "
        f"with `--set tokenizer=none` to write the documents at once."
    )
    try:
        names = root.read_bytes(published_tasks(snapshot.fingerprint)).decode().split()
    except FileNotFoundError as error:
        raise UserError(lost) from error
    ledger = Ledger(root)
    ledger.load()
    last: dict[str, list[Record]] = {}
    for name in names:
        record = ledger.look_up(name)
        if record is None:
            raise UserError(lost)
        source = record.step.partition("/")[0]
        if "documents" in record.outputs:
            known = last.setdefault(source, [])
            if known and known[0].step != record.step:
                known.clear()
            known.append(record)
    return last


def _write_source(
    root: Root,
    snapshot: Snapshot,
    target: Root,
    source: str,
    cleaned: list[Record],
    format: DocumentFormat,
    target_bytes: int,
) -> list[DocumentsEntry]:
    entries: list[DocumentsEntry] = []
    folder = f"documents/{source}"
    parts = documents_by_part(cleaned, target_bytes * math.ceil(WRITTEN_BYTES / target_bytes))
    for part in parts:
        task = WriteTask(
            step=f"{source}/write",
            source=source,
            seed=snapshot.seed,
            documents=part.documents,
            begin=part.begin,
            start=part.start,
            stop=part.stop,
            like=parts[0].documents[0],
            format=format,
            target_bytes=target_bytes,
        )
        outputs, _ = run_write(task, root, folder, target)
        entries += [_entry(source, output) for output in outputs["files"] if isinstance(output, DocumentsFile)]
    return entries


def _entry(source: str, output: DocumentsFile) -> DocumentsEntry:
    return DocumentsEntry(
        path=output.path,
        source=source,
        documents=output.rows,
        text_bytes=output.text_bytes,
        bytes=output.bytes,
        checksum=output.checksum,
    )

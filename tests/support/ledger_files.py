"""The ledger of an output as it lies on the disk."""

from pathlib import Path

from datapipe.records.commit_files import FORGET, FREED, CommitFiles, lines_of
from datapipe.records.names import LEDGER
from datapipe.storage.root import Root


def stored_records(output: Path | str) -> dict[str, str]:
    """The checksum of the record of each committed task, by fingerprint. Also while a run writes it."""
    lines = CommitFiles(Root(str(output))).read()
    return {line.fingerprint: line.checksum for line in lines if line.fingerprint not in (FORGET, FREED)}


def stored_text(root: Root) -> str:
    """All commit files, joined."""
    return "".join(root.read_bytes(path).decode() for path, _ in root.list_files(LEDGER))


def drop_record(root: Root, fingerprint: str) -> None:
    """Takes one record out of its commit file."""
    for path, _ in root.list_files(LEDGER):
        lines = [line for line in lines_of(root.read_bytes(path))[0] if line.fingerprint != fingerprint]
        root.write_atomic(path, b"".join(line.to_bytes() for line in lines))

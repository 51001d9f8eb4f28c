"""Uploads in parts that a killed worker left on a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.ledger.ledger import Ledger
from datapipe.ledger.lock import exclusive
from datapipe.ledger.uploads import abort_uploads, unfinished_uploads
from datapipe.storage import Root
from tests.support.unreliable_store import UnreliableStore

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def _leave_upload(store: UnreliableStore, path: str) -> None:
    """Begins an upload and loses every answer to its end, as a worker that is killed."""
    root = Root(f"s3://outputs{store.query}&max_attempts=1")
    store.fail("status", method="POST", path="uploadId", times=None, status=400)
    with pytest.raises(OSError, match="CompleteMultipartUpload"):
        _write(root, path)
    store.heal()


def _write(root: Root, path: str) -> None:
    with root.open_output(path) as stream:
        for _ in range(12):
            stream.write(bytes(1 << 20))


def _keys(root: Root) -> list[str]:
    return sorted(upload.key for upload in unfinished_uploads(root))


def test_uploads_below_a_folder_are_found_and_aborted_and_no_others(store: UnreliableStore) -> None:
    names = ["a-b/work/attempts/x é+&=.arrow", "a-b/shards/web/1.arrow", "a-bc/1.arrow"]
    for name in names:
        _leave_upload(store, name)
    root, other = (Root(f"s3://outputs/{name}{store.query}") for name in ("a-b", "a-bc"))
    assert _keys(root) == sorted(names[:2])
    assert abort_uploads(root) == 2
    assert (_keys(root), _keys(other)) == ([], names[2:])


def test_uploads_are_listed_again_where_an_answer_is_lost(store: UnreliableStore) -> None:
    _leave_upload(store, "lost/1.arrow")
    root = Root(f"s3://outputs/lost{store.query}")
    store.fail("lost", path="uploads")
    store.fail("lost", method="DELETE")
    assert abort_uploads(root) == 1
    assert _keys(root) == []


@pytest.mark.parametrize("status", [403, 501])
def test_uploads_of_a_store_that_does_not_list_them_are_none(store: UnreliableStore, status: int) -> None:
    store.fail("status", path="uploads", status=status, times=None)
    assert abort_uploads(Root(f"s3://outputs/refused{store.query}")) == 0


def test_uploads_of_an_unknown_user_or_a_folder_are_not_asked_for(store: UnreliableStore, monkeypatch, tmp_path: Path) -> None:
    assert unfinished_uploads(Root(str(tmp_path))) == []
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert abort_uploads(Root(f"s3://anonymous@outputs/x{store.query}")) == 0
    assert store.gets == []


def test_sweep_aborts_the_uploads_of_killed_workers(store: UnreliableStore) -> None:
    _leave_upload(store, "swept/work/attempts/web.read/0123456789abcdef-1/documents.arrow")
    root = Root(f"s3://outputs/swept{store.query}")
    with exclusive(root) as hold:
        ledger = Ledger(root)
        ledger.load()
        ledger.sweep(hold)
    assert _keys(root) == []

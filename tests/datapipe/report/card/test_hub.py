"""Uploads to a hub on loopback: whole, killed and repeated, over an earlier export, and refused."""

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.report.card import hub as uploads
from datapipe.report.card.hub import HubTarget, hub_target, staged
from datapipe.storage.root import Root
from tests.support import cli_processes, corpora, runs
from tests.support.fake_hub import REPOSITORY, FakeHub, fake_hub
from tests.support.finished import finish

pytestmark = pytest.mark.needs("huggingface_hub")
TOKEN = "hf_" + "Secret" * 5
URL = f"hf://datasets/{REPOSITORY}"
EXPORT = ("--format", "parquet", "--text", "--target-bytes", "30kB", "--to", URL)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as started:
        started.token = TOKEN
        yield started


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    corpora.write_jsonl(folder / "web.jsonl", corpora.documents(1, 200))
    source = f"  web: {{path: {folder}/web.jsonl, license: cc-by-4.0}}"
    finish(runs.write_mixture(folder, source))
    return folder / "out"


def _environment(hub: FakeHub, output: Path, **more: str) -> dict[str, str]:
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(output.parent / "home"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}
    return {**os.environ, **ours, **more}


def _export(hub: FakeHub, output: Path, *arguments: str, status: int = 0, **more: str) -> str:
    command = ["export", str(output), *(arguments or EXPORT)]
    done = cli_processes.run(command, cwd=output.parent, env=_environment(hub, output, **more))
    assert done.returncode == status, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done.stdout + done.stderr


def _ids(hub: FakeHub) -> list[str]:
    """The documents in the data files of the hub."""
    files = [content for path, content in sorted(hub.files.items()) if path.startswith("data/")]
    return [row["id"] for content in files for row in pq.read_table(io.BytesIO(content)).to_pylist()]


@pytest.mark.slow
def test_an_upload_has_the_card_and_the_second_sends_nothing(hub: FakeHub, output: Path) -> None:
    from huggingface_hub import DatasetCard

    told = _export(hub, output)
    assert hub.is_private is True
    data = DatasetCard(hub.files["README.md"].decode()).data.to_dict()
    assert data["license"] == "cc-by-4.0"
    splits = {split["name"]: split["num_examples"] for split in data["dataset_info"]["splits"]}
    assert sum(splits.values()) == len(_ids(hub)) == len(set(_ids(hub))) > 50
    assert f'load_dataset("{REPOSITORY}"' in hub.files["README.md"].decode()
    assert {"croissant.json", "mixture.yaml"} <= hub.files.keys()
    assert "uploaded" in told
    assert not list(output.parent.glob("*-upload"))

    before, commits = dict(hub.files), len(hub.commits)
    assert "0 files uploaded" in _export(hub, output)
    assert (hub.files, len(hub.commits)) == (before, commits)

    hub.commit({**hub.files, "data/train-00000-of-00099.parquet": b"of an earlier export", "notes.md": b"mine"})
    assert "1 file of an earlier export deleted" in _export(hub, output)
    assert hub.files == {**before, "notes.md": b"mine"}


def _export_killed_at(hub: FakeHub, output: Path, number: int) -> None:
    """An export that is killed before so many uploads and commits are answered."""
    killed: list[subprocess.Popen[str]] = []

    def kill(request: str) -> None:
        sent = [each for each in hub.requests if each.startswith("PUT") or "/commit/" in each]
        if len(sent) == number and killed[0].poll() is None:
            os.killpg(killed[0].pid, 9)

    hub.on_request = kill
    killed.append(cli_processes.start(["export", str(output), *EXPORT], cwd=output.parent, env=_environment(hub, output)))
    killed[0].communicate(timeout=cli_processes.DEADLINE_S)
    assert killed[0].returncode == -9


@pytest.mark.slow
def test_an_upload_that_is_killed_anywhere_goes_on(hub: FakeHub, output: Path) -> None:
    _export(hub, output)
    whole = dict(hub.files)
    uploads = sum(request.startswith("PUT") for request in hub.requests)
    for number in (1, uploads // 2 + 1, uploads + 1):
        hub.commits.clear(), hub.branches.clear(), hub.large.clear(), hub.requests.clear()
        _export_killed_at(hub, output, number)
        assert "README.md" not in hub.files
        hub.on_request = lambda request: None
        there = {request for request in hub.requests if request.startswith("PUT")}
        hub.requests.clear()
        _export(hub, output)
        assert hub.files == whole
        again = {request for request in hub.requests if request.startswith("PUT")}
        assert len(there & again) <= 4  # those under way when it was killed


@pytest.mark.slow
def test_what_the_hub_refuses_is_reported_without_the_token(hub: FakeHub, output: Path) -> None:
    other = "hf_" + "Other0" * 5
    told = _export(hub, output, *EXPORT, status=2, HF_TOKEN=other)
    assert "the hub refuses me/data" in told
    assert other not in told
    assert "Set HF_TOKEN" in _export(hub, output, *EXPORT, status=2, HF_TOKEN="")
    assert "requires --format parquet, jsonl or arrow" in _export(hub, output, "--format", "mds", "--to", URL, status=2)


@pytest.mark.parametrize("url", ["hf://datasets/name", "hf://models/a/b", "s3://bucket/a", "hf://datasets/../b", f"{URL}/data"])
def test_a_url_of_no_data_set_is_refused(url: str) -> None:
    with pytest.raises(UserError):
        hub_target(url)


def test_an_export_that_is_not_uploaded_is_kept_for_the_same_command_and_written_again_for_another(tmp_path: Path) -> None:
    written: list[str] = []
    root, target = Root(str(tmp_path / "out")), HubTarget(name="me/data")

    def write(folder: Root) -> None:
        written.append(folder.url)
        folder.write_atomic("data/a.parquet", str(len(written)).encode())

    for request, num_written in (({"text": True}, 1), ({"text": True}, 1), ({"text": False}, 2)):
        with pytest.raises(KeyboardInterrupt), staged(root, target, request, write):
            raise KeyboardInterrupt
        assert len(written) == num_written
    with staged(root, target, {"text": False}, write) as folder:
        assert (folder / "data/a.parquet").read_bytes() == b"2"
    assert list(tmp_path.iterdir()) == []


def test_files_of_one_commit_are_few_and_small_and_none_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MOST_FILES", 3)
    monkeypatch.setattr(uploads, "MOST_BYTES", 100)
    sizes = [10, 10, 10, 10, 95, 300, 1, 1]
    for number, num_bytes in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(num_bytes))
    batches = list(uploads._batches(tmp_path, [str(number) for number in range(len(sizes))]))
    assert batches == [["0", "1", "2"], ["3"], ["4"], ["5"], ["6", "7"]]

"""Runs whose stages read files at URLs: the same documents as with local files, run again when a file changes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from datapipe.config import StageUse, load_mixture
from datapipe.engine.binding import bind, with_cut
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.fake_hub import fake_hub
from tests.support.fasttext_files import Recipe
from tests.support.web_server import WebServer, web_server

pytestmark = pytest.mark.usefixtures("home")

SECRET = "Zq81UnlikelySecret"
THRESHOLD = {"threshold": 0.5, "tie": "0" * 16, "documents": 9, "kept_documents": 1, "weight": 9, "kept_weight": 1}
EN, DE = (Recipe(labels=("en", "de"), seed=seed, scale=5.0).content() for seed in (1, 2))


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/lid.bin"] = EN
        yield server


def _mixture(folder: Path, model: str) -> Path:
    if not (folder / "web").exists():
        corpora.write_jsonl(folder / "web/0.jsonl", corpora.documents(1, 40))
    stages = f"stages:\n  - filter.language: {{model: '{model}', keep: [en]}}\n"
    return runs.write_mixture(folder, f"  web: {{path: '{folder}/web/*.jsonl'}}\n", stages, "tokenizer: none\n")


def _run(mixture: Path, **options) -> runs.Finished:
    return runs.run_mixture(mixture, make_engine=runs.InProcess, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["web", "store"])
def test_run_with_a_model_at_a_url_equals_that_with_a_local_file(tmp_path: Path, web: WebServer, query: str, kind: str) -> None:
    (tmp_path / "lid.bin").write_bytes(EN)
    Root(f"s3://outputs/models{query}").write_atomic("lid.bin", EN)
    url = web.url("/lid.bin") if kind == "web" else f"s3://outputs/models/lid.bin{query}"
    local = _run(_mixture(tmp_path, f"{tmp_path}/lid.bin"), output=tmp_path / "local")
    mixture = _mixture(tmp_path, url)
    remote = runs.run_mixture(mixture, workers=1)  # in a worker process
    assert remote.snapshot.shards == local.snapshot.shards
    assert 0 < remote.report["total"]["kept_bytes"] < remote.report["total"]["bytes"]
    assert runs.run_mixture(mixture).watcher.records == []
    if kind == "web":
        web.files["/lid.bin"], web.etag = DE, '"two"'
    else:
        Root(f"s3://outputs/models{query}").write_atomic("lid.bin", DE)
    changed = _run(mixture)
    assert changed.watcher.records != []
    assert changed.snapshot.shards != remote.snapshot.shards


def test_credentials_of_a_url_run_nothing_again_and_are_in_no_file(tmp_path: Path, web: WebServer) -> None:
    urls = [web.url("/lid.bin").replace("://", f"://{user}@") + "?X-Amz-Signature=" + user for user in (SECRET, "other-secret")]
    done = _run(_mixture(tmp_path, urls[0]))
    for path, _ in Root(str(tmp_path / "out")).list_files(""):
        assert SECRET.encode() not in (tmp_path / "out" / path).read_bytes(), path
    assert SECRET not in repr([bound.files for source in prepare(done.mixture).sources.values() for bound in source.stages])
    assert _run(_mixture(tmp_path, urls[1])).watcher.records == []


def test_relative_path_is_that_of_the_working_directory_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lid.bin").write_bytes(EN)
    monkeypatch.chdir(tmp_path)

    def engine(root, request):
        monkeypatch.chdir("/")
        return runs.InProcess(root, request)

    assert runs.run_mixture(_mixture(tmp_path, "lid.bin"), make_engine=engine).snapshot.shards


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_local_file_that_changes_between_plan_and_run_is_the_users_error(tmp_path: Path, change: str) -> None:
    model = tmp_path / "lid.bin"
    model.write_bytes(EN)

    def engine(root, request):
        if change == "changed":
            model.write_bytes(DE)
        else:
            model.unlink()
        return runs.InProcess(root, request)

    with pytest.raises(UserError, match=r"filter\.language: .*lid\.bin .*Run the same command again"):
        runs.run_mixture(_mixture(tmp_path, str(model)), make_engine=engine)


def test_file_at_a_url_that_changes_between_plan_and_run_is_read_as_it_was_planned(tmp_path: Path, web: WebServer) -> None:
    mixture = _mixture(tmp_path, web.url("/lid.bin"))
    planned = _run(mixture, output=tmp_path / "before")

    def engine(root, request):
        web.files["/lid.bin"], web.etag = DE, '"two"'
        return runs.InProcess(root, request)

    assert runs.run_mixture(mixture, make_engine=engine).snapshot.shards == planned.snapshot.shards


def test_url_that_cannot_be_read_is_named_with_the_line_of_the_mixture(tmp_path: Path, web: WebServer) -> None:
    with pytest.raises(UserError) as raised:
        prepare(load_mixture(_mixture(tmp_path, web.url("/none.bin"))))
    line = f"{tmp_path}/mixture.yaml:8: stages[0].filter.language.model: cannot read {web.url('/none.bin')}"
    assert str(raised.value).startswith(line)


def test_file_at_a_url_that_is_no_model_is_named_by_its_url(tmp_path: Path, web: WebServer) -> None:
    web.files["/lid.bin"] = b"<html>"
    with pytest.raises(UserError, match=web.url("/lid.bin")) as raised:
        prepare(load_mixture(_mixture(tmp_path, web.url("/lid.bin"))))
    assert str(tmp_path / "home") not in str(raised.value)


def test_thresholds_of_an_output_on_a_store_hold(tmp_path: Path, query: str) -> None:
    Recipe(labels=("0", "hq")).write(tmp_path / "q.bin")
    options = {"model": str(tmp_path / "q.bin"), "keep_share": "10%", "threshold_from": f"s3://outputs/{tmp_path.name}{query}"}
    use = StageUse(name="filter.classifier", alias="q", options=options)
    with pytest.raises(UserError, match=r"threshold_from: cannot read s3://outputs/.*report\.json"):
        bind(use)
    report = Root(f"s3://outputs/{tmp_path.name}{query}")
    report.write_atomic("report.json", json.dumps({"thresholds": {"web": {"q": THRESHOLD}}}).encode())
    bound = with_cut("web", bind(use))
    assert bound.cut is not None
    again = {"status": "done", "wall_s": 2.0, "thresholds": {"web": {"q": THRESHOLD}}}
    report.write_atomic("report.json", json.dumps(again).encode())
    assert bind(use).digest == bound.digest
    report.write_atomic("report.json", json.dumps({"thresholds": {"web": {"q": THRESHOLD | {"threshold": 0.25}}}}).encode())
    assert bind(use).digest != bound.digest


@pytest.mark.slow
@pytest.mark.needs("huggingface_hub")
def test_file_of_the_hub_is_read_and_read_again_when_its_branch_moves(tmp_path: Path) -> None:
    """In processes of their own: the client reads its environment when it is imported."""
    _mixture(tmp_path, "hf://datasets/me/data/models/lid.bin")
    with fake_hub() as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}

        def shards() -> dict[str, str]:
            done = run_process(["run", str(tmp_path / "mixture.yaml")], cwd=tmp_path, env={**os.environ, **environment})
            assert done.returncode == 0, done.stderr
            return {shard.path: shard.checksum for shard in read_snapshot(Root(str(tmp_path / "out"))).shards}

        hub.commit({"models/lid.bin": EN})
        first = shards()
        assert first == shards()
        hub.commit({"models/lid.bin": DE})
        assert shards() != first
        hub.commit({})
        done = run_process(["plan", str(tmp_path / "mixture.yaml")], cwd=tmp_path, env={**os.environ, **environment})
        assert done.returncode == 2
        assert (
            "mixture.yaml:8: stages[0].filter.language.model: cannot read hf://datasets/me/data/models/lid.bin" in done.stderr
        )

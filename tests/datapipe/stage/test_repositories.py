"""Whole runs over repositories whose files are records of their own: documents, counts, licences, takedowns, kills, engines."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.config.sources.repository import RepositorySpec
from datapipe.engine import tokenizer_file
from datapipe.engine.following.follow import Follower
from datapipe.engine.prepare import prepare
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from datapipe.errors import UserError
from datapipe.exchange.tables import read_documents
from datapipe.explore.document.view import DocumentView
from datapipe.explore.documents import Inspector
from datapipe.explore.redaction import Redactor
from datapipe.explore.rows import Rows
from datapipe.loader import Loader
from datapipe.metrics import TaskMetrics
from datapipe.shards.manifest import read_tokens
from datapipe.snapshots.export.export import shard_batches
from datapipe.snapshots.export.text import parts_of_text
from datapipe.snapshots.takedown import take_down
from datapipe.snapshots.verify import verify_snapshot
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.repositories import MOST_BYTES
from datapipe.storage.root import Root
from stages.join.repository import Repository
from tests.oracles.repositories import Document, documents
from tests.support import repository_runs, runs
from tests.support.chat_tokenizer import chat_tokenizer
from tests.support.cli_processes import run, start, wait_until
from tests.support.ledger_files import stored_records
from tests.support.repository_runs import SEPARATORS, as_read, files

pytestmark = pytest.mark.medium

SMALL = ("execution.split_bytes=4KiB", "execution.bucket_bytes=1KiB")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repositories")
    repository_runs.write(folder, files())
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> runs.Finished:
    path = repository_runs.write_mixture(tmp_path_factory.mktemp("reference"), corpus)
    return runs.run_mixture(path, make_engine=runs.InProcess)


def _expected(most_bytes: int = 1500) -> dict[bytes, Document]:
    return {document.key: document for document in documents(as_read(files()), "path", most_bytes, SEPARATORS)}


def _kept(done: runs.Finished) -> list[DocumentBatch]:
    outputs = [output for step in done.plan.of_kind("map", "code")[-1:] for output in step.outputs("documents")]
    return list(read_documents(Root(str(done.mixture.output)), outputs, TaskMetrics()))


def _column(done: runs.Finished, name: str) -> dict[bytes, Any]:
    return {row["key"]: row[name] for batch in _kept(done) for row in batch.record.select(["key", name]).to_pylist()}


def _texts(done: runs.Finished) -> dict[bytes, str]:
    return _column(done, "text")


def _ids(document: Document) -> list[int]:
    """The document by `tokenizers`, text by text between control tokens."""
    tokenizer = chat_tokenizer()
    tokenizer.add_special_tokens(list(SEPARATORS))
    tokenizer.encode_special_tokens = True
    before, between = (tokenizer.token_to_id(token) for token in SEPARATORS)
    first = document.files[0]
    ids = [before, *tokenizer.encode(first.repository).ids] if first.repository else []
    for file in document.files:
        ids += [between, *tokenizer.encode(f"{file.path}\n{file.text}").ids]
    return [*ids, tokenizer.token_to_id("</s>")]


def test_documents_are_those_of_plain_python_down_to_their_tokens(reference):
    expected = _expected()
    assert any(len(document.files) > 1 for document in expected.values())
    assert _texts(reference) == {key: document.text for key, document in expected.items()}
    assert _column(reference, "segments") == {key: document.segments for key, document in expected.items()}
    root = Root(str(reference.mixture.output))
    rows = [row for batch in shard_batches(root, read_tokens(root), reference.snapshot.shards) for row in batch.to_pylist()]
    tokens: dict[bytes, list[int]] = {}
    for key, begin, ids in sorted(_spans(rows)):
        assert begin == len(tokens.setdefault(key, []))
        tokens[key] += ids
    assert tokens == {key: _ids(document) for key, document in expected.items()}
    batch = next(iter(Loader(root.url, batch_size=4)))
    assert batch["input_ids"].shape == (4, 64)


def _spans(rows):
    for row in rows:
        at = 0
        for key, begin, length in zip(row["keys"], row["starts"], row["lengths"]):
            yield key, begin, row["tokens"][at : at + length]
            at += length


def test_counts_balance_and_each_file_that_is_joined_names_its_document(reference):
    expected, num_files = _expected(), len(files())
    counts = reference.report["sources"]["code"]["documents"]
    assert counts["read"] == num_files and counts["kept"] == len(expected)
    assert counts["dropped"] == {"join.repository:joined": num_files - len(expected)}
    assert not [warning for warning in reference.warnings if "joined" in str(warning)]
    ids = _column(reference, "id")
    assert {ids[key] for key, document in expected.items() if document.files[0].repository} == {"a/large", "b/b", "c/é", "d/d"}
    paths = {key: json.loads(listed) for key, listed in _column(reference, "files").items()}
    assert paths == {key: [file.path for file in document.files] for key, document in expected.items()}


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        pytest.param(SMALL, {"make_engine": runs.LastFirst}, id="small-buckets", marks=pytest.mark.slow),
        pytest.param((), {"workers": 2}, id="2-workers", marks=pytest.mark.slow),
        pytest.param(SMALL, {"workers": 3}, id="3-workers-small", marks=pytest.mark.slow),
    ],
)
def test_bytes_do_not_depend_on_how_it_ran(tmp_path, corpus, reference, overrides, options):
    done = runs.run_mixture(repository_runs.write_mixture(tmp_path, corpus), overrides=overrides, **options)
    assert _texts(done) == _texts(reference)
    if not overrides:
        assert done.checksums == reference.checksums
    else:
        assert done.watcher.steps.count("join.repository/join") > 3  # also within one repository


def test_rows_that_are_merged_first_give_the_same_documents(tmp_path, corpus, reference, monkeypatch):
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 2)
    done = runs.run_mixture(repository_runs.write_mixture(tmp_path, corpus), overrides=SMALL, make_engine=runs.LastFirst)
    merging = [step.id for step in done.plan.of_kind("merge") if step.tasks]
    assert {"join.repository/join.merge-1", "join.repository/decisions.merge-1"} <= {*merging}
    assert done.watcher.steps.count("join.repository/join") > 3  # also within one repository
    assert _texts(done) == _texts(reference)


@pytest.mark.slow
def test_kill_then_same_command_gives_the_undisturbed_bytes(tmp_path, corpus, reference):
    path, rng = repository_runs.write_mixture(tmp_path, corpus), random.Random(2)
    command = ["run", str(path), "--workers", "2"]
    for wanted in range(0, 7, 2):
        driver, least = start(command), wanted + rng.randrange(2)
        wait_until(lambda p=driver, n=least: len(stored_records(tmp_path / "out")) >= n or p.poll() is not None, "commits")
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    last = run(command)
    assert last.returncode == 0, last.stderr
    done = runs.run_mixture(path, make_engine=runs.InProcess)  # runs nothing
    assert not done.watcher.steps
    assert done.checksums == reference.checksums


def test_stages_before_it_take_files_and_those_after_it_repositories(tmp_path, corpus):
    stages = "stages:\n  - dedup.exact\n  - join.repository\n  - filter.length: {min_words: 100}\n"
    done = runs.run_mixture(repository_runs.write_mixture(tmp_path, corpus, stages=stages), make_engine=runs.InProcess)
    dropped = done.report["sources"]["code"]["documents"]["dropped"]
    assert dropped["join.repository:joined"] > 0 and dropped["filter.length:too_few_words"] > 0
    assert all("a/large\n" in text or "b/b\n" in text or "\n" in text for text in _texts(done).values())


def test_files_without_an_allowed_licence_are_in_no_repository(tmp_path, corpus):
    source = "    license_field: license\n"
    path = repository_runs.write_mixture(tmp_path, corpus, source=source, tail="tokenizer: none\nlicenses: [MIT]\n")
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    licenses = {name for batch in _kept(done) for name in batch.record["license"].to_pylist()}
    assert licenses == {"MIT"}
    texts = [file["text"] for file in files() if file["license"] == "MIT"]
    assert sum(map(len, texts)) < sum(map(len, _texts(done).values()))
    assert all(any(text in document for document in _texts(done).values()) for text in texts)


def test_licences_of_a_document_are_those_of_its_files(tmp_path, corpus):
    path = repository_runs.write_mixture(tmp_path, corpus, source="    license_field: license\n")
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    assert {"MIT", '["MIT", "isc"]', '["MIT", "LicenseRef-unknown"]'} <= {*_column(done, "license").values()}


def test_repository_is_taken_down_by_the_name_of_its_document(tmp_path, corpus):
    path = repository_runs.write_mixture(tmp_path, corpus, "max_bytes: 60MB")
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    root, expected = Root(str(done.mixture.output)), _expected(60_000_000)
    document = next(each for each in expected.values() if each.files[0].repository == "b/b")
    _, nothing = take_down(root, [document.files[1].key.hex()])  # a file that another document holds
    assert (nothing.num_new, len(nothing.unknown)) == (0, 1)
    _, done_now = take_down(root, [document.key.hex()])
    assert (done_now.num_new, done_now.unknown) == (1, {})


def test_joined_document_is_shown_as_the_run_has_it(reference):
    key, document = max(_expected().items(), key=lambda each: len(each[1].files))
    output = Inspector.open(str(reference.mixture.output))
    view = DocumentView(Rows(output, Redactor(output)))
    shown, other = view.view(key), view.view(document.files[1].key)
    assert "".join(part["text"] for part in shown["parts"]) == document.text and not shown["note"]
    assert [step["outcome"] for step in shown["path"][:2]] == ["read", "changed"]
    assert (other["row"]["stage"], other["row"]["rule"]) == ("join.repository", "joined")


def test_fim_changes_files_and_the_snapshot_is_whole(tmp_path, corpus):
    path = repository_runs.write_mixture(tmp_path, corpus, source="    fim: {rate: 1, min_chars: 20}\n")
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    root = Root(str(done.mixture.output))
    batches = list(shard_batches(root, read_tokens(root), done.snapshot.shards))
    ids = [token for batch in batches for tokens in batch.column("tokens").to_pylist() for token in tokens]
    tokenizer = chat_tokenizer()
    assert ids.count(tokenizer.token_to_id("<fim_middle>")) > 100
    assert not verify_snapshot(root, done.snapshot)


def test_texts_that_documents_hold_are_freed_and_the_snapshot_is_the_same(tmp_path, corpus, reference):
    path = repository_runs.write_mixture(tmp_path, corpus)
    done = runs.run_mixture(path, overrides=["execution.keep_work=inspect"], make_engine=runs.InProcess)
    assert done.checksums == reference.checksums
    left = {file.name for file in (tmp_path / "out/work").rglob("*.exchange")}
    assert left == {"drops.exchange"}
    view = DocumentView(Rows(output := Inspector.open(str(done.mixture.output)), Redactor(output)))
    key, document = max(_expected().items(), key=lambda each: len(each[1].files))
    assert "".join(part["text"] for part in view.view(key)["parts"]) == document.text


def test_limit_of_a_source_is_that_of_the_stage():
    assert RepositorySpec(files="files").max_bytes == Repository(group_by="repo").max_bytes == MOST_BYTES


@pytest.mark.parametrize(
    ("options", "tail", "cause"),
    [
        (
            "separators: [<repo_name>, <file_sepp>]",
            "",
            r"sources.code.repository: separators: found the token '<file_sepp>'.*'<file_sep>'",
        ),
        ("separators: [<file_sep>]", "", "expected two control tokens"),
        ("files: files", "", "repository.group_by: found 'repo', expected files or group_by"),
        ("text: body", "", "needs files"),
        ("path: pth", "", r"sources.code.repository: none of the 240 records probed has the field 'pth'.*'path'"),
        ("separators: [<repo_name>, '']", "", "expected two control tokens"),
        ("path: text", "", "'text' is a column that every document has"),
        ("separators: [a, b]", "tokenizer: none\n", "separators: needs tokenizer.path"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, corpus, options, tail, cause):
    with pytest.raises(UserError, match=cause):
        runs.run_mixture(repository_runs.write_mixture(tmp_path, corpus, options, tail=tail), make_engine=runs.InProcess)


def test_files_that_are_added_are_joined_among_themselves(tmp_path):
    first, second = files(60, seed=1), files(60, seed=2)
    repository_runs.write(tmp_path / "in", first)
    path = repository_runs.write_mixture(tmp_path, tmp_path / "in", "max_bytes: 60MB")
    before = runs.run_mixture(path, make_engine=runs.InProcess)
    repository_runs.write(tmp_path / "later", second)
    for file in (tmp_path / "later").iterdir():
        file.rename(tmp_path / "in" / f"later-{file.name}")

    def run_one(mixture, generation):
        run_and_report(Run(mixture, runs.Watcher(), make_engine=runs.InProcess, generation=generation)).raise_problem()

    Follower(load_mixture(path), 1.0, run_one, lambda event: None, wait=lambda seconds: None).follow(2)
    root = Root(str(before.mixture.output))
    snapshot = read_tokens(root)
    assert not verify_snapshot(root, snapshot)
    assert {entry.path for entry in before.snapshot.shards} < {entry.path for entry in snapshot.shards}
    batches = shard_batches(root, snapshot, snapshot.shards)
    keys = {key for batch in batches for key in batch.column("keys").flatten().to_pylist()}
    num_repositories = [len({row["repo"] for row in listed} - {None, ""}) for listed in (first, second)]
    num_single = sum(not row["repo"] for row in (*first, *second))
    assert len(keys) == sum(num_repositories) + num_single


def test_list_for_all_sources_may_name_the_stage(tmp_path, corpus):
    source = f"  plain:\n    path: {corpus}/0.parquet\n"
    path = repository_runs.write_mixture(
        tmp_path, corpus, source=source, stages="stages: [dedup.exact, join.repository]\n", tail="tokenizer: none\n"
    )
    dropped = runs.run_mixture(path, make_engine=runs.InProcess).report["sources"]["plain"]["documents"]["dropped"]
    assert not [reason for reason in dropped if "joined" in reason]


@pytest.mark.parametrize(
    ("repository", "source", "cause"),
    [
        ("files: files", "messages: turns", "repository: cannot be combined with messages"),
        ("files: files", "text: other", "text: found 'other' beside repository.files, expected repository.text"),
        ("files: files, license: text", "", "repository: 'text' is a column that every document has"),
        ("group_by: repo", "keep: [{path: url}]", "keep: 'path' is a column of the field 'url'"),
        ("group_by: repo", "keep: [{repo: body}]", "keep: 'repo' is a column of the field 'body'"),
        ("group_by: repo, separators: []", "fim: {rate: 1}", "fim: needs control tokens between files"),
        (
            "group_by: repo",
            "stages: [join.repository, {join.repository: {as: again}}]",
            "join.repository is in its list .* twice",
        ),
    ],
)
def test_options_of_a_source_that_do_not_go_with_it_are_refused(tmp_path, repository, source, cause):
    path = runs.write_mixture(tmp_path, f"  code:\n    path: x.jsonl\n    repository: {{{repository}}}\n    {source}\n", "")
    with pytest.raises(UserError, match=cause):
        load_mixture(path)


@pytest.mark.parametrize("repository", ["files: files", "group_by: repo"])
def test_fim_needs_tokens_between_files(tmp_path, corpus, repository):
    path = repository_runs.write_mixture(tmp_path, corpus, source="    fim: {rate: 1}\n")
    (tmp_path / "tokenizer.json").write_text(chat_tokenizer().to_str())
    pq.write_table(pa.table({"repo": ["a"], "files": [[{"path": "b", "content": "c"}]]}), tmp_path / "rows.parquet")
    text = path.read_text().replace("group_by: repo", repository)
    path.write_text(text.replace(f"{corpus}/*", f"{tmp_path}/rows") if "files" in repository else text)
    with pytest.raises(UserError, match=r"sources.code.fim: needs control tokens between files"):
        runs.run_mixture(path, make_engine=runs.InProcess)


def test_tokenizer_is_read_once_for_the_files_of_all_sources_and_refused_as_any(tmp_path, corpus, monkeypatch):
    path = repository_runs.write_mixture(tmp_path, corpus)
    text = path.read_text()
    path.write_text(
        text.replace("sources:\n", f"sources:\n  other: {{path: {corpus}/0.parquet, repository: {{group_by: repo}}}}\n")
    )
    read, opened = [], tokenizer_file._opened
    monkeypatch.setattr(tokenizer_file, "_opened", lambda *of: read.append(of) or opened(*of))
    prepare(load_mixture(path))
    assert len(read) == 2  # for the tokens between files, and to encode
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer.path: .*tokenizer.json"):
        prepare(load_mixture(path))


@pytest.mark.parametrize("is_row", [False, True])
def test_documents_of_a_repository_are_all_held_out_or_none(tmp_path, is_row):
    listed = [(f"r{number % 40}", f"{number:03}.py", f"x = {number}\n" * 9) for number in range(400)]
    rows = [{"repo": repo, "path": path, "text": text} for repo, path, text in listed]
    if is_row:
        files = {f"r{number}": [row for row in rows if row["repo"] == f"r{number}"] for number in range(40)}
        rows = [
            {"id": repo, "files": [{"path": row["path"], "content": row["text"]} for row in of]} for repo, of in files.items()
        ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    path = repository_runs.write_mixture(tmp_path, tmp_path, "max_bytes: 200")
    text = path.read_text().replace("group_by: repo", "files: files" if is_row else "group_by: repo")
    path.write_text(f"validation: 30%\n{text}")
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    root, ids = Root(str(done.mixture.output)), _column(done, "id")
    split = {}
    for name in ("train", "validation"):
        for batch in shard_batches(root, done.snapshot, done.snapshot.shards_of("code", name)):
            split |= dict.fromkeys(batch.column("keys").flatten().to_pylist(), name)
    assert split.keys() == ids.keys() and len(ids) > 100
    of_repositories = {(ids[key], name) for key, name in split.items()}
    assert len(of_repositories) == 40 and {name for _, name in of_repositories} == {"train", "validation"}
    parts = parts_of_text(root, done.snapshot, None, None)
    exported = {part.split: [each for rows in part.batches() for each in rows.column("id").to_pylist()] for part in parts}
    assert {(each, name) for name, listed in exported.items() for each in listed} == of_repositories

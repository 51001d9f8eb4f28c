"""Global stages in whole runs: who survives across sources, what a task gets of the decisions, and what stops a run."""

from pathlib import Path

import pytest

from datapipe.columns import key_halves
from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.tables import read_table
from datapipe.steps.map import MapTask
from datapipe.storage.root import Root
from tests.support import corpora, dedup_runs, runs

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: none\n"


def _mixture(folder: Path, options: str, sources: tuple[str, str] = ("web", "books")) -> Path:
    """Sources of 40 documents of which 30 are in both; those of books end in spaces."""
    for source, own, padded in (("web", 60, ""), ("books", 50, "  ")):
        documents = [f"the shared text number {n}, said in many words{padded}" for n in range(30)]
        documents += [f"a text number {own + n} of its own" for n in range(10)]
        if not (folder / f"{source}.jsonl").exists():
            corpora.write_jsonl(folder / f"{source}.jsonl", [{"text": text} for text in documents])
    listed = "".join(f"  {source}: {{path: {folder}/{source}.jsonl}}\n" for source in sources)
    return runs.write_mixture(folder, listed, f"stages:\n  - dedup.exact: {{normalize: whitespace_case, {options}}}\n", _TAIL)


def _run(path: Path, **options) -> runs.Finished:
    return runs.run_mixture(path, make_engine=runs.InProcess, **options)


def _dropped(finished: runs.Finished) -> dict[str, int]:
    report = finished.report["sources"]
    return {name: sum(entry["documents"]["dropped"].values()) for name, entry in report.items()}


@pytest.mark.slow
def test_map_task_gets_the_decisions_on_its_own_files(tmp_path: Path) -> None:
    corpus = dedup_runs.write_corpus(tmp_path / "corpus", 100)
    stages = "stages: [dedup.minhash]\n"
    watcher, overrides = runs.Watcher(), ["tokenizer=none", "execution.bucket_bytes=1KiB"]
    done = _run(dedup_runs.write_mixture(tmp_path, corpus, stages), overrides=overrides, watcher=watcher)
    root, given = Root(done.mixture.output), set()
    steps = {step.id: step for step in done.plan.steps}
    decisions = steps["dedup.minhash/decisions"].outputs("drops")
    assert len(decisions) > 1
    for task in (task for task in watcher.tasks if task.step.endswith("/apply-dedup.minhash")):
        assert isinstance(task, MapTask)
        assert task.decisions is not None
        batches = [batch for output in task.documents for batch in read_table(root, output)]
        own = {half for batch in batches for half in key_halves(batch.column("key"))[0].tolist()}
        for output in task.decisions.tables["drops"]:
            assert any(output.first <= half <= output.last for half in own)
            given.add(output.path)
    assert given == {output.path for output in decisions}


@pytest.mark.parametrize("scope", ["run", "source"])
def test_scope_source_compares_no_documents_of_other_sources(tmp_path: Path, scope: str) -> None:
    dropped = _dropped(_run(_mixture(tmp_path, f"scope: {scope}")))
    assert sum(dropped.values()) == (30 if scope == "run" else 0)


ENDLESS = """
from datapipe.stage.tables import DROP_SCHEMA, OPEN, OPEN_SCHEMA, Exchange
from datapipe.stage.global_stage import Global
import pyarrow as pa

class Endless(Global):
    def emits(self):
        return {"rows": OPEN_SCHEMA}

    def emit(self, batch):
        return {"rows": pa.record_batch([pa.array([7] * batch.num_docs, pa.uint64())], schema=OPEN_SCHEMA)}

    def exchanges(self):
        return [Exchange(name="turn", inputs=("rows",), outputs={"drops": DROP_SCHEMA, OPEN: OPEN_SCHEMA}, rounds=3)]

    def reduce(self, exchange, bucket):
        return {OPEN: bucket["rows"].slice(0, 1)}
"""


def test_stage_that_never_comes_to_an_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_stage.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(tmp_path)
    path = _mixture(tmp_path, "keep: longest")
    path.write_text(
        path.read_text().replace("dedup.exact: {normalize: whitespace_case, keep: longest}", "endless_stage:Endless")
    )
    with pytest.raises(DatapipeError, match="turn: not finished after 3 rounds"):
        _run(path)


def test_run_with_sources_in_another_order_keeps_those_of_the_first_now(tmp_path: Path) -> None:
    orders = [("web", "books"), ("books", "web")]
    dropped = [_dropped(_run(_mixture(tmp_path, "keep: source_order", order))) for order in orders]
    assert dropped == [{"web": 0, "books": 30}, {"books": 0, "web": 30}]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("keep: {source_order: [book]}", r"source_order names 'book'.*'books'"),
        *((f"max_dropped: {share}", "max_dropped") for share in ("50", "x%")),
    ],
)
def test_run_with_a_policy_or_a_limit_that_is_none_is_refused(tmp_path: Path, options: str, cause: str) -> None:
    with pytest.raises(UserError, match=cause):
        _run(_mixture(tmp_path, options))


def test_run_that_drops_too_much_of_a_source_stops_and_goes_on_when_it_may(tmp_path: Path) -> None:
    with pytest.raises(DatapipeError, match=r"source 'books': dedup.exact dropped 30 of 40 .*--clusters dedup.exact"):
        _run(_mixture(tmp_path, "max_dropped: 70%"))
    path = _mixture(tmp_path, "max_dropped: 75%")  # 30 of 40
    allowed = _run(path)
    assert not [step for step in allowed.watcher.steps if "/read" in step or "dedup" in step]
    assert "excess_drops" not in [warning["kind"] for warning in allowed.report["warnings"]]
    path.write_text(
        path.read_text().replace("dedup.exact: {normalize: whitespace_case, max_dropped: 75%", "dedup.lines: {max_dropped: 1%")
    )
    with pytest.raises(DatapipeError, match=r"--dropped dedup.lines"):
        _run(path)


def test_run_that_drops_too_much_warns_once_for_each_source_where_it_is_asked_to(tmp_path: Path) -> None:
    report = _run(_mixture(tmp_path, "max_dropped: 0.1, on_excess: warn")).report
    [warning] = [warning for warning in report["warnings"] if warning["kind"] == "excess_drops"]
    assert (warning["source"], warning["stage"], warning["dropped"], warning["read"]) == ("books", "dedup.exact", 30, 40)


def test_run_sources_with_limits_of_their_own_are_still_compared(tmp_path: Path) -> None:
    path = _mixture(tmp_path, "keep: source_order")
    own = "stages: [dedup.exact: {normalize: whitespace_case, keep: source_order, max_dropped: 80%}]"
    path.write_text(path.read_text().replace("books.jsonl}", f"books.jsonl, {own}}}"))
    assert _dropped(_run(path)) == {"web": 0, "books": 30}
    path.write_text(path.read_text().replace("80%", "70%"))
    with pytest.raises(DatapipeError, match="source 'books'"):
        _run(path)

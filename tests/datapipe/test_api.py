"""`datapipe.run` and `datapipe.plan_run`: the same run as that of the command line, as data, in a program of any kind."""

import asyncio
import json
import logging
import pickle
import pkgutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
import datapipe.engine.run  # `datapipe.run` must stay the function
from datapipe.engine.run import RunOptions
from datapipe.loader import Loader
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root
from tests.support import corpora, reports, runs
from tests.support.ledger_files import stored_records

NAMES = ["DatapipeError", "PlannedRun", "PlannedStep", "RunResult", "UserError", "plan_run", "run"]


@pytest.fixture
def web(tmp_path: Path) -> Path:
    corpora.write_jsonl(tmp_path / "web/a.jsonl", corpora.documents(1, 30))
    return tmp_path


def _mixture(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "seed": np.int64(3),
        "output": folder / "out",
        "sources": {"web": {"path": (folder / "web/*.jsonl",), "weight": np.float64(1.0)}},
        "stages": ["normalize.unicode", {"filter.length": {"min_chars": 10}}],
        "tokenizer": {"train": {"vocab_size": 600, "sample_bytes": "1MiB"}},
        "pack": {"sequence_length": [64]},
        **more,
    }


def _program(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder, from a file in it."""
    (folder / "program.py").write_text(code)
    return subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_package_imports_nothing_heavy_and_its_names_are_no_submodules(tmp_path: Path):
    """A submodule of a name would take the name's place as soon as anything imports it."""
    code = "import sys, datapipe; dir(datapipe); print(*sorted(sys.modules)); datapipe.UserError"
    loaded = {name.partition(".")[0] for name in _program(tmp_path, code).stdout.split()}
    assert "datapipe" in loaded
    assert not loaded & {"numpy", "pyarrow", "numba", "pydantic", "ray", "torch", "rich"}
    assert datapipe.__all__ == NAMES
    assert set(NAMES) <= set(dir(datapipe))
    assert not {module.name for module in pkgutil.iter_modules(datapipe.__path__)} & set(NAMES)
    assert all(callable(getattr(datapipe, name)) for name in NAMES)
    with pytest.raises(AttributeError):
        datapipe.runn  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.slow
def test_run_of_a_dict_is_the_run_of_the_same_file(web: Path, capsys: pytest.CaptureFixture[str]):
    result = datapipe.run(_mixture(web), set={"pack.sequence_length": [32, 64]}, workers=1)
    assert capsys.readouterr() == ("", "")
    path = web / "mixture.yaml"
    path.write_text(json.dumps(_mixture(web, seed=3), default=str))
    overrides = ["pack.sequence_length=[32, 64]", f"sources.web.path={web}/web/*.jsonl"]
    by_file = runs.run_mixture(path, output=web / "by-file", overrides=overrides, make_engine=runs.InProcess)
    assert result.fingerprint == by_file.snapshot.fingerprint == read_snapshot(Root(str(web / "out"))).fingerprint
    assert result.outputs == {32: str(web / "out"), 64: str(web / "out/length-64")}
    assert result.report.to_bytes() == (web / "out/report.json").read_bytes()
    assert next(iter(Loader(result.output, batch_size=2)))["input_ids"].shape == (2, 32)
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.medium
def test_run_again_does_nothing_and_plan_shows_it(web: Path):
    before = datapipe.plan_run(_mixture(web))
    first_steps = [(step.step, step.tasks, step.committed_tasks, step.is_committed) for step in before.steps[:2]]
    assert first_steps == [("web/read", 1, 0, False), ("web/sample", None, 0, False)]
    assert (before.sources["web"]["files"], before.is_committed, (web / "out").exists()) == (1, False, False)
    first = datapipe.run(_mixture(web), workers=1)
    assert datapipe.plan_run(_mixture(web)).is_committed
    changed = datapipe.plan_run(_mixture(web), set={"stages.filter.length.min_chars": 20})
    assert not changed.is_committed
    assert "filter.length" in " ".join(changed.steps[0].reasons)
    records = stored_records(web / "out")
    again = datapipe.run(_mixture(web), workers=1)
    assert replace(again, report=again.report.with_(run=None)) == replace(first, report=first.report.with_(run=None))
    assert stored_records(web / "out") == records


@pytest.mark.slow
def test_run_in_a_thread_beside_a_running_loop_changes_no_signal(web: Path):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    results: list[datapipe.RunResult] = []

    async def main() -> None:  # as a cell of a notebook runs
        results.append(datapipe.run(_mixture(web), workers=1))
        thread = threading.Thread(target=lambda: results.append(datapipe.run(_mixture(web), output=web / "more", workers=1)))
        thread.start()
        await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert results[0].fingerprint == results[1].fingerprint
    assert {number: signal.getsignal(number) for number in handlers} == handlers


@pytest.mark.slow
def test_run_that_fails_raises_and_keeps_its_report(web: Path, monkeypatch: pytest.MonkeyPatch):
    (web / "own_failing.py").write_text("def fails(record):\n    raise ValueError('never')\n")
    monkeypatch.syspath_prepend(web)
    with pytest.raises(datapipe.DatapipeError, match="ValueError: never") as caught:
        datapipe.run(_mixture(web, stages=["own_failing:fails"]), workers=1)
    report = json.loads((web / "out/report.json").read_text())
    assert (report["status"], report["problem"]) == ("failed", str(caught.value))


@pytest.mark.slow
def test_run_prints_its_progress_and_logs_its_warnings(web: Path, caplog: pytest.LogCaptureFixture, capsys):
    sources = {"web": {"path": str(web / "web/*.jsonl"), "keep": ["licence"]}}
    planned = datapipe.plan_run(_mixture(web, sources=sources))
    result = datapipe.run(_mixture(web, sources=sources), workers=1, progress=True)
    assert "web: tokenize" in capsys.readouterr().out
    assert ["'licence'" in warning for warning in (*planned.warnings, *result.warnings)] == [True, True]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == list(result.warnings)


@pytest.mark.slow
def test_run_without_a_tokenizer_has_nothing_for_a_loader(web: Path):
    mixture = {name: value for name, value in _mixture(web, tokenizer="none").items() if name != "pack"}
    assert datapipe.plan_run(mixture).sources["web"]["tokens"] is None
    result = datapipe.run(mixture, workers=1)
    assert result.outputs == {}
    assert result.report.total.documents.kept == 30
    assert list((web / "out/documents/web").iterdir())


@pytest.mark.parametrize(
    ("call", "mixture", "options", "told"),
    [
        ("plan_run", {"sed": 1}, {}, "sed: unknown key"),
        ("plan_run", {"sources": {"web": {"path": {1, 2}}}}, {}, "mixture: sources.web.path: found set"),
        ("plan_run", {}, {"set": {"sources.wob.weight": 1}}, "set: sources.wob: unknown source"),
        ("plan_run", {}, {"set": {"pack..method": "concat"}}, "set: found 'pack..method'"),
        ("plan_run", {}, {"limit": 0}, "limit: found 0"),
        ("run", {}, {"workers": 0}, "workers: found 0"),
        ("run", {}, {"engine": "dask"}, "engine 'dask'"),
        ("run", {}, {"output": "/dev/null/out"}, ""),
    ],
)
def test_errors_name_keys_and_arguments(web: Path, call: str, mixture: dict[Any, Any], options: dict[str, Any], told: str):
    with pytest.raises(datapipe.UserError) as caught:
        getattr(datapipe, call)({**_mixture(web), **mixture}, **options)
    assert str(caught.value).startswith(told)
    with pytest.raises(datapipe.UserError, match=r"none\.yaml"):
        getattr(datapipe, call)(web / "none.yaml")


@pytest.mark.parametrize(
    ("stages", "guard"),
    [
        pytest.param("", "", marks=pytest.mark.slow, id="without a guard"),
        pytest.param("stages: ['program:keep']", "", marks=pytest.mark.medium, id="its own stage without a guard"),
        pytest.param(
            "stages: ['program:keep']",
            'if __name__ == "__main__":\n    ',
            marks=pytest.mark.slow,
            id="its own stage with a guard",
        ),
    ],
)
def test_program_runs_once_and_needs_a_guard_where_it_holds_its_own_stage(web: Path, stages: str, guard: str):
    runs.write_mixture(web, f"  web: {{path: {web}/web/*.jsonl}}\n", stages)
    keep = "import datapipe\n\n\ndef keep(record):\n    return True\n\n\n"
    done = _program(web, f'{keep}{guard}print("runs", datapipe.run("mixture.yaml", workers=2).fingerprint)\n')
    if stages and not guard:
        assert done.returncode == 1
        assert "a module of stages runs a mixture while it is imported" in done.stderr
        assert not (web / "out/snapshot.json").exists()
        return
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["runs", read_snapshot(Root(str(web / "out"))).fingerprint]


def test_result_on_the_screen_of_a_notebook_has_no_credentials() -> None:
    report = reports.report(["web"])
    output = "s3://KEY:SECRETSECRET@bucket/a"
    shown = repr(datapipe.RunResult(name="m", output=output, fingerprint="f", outputs={64: output}, report=report))
    assert "SECRET" not in shown
    assert "documents=100" in shown and "tokens=12345" in shown


@pytest.mark.parametrize("options", [{"engine": "spark"}, {"address": "host:1"}, {"workers": 0}])
def test_engine_options_that_do_not_go_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(datapipe.UserError):
        RunOptions(**options)

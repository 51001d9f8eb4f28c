"""`datapipe.run` and `datapipe.plan_run`: the same run as that of the command line, as data, in a program of any kind."""

from __future__ import annotations

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
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
import datapipe.engine.run  # `datapipe.run` must stay the function
from datapipe.config import load_mixture
from datapipe.loader import Loader
from datapipe.shards.manifest import read_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs
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


def _refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(datapipe.UserError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def _program(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder, from a file in it."""
    (folder / "program.py").write_text(code)
    command = [sys.executable, *arguments, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


# ------------------------------------------------------------------------------------------------ the names of the package


def test_package_imports_nothing_heavy_and_has_the_names():
    code = "import sys, datapipe; dir(datapipe); print(*sorted(sys.modules)); datapipe.UserError"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "pyarrow", "numba", "pydantic", "ray", "torch", "rich"}
    assert datapipe.__all__ == NAMES
    assert set(NAMES) <= set(dir(datapipe))


def test_package_names_are_no_submodules():
    """A submodule of a name would take the name's place as soon as anything imports it."""
    assert not {module.name for module in pkgutil.iter_modules(datapipe.__path__)} & set(NAMES)
    assert [callable(getattr(datapipe, name)) for name in NAMES] == [True] * len(NAMES)
    assert datapipe.run.__module__ == "datapipe.api"
    with pytest.raises(AttributeError, match="module 'datapipe' has no attribute 'runn'"):
        datapipe.runn  # type: ignore[attr-defined]  # noqa: B018


# ------------------------------------------------------------------------------------------------ runs


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
    assert result.report == json.loads((web / "out/report.json").read_text())
    assert result.report["status"] == "done"
    assert next(iter(Loader(result.output, batch_size=2)))["input_ids"].shape == (2, 32)
    documents, tokens = result.report["total"]["documents"]["kept"], result.report["total"]["tokens"]
    assert repr(result) == (
        f"RunResult(name='test', output='{web}/out', fingerprint='{result.fingerprint}', documents={documents}, "
        f"tokens={tokens}, warnings=0)"
    )
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.medium
def test_run_again_does_nothing_and_plan_tells_so(web: Path):
    before = datapipe.plan_run(_mixture(web))
    assert [(step.step, step.tasks, step.committed_tasks, step.is_committed) for step in before.steps[:2]] == [
        ("web/read", 1, 0, False),
        ("web/sample", None, 0, False),
    ]
    assert before.sources["web"]["files"] == 1
    assert not before.is_committed
    assert not (web / "out").exists()
    first = datapipe.run(_mixture(web), workers=1)
    assert datapipe.plan_run(_mixture(web)).is_committed
    changed = datapipe.plan_run(_mixture(web), set={"stages.filter.length.min_chars": 20})
    assert not changed.is_committed
    assert "filter.length" in " ".join(changed.steps[0].reasons)
    records = stored_records(web / "out")
    again = datapipe.run(_mixture(web), workers=1)
    assert replace(again, report={**again.report, "run": None}) == replace(first, report={**first.report, "run": None})
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


_FAILS = "def fails(record):\n    raise ValueError('never')\n"


@pytest.mark.medium
def test_run_that_fails_raises_and_keeps_its_report(web: Path, monkeypatch: pytest.MonkeyPatch):
    (web / "own_failing.py").write_text(_FAILS)
    monkeypatch.syspath_prepend(web)
    with pytest.raises(datapipe.DatapipeError, match="ValueError: never") as caught:
        datapipe.run(_mixture(web, stages=["own_failing:fails"]), workers=1)
    report = json.loads((web / "out/report.json").read_text())
    assert (report["status"], report["problem"]) == ("failed", str(caught.value))


@pytest.mark.slow
def test_run_warnings_are_in_the_result_and_in_the_log(web: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="datapipe")
    sources = {"web": {"path": str(web / "web/*.jsonl"), "keep": ["licence"]}}
    planned = datapipe.plan_run(_mixture(web, sources=sources))
    result = datapipe.run(_mixture(web, sources=sources), workers=1)
    assert ["'licence'" in warning for warning in (*planned.warnings, *result.warnings)] == [True, True]
    assert [warning["kind"] for warning in result.report["warnings"]] == ["null_field"]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == list(result.warnings)


@pytest.mark.slow
def test_run_with_progress_prints_what_the_command_prints_while_it_runs(web: Path, capsys: pytest.CaptureFixture[str]):
    datapipe.run(_mixture(web), workers=1, progress=True)
    assert "web: tokenize" in capsys.readouterr().out


@pytest.mark.medium
def test_run_without_a_tokenizer_has_nothing_for_a_loader(web: Path):
    mixture = {name: value for name, value in _mixture(web, tokenizer="none").items() if name != "pack"}
    assert datapipe.plan_run(mixture).sources["web"]["tokens"] is None
    result = datapipe.run(mixture, workers=1)
    assert result.outputs == {}
    assert result.report["total"]["documents"]["kept"] == 30
    assert list((web / "out/documents/web").iterdir())


def test_result_masks_credentials():
    result = datapipe.RunResult(
        name="a",
        output="s3://key:very-secret-value@bucket/out",
        fingerprint="f",
        outputs={64: "s3://key:very-secret-value@bucket/out"},
        report={"total": {"documents": {"kept": 1}, "tokens": 2}},
    )
    assert "very-secret-value" not in repr(result)


# ------------------------------------------------------------------------------------------------ what is wrong


def test_errors_name_keys_and_arguments(web: Path):
    good = _mixture(web)
    assert _refusal(datapipe.plan_run, {**good, "sed": 1}).startswith("sed: unknown key. Did you mean 'seed'?")
    wrong = {**good, "sources": {"web": {"path": {1, 2}}}}
    assert _refusal(datapipe.plan_run, wrong) == (
        "mixture: sources.web.path: found set, expected text, a number, True or False, None, a path, a list or a dict."
    )
    assert _refusal(datapipe.plan_run, {1: 2}) == "mixture: found a key of type int, expected text."
    weight = {**good, "sources": {"web": {"path": "a", "weight": Fraction(1, 3)}}}
    assert _refusal(datapipe.plan_run, weight).startswith("mixture: sources.web.weight: found Fraction, expected text")
    assert _refusal(datapipe.plan_run, good, set={"sources.wob.weight": 1}).startswith("set: sources.wob: unknown source.")
    assert _refusal(datapipe.plan_run, good, set={"pack.method": "concart"}).startswith("set: pack.method: found 'concart'")
    assert _refusal(datapipe.plan_run, good, set={"pack..method": "concat"}).startswith("set: found 'pack..method', expected")
    assert _refusal(datapipe.plan_run, good, set={"seed": object()}).startswith("set: seed: found object, expected text")
    assert _refusal(datapipe.plan_run, good, limit=0).startswith("limit: found 0, expected at least 1")
    assert _refusal(datapipe.run, good, workers=0).startswith("workers: found 0, expected at least 1")
    assert _refusal(datapipe.run, good, engine="dask") == "engine 'dask': expected local or ray"
    assert _refusal(datapipe.run, good, address="auto") == "address auto: it goes with the engine ray, and this is local"
    assert _refusal(datapipe.run, web / "none.yaml").startswith(f"{web}/none.yaml: no such file.")


def test_dict_is_copied(web: Path):
    given = _mixture(web)
    loaded = load_mixture(given)
    given["stages"].clear()
    assert [use.name for use in loaded.stages] == ["normalize.unicode", "filter.length"]


def test_output_that_is_refused_by_the_system_is_the_users_error(web: Path):
    (web / "file").write_text("")
    with pytest.raises(datapipe.UserError, match="file"):
        datapipe.run(_mixture(web), output=web / "file/out", workers=1)


# ------------------------------------------------------------------------------------------------ programs


_UNGUARDED = """
import datapipe

print("runs")
result = datapipe.run("mixture.yaml", workers=2)
print(result.fingerprint)
"""


@pytest.mark.slow
def test_program_without_a_guard_runs_once(web: Path):
    runs.write_mixture(web, f"  web: {{path: {web}/web/*.jsonl}}\n", "")
    done = _program(web, _UNGUARDED)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["runs", read_snapshot(Root(str(web / "out"))).fingerprint]


_STAGE_IN_ITSELF = """
import datapipe


def keep(record):
    return True


{guard}datapipe.run("mixture.yaml", workers=2)
"""


@pytest.mark.parametrize(
    "is_guarded", [pytest.param(False, marks=pytest.mark.medium), pytest.param(True, marks=pytest.mark.slow)]
)
def test_program_that_holds_its_own_stage_needs_a_guard_and_is_told_so(is_guarded: bool, web: Path):
    runs.write_mixture(web, f"  web: {{path: {web}/web/*.jsonl}}\n", "stages: ['program:keep']")
    guard = 'if __name__ == "__main__":\n    ' if is_guarded else ""
    done = _program(web, _STAGE_IN_ITSELF.replace("{guard}", guard))
    if is_guarded:
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 1
    assert "a module of stages runs a mixture while it is imported, which each worker does. Put the call under" in done.stderr
    assert not (web / "out/snapshot.json").exists()

"""The command line: exit status, error messages, and the output of each command. The width of its screens is checked in
tests/conformance/test_screens.py."""

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from datapipe.cli.explore import inspect
from datapipe.cli.options import command_line
from datapipe.config import catalogue
from datapipe.errors import UserError
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.cli_processes import start
from tests.support.command_line import datapipe
from tests.support.killed_changes import content_of

ROOT = Path(__file__).resolve().parents[3]


def _printed(*arguments: object) -> str:
    done = datapipe([str(argument) for argument in arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def _json(*arguments: object) -> Any:
    done = datapipe([*map(str, arguments), "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.mark.medium
def test_cli_run_prints_a_short_screen_and_python_that_works(plain, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(plain / "out", output)
    printed = _printed("run", plain / "mixture.yaml", "--output", output, "--workers", "1")
    screen = printed[printed.index("test: ") :].splitlines()
    assert len(screen) < 25
    assert "dropped: " in screen[4] and "filter.gopher_quality" in screen[4]
    assert f'Loader("{output}", batch_size=8)' in printed
    lines = [line[4:] for line in printed.splitlines() if line.startswith("    ")]
    names: dict = {}
    exec("\n".join([*lines[-3:], "    break"]), names)
    assert names["batch"]["input_ids"].shape == (8, 64)
    (held_out,) = re.findall(r"^  held out: (.*)$", printed, re.M)
    assert sum(len(batch["input_ids"]) for batch in eval(held_out, names)) > 0
    shown = _printed("report", output)
    assert shown.splitlines()[:5] == screen[:5]


@pytest.mark.slow
def test_cli_verify_of_several_lengths_reads_all_and_names_what_is_damaged(lengths, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(lengths / "out", copy)
    for length in (64, 32):
        assert f"rows of {length}" in _printed("report", copy, "--full")
    assert "every byte" in _printed("verify", copy)
    shards = [sorted(folder.rglob("*.arrow"))[0] for folder in (copy / "length-32", copy / "shards")]
    for shard in shards:
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
    done = datapipe(["verify", str(copy)])
    assert done.returncode == 1
    for shard in shards:
        assert f"{shard.relative_to(copy)}: checksum" in done.stderr


def test_cli_report_has_counts_that_add_up_on_the_screen_in_full_and_as_json(plain):
    output = plain / "out"
    report = json.loads((output / "report.json").read_text())
    documents = report["sources"]["web"]["documents"]
    assert report["status"] == "finished"
    assert documents["read"] == 120 == documents["kept"] + sum(documents["dropped"].values()) + documents["quarantined"]
    assert set(report["total"]["steps"]) >= {"read", "filter.gopher_quality", "dedup.minhash", "tokenize", "pack"}
    full = _printed("report", output, "--full")
    assert f"{report['tokenizer']['sources']['web']['bytes_per_token']:.2f}" in full
    assert f"{report['tokenizer']['unused']['count']} of 600 ids" in full
    assert "too_few_words" in full and "time by step" in full
    assert _printed("report", output, "--json") == (output / "report.json").read_text()
    assert datapipe(["report", str(output), "--json", "--full"]).returncode == 2


def test_cli_plan_shows_what_is_committed_what_would_run_and_why(plain, tmp_path):
    mixture = plain / "mixture.yaml"
    committed = _printed("plan", mixture)
    assert "would run" not in committed and "committed" in committed and "100.00%" in committed
    assert "pack.sequence_length 64 → 32" in _printed("plan", mixture, "--set", "pack.sequence_length=32")
    plan = _json("plan", mixture)
    assert {step["step"] for step in plan["steps"]} >= {"web/read", "dedup.exact/match", "web/pack"}
    assert all(step["is_committed"] and not step["reasons"] for step in plan["steps"])
    assert (plan["sources"]["web"]["files"], plan["sources"]["web"]["share"], plan["warnings"]) == (1, 1.0, [])
    steps = _json("plan", mixture, "--output", tmp_path / "none")["steps"]
    assert {type(step["tasks"]) for step in steps} == {int, type(None)}
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_cli_inspect_shows_documents_with_value_threshold_and_survivor(plain, deduplicated):
    output = plain / "out"
    shown = _printed("inspect", output, "--dropped", "filter.gopher_quality", "-n", "2")
    assert "threshold 50" in shown and "too short, number" in shown
    assert "duplicate of web/a.jsonl:" in _printed("inspect", output, "--dropped", "dedup.exact:duplicate", "-n", "1")
    assert "ValueError" in _printed("inspect", deduplicated / "out", "--quarantined", "-n", "9")
    kept, dropped = _json("inspect", output, "-n", "2"), _json("inspect", output, "--dropped", "all", "-n", "99")
    assert all(document["text"] and document["own_id"] and document["error"] is None for document in kept["documents"])
    assert {type(document["threshold"]) for document in dropped["documents"]} == {float, type(None)}
    done = datapipe(["inspect", str(output), "--dropped", "filter.gofer_quality"])
    assert done.returncode == 2 and "filter.gopher_quality" in done.stderr


_WRONG = [{"clusters": "all", "kept": True}, {"members": 1}, {"least_alike": True}, {"thresholds": "1"}, {"against": ["x"]}]


@pytest.mark.parametrize("options", [*_WRONG, {"clusters": "dedup.minhsh"}, {"sweep": "filter.length.x"}])
def test_cli_inspect_refuses_options_that_do_not_go_together(plain, options):
    with pytest.raises(UserError):
        inspect(str(plain / "out"), **options)


def test_cli_run_refuses_an_address_of_figures_without_their_port(plain):
    done = datapipe(["run", str(plain / "mixture.yaml"), "--metrics-host", "0.0.0.0"])
    assert done.returncode == 2 and "--metrics-host requires --metrics-port" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "arrow", "--text"], "expected parquet, jsonl or mds"),
        (["--format", "tfrecord"], "tfrecord"),
        (["--format", "jsonl", "--zstd"], "--zstd requires --format mds"),
        (["--format", "mds", "--rows"], "--rows requires --format megatron"),
        (["--format", "mds", "--source", "wep"], "Did you mean 'web'"),
        (["--format", "mds", "--target-bytes", "5GiB"], "less than 4 GiB"),
    ],
)
def test_cli_export_that_cannot_be_done_is_refused_and_writes_nothing(plain, tmp_path, options, message):
    done = datapipe(["export", str(plain / "out"), "--to", str(tmp_path / "new"), *options])
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "new").exists()


def test_cli_export_lists_its_files_and_reports_one_that_is_whole(plain, tmp_path):
    tokens = sum(shard.tokens for shard in read_snapshot(Root(str(plain / "out"))).shards)
    command = ["export", plain / "out", "--format", "megatron", "--to", tmp_path / "m", "--target-bytes"]
    printed = _printed(*command, "1GB")
    assert f"{tmp_path}/m: 5 files" in printed and f" {tokens:,} tokens" in printed
    assert "web/train-00000.bin, web/train-00000.idx" in printed
    before = content_of(tmp_path / "m")
    assert "nothing was written" in _printed(*command, "1GB")
    other = datapipe([*map(str, command), "2GB"])
    assert other.returncode == 2 and "target_bytes" in other.stderr
    assert content_of(tmp_path / "m") == before


@pytest.mark.parametrize("content", ["", "[]", "7", "{}", '{"name": "old", "sources": {}, "total": 3}', "no provenance"])
def test_cli_report_of_another_version_is_a_plain_line(plain, tmp_path, content):
    if content == "no provenance":
        report = json.loads((plain / "out/report.json").read_bytes())
        content = json.dumps({name: entry for name, entry in report.items() if name != "provenance"})
    (tmp_path / "report.json").write_text(content)
    done = datapipe(["report", str(tmp_path)])
    assert done.returncode == 2
    assert f"{tmp_path}/report.json: not a report that this version can read" in done.stderr


@pytest.mark.slow
def test_cli_document_is_found_by_every_name_that_is_printed(plain):
    output = plain / "out"
    row = _json("trace", output, "--step", "3", "--global-batch-size", "4")["rows"][0]
    assert row["document"] in _printed("trace", output, "--step", "3", "--global-batch-size", "4")
    name, key = row["document"], row["key"]
    line = (plain / "web/a.jsonl").read_bytes()[int(name.removeprefix("web/a.jsonl:")) :].partition(b"\n")[0]
    own_id = json.loads(line)["id"]
    options = ["--global-batch-size", "4", "--epochs", "1"]
    (traced,) = {_printed("trace", output, "--document", text, *options) for text in (name, key, own_id, name[4:])}
    assert "\n3  0  " in traced
    appearances = _json("trace", output, "--document", name, *options)["appearances"]
    assert 3 in [appearance["step"] for appearance in appearances]
    assert "searched: the first epoch" in _printed("trace", output, "--document", name, *options[:2])
    (shown,) = {_printed("inspect", output, "--document", text) for text in (name, key, own_id, name[4:])}
    assert shown.startswith(f"{name}  id {own_id} ")
    for command in (["trace", str(output), *options], ["inspect", str(output)]):
        done = datapipe([*command, "--document", "web/b.jsonl:0"])
        assert done.returncode == 2 and "'web/b.jsonl:0'" in done.stderr


@pytest.mark.slow
def test_cli_bench_names_the_bottleneck_and_writes_its_figures(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 60))
    mixture, numbers = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n"), tmp_path / "bench.json"
    done = run_process(["bench", str(mixture), "--seconds", "0", "--json", str(numbers), "--set", "pack.sequence_length=32"])
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())["sources"]["web"]
    assert f"▶ {found['bottleneck']}" in done.stdout and found["documents"] == 60
    assert datapipe(["bench", str(mixture), "--source", "wbe"]).returncode == 2


def test_cli_loader_bench_prints_the_result_and_writes_its_figures(plain, tmp_path):
    numbers = tmp_path / "bench.json"
    command = ["loader-bench", str(plain / "out"), "--batch-size", "4", "--steps", "20", "--rank", "1", "--world-size", "2"]
    printed = _printed(*command, "--step-ms", "0", "--prefetch", "4", "--json", numbers)
    found = json.loads(numbers.read_text())
    assert printed.startswith(f"{found['diagnosis']}: ")
    assert (found["steps"], found["step_s"]) == (20, 0)
    refused = datapipe([*command, "--step-ms", "0", "--fields", "input_idz"])
    assert refused.returncode == 2 and "Did you mean 'input_ids'?" in refused.stderr


@pytest.mark.medium
def test_cli_init_writes_a_mixture_that_plans_and_commands_that_a_shell_reads(tmp_path, monkeypatch):
    name = "my mix #1 it's.yaml"
    missing = datapipe(["plan", name], cwd=tmp_path).stderr
    written = datapipe(["init", name], cwd=tmp_path).stdout
    assert datapipe(["init", name], cwd=tmp_path).returncode == 2  # the file exists
    printed = [shlex.split(command) for command in re.findall(r"`(datapipe .*?)`", missing + written)]
    assert printed == [["datapipe", command, name] for command in ("init", "plan", "run")]
    planned = datapipe(["plan", name], cwd=tmp_path)
    assert planned.returncode == 0 and "would run" in planned.stdout
    arguments = ["datapipe", "run", name, "--set", "sources.a.path=s3://KEY:SECRET@bucket/*.jsonl"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert shlex.split(command_line()) == [*arguments[:4], "sources.a.path=s3://***@bucket/*.jsonl"]


_MISTAKE = "name: m\noutput: out\nsources:\n  web:\n    path: data/*.jsonl\n"


_WITH_OUTPUT = [["report", "whole.yaml"], ["report", "nowhere", "whole.yaml"], ["serve", "nowhere", "whole.yaml"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.yaml"], "missing.yaml"),
        (["run", "folder"], "folder"),
        (["plan", "none.yaml", "--set", "stages=[own_needy:X]"], "own_needy:X"),
        (["plan", "m.yaml/below.yaml"], "cannot be read"),
        (["run", "m.yaml"], "m.yaml:6: sources.web.wieght: unknown key. Did you mean 'weight'?"),
        (["run", "none.yaml"], "none.yaml:5: sources.web.path"),
        (["run", "none.yaml", "--engine", "spark"], "expected local or ray"),
        (["report", "nowhere"], "nowhere: no report.json here"),
        (["verify", "nowhere"], "nowhere: no snapshot.json here"),
        (["inspect", "nowhere"], "nowhere: no run has left anything here"),
        (["loader-bench", "nowhere", "--step-ms", "1"], "nowhere: no snapshot.json here"),
        (["trace", "nowhere", "--step", "0", "--global-batch-size", "1"], "nowhere: no snapshot.json here"),
        (["stages", "filter.gopher_qualty"], "filter.gopher_quality"),
        *((command, "whole.yaml: a mixture. Expected the output of its run: out") for command in _WITH_OUTPUT),
        (["trace", "nowhere", "--step", "0"], "no global batch size: give the rows"),
        (["verify", "m.yaml"], "m.yaml: no "),
        (["report", "m.yaml"], "m.yaml: no "),
        (["export", "m.yaml", "--format", "arrow", "--to", "new"], "m.yaml: no "),
    ],
)
def test_cli_wrong_input_is_a_plain_line_and_status_2(tmp_path, arguments, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "own_needy.py").write_text("import not_installed_at_all\n")
    (tmp_path / "none.yaml").write_text(_MISTAKE)
    (tmp_path / "whole.yaml").write_text(f"{_MISTAKE}tokenizer: none\n")
    (tmp_path / "m.yaml").write_text(f"{_MISTAKE}    wieght: 1\n")
    done = datapipe(arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_cli_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert _printed("--version") == f"datapipe {project['version']}\n"


def test_cli_schema_and_stages_know_every_stage_and_reader():
    schema, listed = _printed("schema"), _printed("stages")
    json.loads(schema)
    names = {f"{path.parent.name}.{path.stem}" for path in (ROOT / "stages").glob("*/*.py") if not path.stem.startswith("_")}
    *lines, empty, hint = listed.splitlines()
    heading = lines.index("readers, by the `format:` of a source:")
    names_listed = {line.partition(" ")[0] for line in lines[:heading]}
    for name in names - {name for name in names if name.startswith("read.")}:
        assert name in schema and name in names_listed
    assert "…" not in listed and not empty and "`datapipe stages NAME`" in hint
    assert [line.split()[0] for line in lines[heading + 1 :]] == catalogue.formats()
    assert all(len(line.split()) > 3 and line.endswith(".") for line in [*lines[: heading - 1], *lines[heading + 1 :]])
    assert _printed("stages", "jsonl") == _printed("stages", "read.jsonl")


@pytest.mark.medium
def test_cli_failed_run_writes_its_report(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpora.jsonl(corpora.documents(1, 20)) + b"{broken\n")
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n")
    done = datapipe(["run", str(mixture), "--workers", "1"])
    assert done.returncode == 1
    assert "max_quarantined" in done.stderr and "a.jsonl" in done.stderr
    screen = " ".join(done.stdout[done.stdout.index("test: failed after ") :].split())
    assert screen.startswith("test: failed after 1 of 15 steps, 21 documents read; ")
    assert screen.endswith("--full` shows the counts")  # no tables and no next commands
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["status"] == "failed"
    told = _printed("report", tmp_path / "out")
    assert " ".join(told.split()).endswith(" ".join(f"failed: {report['problem']}".split()))
    assert report["sources"]["web"]["documents"]["quarantined"] == 1
    assert "{broken" in _printed("inspect", tmp_path / "out", "--quarantined")


@pytest.mark.slow
def test_cli_run_whose_reader_ends_explains_how_to_go_on_and_the_same_command_does(tmp_path):
    """As `datapipe run … | true`."""
    corpora.write_jsonl(tmp_path / "web/a.jsonl", corpora.documents(1, 3))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", "", tail="tokenizer: none\n")
    arguments = ["run", str(mixture), "--workers", "1"]
    process = start(arguments)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait() == 1
    process.stderr.close()
    assert errors.startswith("datapipe: stopped: the program that read what it prints has ended")
    assert len(errors.splitlines()) == 1
    assert datapipe(arguments).returncode == 0


@pytest.mark.parametrize("error", [MemoryError(), ImportError("x.so: failed to map segment from shared object")], ids=str)
def test_cli_without_memory_reports_it_and_calls_it_no_defect(plain, monkeypatch, error):
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("datapipe.engine.watching.status.read_status", fails)
    ended = datapipe(["status", str(plain / "out")])
    assert ended.returncode == 1 and "Memory does not suffice" in ended.stderr


def test_cli_command_that_is_interrupted_ends_with_one_line(plain, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("datapipe.bench.bench.bench", interrupted)
    ended = datapipe(["bench", str(next(plain.glob("*.yaml")))])
    assert (ended.returncode, ended.stderr) == (130, "datapipe: stopped\n")

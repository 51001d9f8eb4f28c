"""The command line: exit status, error messages, and the output of each command."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from datapipe import catalogue
from datapipe.cli.classifier import CLASSIFIER_COMMANDS
from datapipe.cli.inspect import inspect
from datapipe.cli.main import app
from datapipe.cli.options import command_line
from datapipe.errors import UserError
from datapipe.shards.manifest import read_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.cli_processes import on_terminal, start
from tests.support.cli_processes import run as run_process
from tests.support.command_line import datapipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The mixture, output and printed text of a finished run."""
    folder = tmp_path_factory.mktemp("cli")
    corpora.write_jsonl(folder / "web/a.jsonl", corpora.documents(1, 120))
    mixture = runs.write_mixture(folder, f"  web:\n    path: {folder}/web/*.jsonl\n")
    done = run_process(["run", str(mixture), "--workers", "1"])
    assert done.returncode == 0, done.stderr
    return mixture, folder / "out", done.stdout


def test_cli_run_prints_a_short_screen_and_how_to_stream(finished):
    _, output, printed = finished
    screen = printed[printed.index("test: ") :].splitlines()
    assert len(screen) < 25
    assert "dropped: " in screen[4]
    assert "filter.gopher_quality" in screen[4]
    assert f'Loader("{output}", batch_size=8)' in printed


def test_cli_run_prints_python_that_works(finished):
    _, _, printed = finished
    lines = [line[4:] for line in printed.splitlines() if line.startswith("    ")]
    names: dict = {}
    exec("\n".join([*lines[-3:], "    break"]), names)
    assert names["batch"]["input_ids"].shape == (8, 64)
    (held_out,) = re.findall(r"^  held out: (.*)$", printed, re.M)
    assert sum(len(batch["input_ids"]) for batch in eval(held_out, names)) > 0


@pytest.mark.slow
def test_cli_run_of_several_lengths_prints_all_and_verify_reads_all(finished, tmp_path):
    mixture, output, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(output, copy)
    done = run_process(["run", str(mixture), "--output", str(copy), "--set", "pack.sequence_length=[64, 32]"])
    assert done.returncode == 0, done.stderr
    for folder, length in ((copy, 64), (copy / "length-32", 32)):
        assert f'Loader("{folder}", batch_size=8)' in done.stdout
        assert f"(8, {length})" in done.stdout
        assert f"rows of {length}" in datapipe(["report", str(copy), "--full"]).stdout
    shard = sorted((copy / "length-32").rglob("*.arrow"))[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    done = datapipe(["verify", str(copy)])
    assert done.returncode == 1
    assert f"{copy}: " in done.stdout
    assert f"{copy}/length-32: {shard.relative_to(copy / 'length-32')}: checksum" in done.stderr


def test_cli_report_file_has_counts_that_add_up(finished):
    _, output, _ = finished
    report = json.loads((output / "report.json").read_text())
    documents = report["sources"]["web"]["documents"]
    assert report["status"] == "done"
    assert documents["read"] == 120 == documents["kept"] + sum(documents["dropped"].values()) + documents["quarantined"]
    assert set(report["total"]["steps"]) >= {"read", "filter.gopher_quality", "dedup.minhash", "tokenize", "pack"}
    assert all(step["seconds"] >= 0 for step in report["total"]["steps"].values())


def test_cli_full_report_prints_the_tokenizer_table(finished):
    _, output, _ = finished
    found = json.loads((output / "report.json").read_text())["tokenizer"]
    shown = datapipe(["report", str(output), "--full"]).stdout
    assert f"{found['sources']['web']['bytes_per_token']:.2f}" in shown
    assert f"{found['unused']['count']} of 600 ids never occur in these texts" in shown


def test_cli_plan_after_a_run_shows_everything_committed(finished):
    mixture, _, _ = finished
    done = datapipe(["plan", str(mixture)])
    assert done.returncode == 0
    assert "would run" not in done.stdout
    assert "committed" in done.stdout
    assert "100.00%" in done.stdout


def test_cli_plan_before_a_run_shows_what_would_run(tmp_path, finished):
    mixture, _, _ = finished
    done = datapipe(["plan", str(mixture), "--output", str(tmp_path / "elsewhere")])
    assert "would run" in done.stdout
    assert "after the steps before" in " ".join(done.stdout.split())
    assert not (tmp_path / "elsewhere").exists()


def test_cli_plan_says_why_a_step_would_run(finished):
    mixture, _, _ = finished
    done = datapipe(["plan", str(mixture), "--set", "pack.sequence_length=32"])
    assert "options changed: pack.sequence_length 64 → 32" in done.stdout


def test_cli_json_is_one_document_on_stdout_with_numbers_as_numbers(finished, tmp_path):
    mixture, output, _ = finished

    def printed(*arguments):
        done = datapipe([*arguments, "--json"])
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout, parse_constant=pytest.fail)

    plan = printed("plan", str(mixture))
    assert {step["step"] for step in plan["steps"]} >= {"web/read", "dedup.exact/match", "web/pack"}
    assert all(step["is_committed"] and not step["reasons"] for step in plan["steps"])
    assert (plan["sources"]["web"]["files"], plan["sources"]["web"]["share"], plan["warnings"]) == (1, 1.0, [])
    new = printed("plan", str(mixture), "--output", str(tmp_path / "none"))
    assert {type(step["tasks"]) for step in new["steps"]} == {int, type(None)}
    kept, dropped = printed("inspect", str(output), "-n", "2"), printed("inspect", str(output), "--dropped", "all", "-n", "99")
    assert all(document["text"] and document["own_id"] and document["error"] is None for document in kept["documents"])
    assert {type(document["threshold"]) for document in dropped["documents"]} == {float, type(None)}
    (cluster,) = printed("inspect", str(output), "--clusters", "dedup.minhash", "-n", "1")["clusters"]
    assert cluster["survivor"]["document"].startswith("web/a.jsonl:") and len(cluster["members"]) <= cluster["dropped"]
    row = printed("trace", str(output), "--step", "3", "--global-batch-size", "4")["rows"][0]
    traced = printed("trace", str(output), "--document", row["document"], "--global-batch-size", "4", "--epochs", "1")
    assert 3 in [appearance["step"] for appearance in traced["appearances"]]


def test_cli_json_has_warnings_on_stderr_and_in_the_document(tmp_path):
    corpora.write_jsonl(tmp_path / "web/a.jsonl", corpora.documents(1, 20))
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl, keep: [nowhere]}}\n")
    done = datapipe(["plan", str(mixture), "--json"])
    (warning,) = json.loads(done.stdout)["warnings"]
    assert done.stderr == f"warning: {warning['text']}\n"
    assert "nowhere" in warning["text"]


def test_cli_report_prints_the_screen_again_all_of_it_or_json(finished):
    _, output, printed = finished
    screen = datapipe(["report", str(output)])
    assert (screen.returncode, screen.stderr) == (0, "")
    assert screen.stdout.splitlines()[:5] == printed[printed.index("test: ") :].splitlines()[:5]
    full = datapipe(["report", str(output), "--full"])
    assert "too_few_words" in full.stdout
    assert "time by step" in full.stdout
    as_json = datapipe(["report", str(output), "--json"])
    assert as_json.stdout == (output / "report.json").read_text()
    assert datapipe(["report", str(output), "--json", "--full"]).returncode == 2


def test_cli_screen_of_a_run_fits_a_terminal_of_80_columns(finished, monkeypatch, tmp_path):
    _, output, _ = finished
    (tmp_path / "o").symlink_to(output)
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = datapipe(["report", "o"], cwd=tmp_path).stdout
        assert max(map(len, shown.splitlines())) <= columns


def test_cli_inspect_shows_a_dropped_document_with_value_and_threshold(finished):
    _, output, _ = finished
    done = datapipe(["inspect", str(output), "--dropped", "filter.gopher_quality", "-n", "2"])
    assert done.returncode == 0, done.stderr
    assert "threshold 50" in done.stdout
    assert "too short, number" in done.stdout


def test_cli_inspect_shows_the_survivor_of_a_duplicate(finished):
    _, output, _ = finished
    done = datapipe(["inspect", str(output), "--dropped", "dedup.exact:duplicate", "-n", "1"])
    assert "duplicate of web/a.jsonl:" in done.stdout


def test_cli_inspect_clusters_prints_dropped_documents_beside_the_survivor(finished, capsys):
    _, output, _ = finished
    inspect(str(output), clusters="dedup.minhash", count=2, members=1, least_alike=True)
    printed = capsys.readouterr().out
    assert printed.count("stays    web/a.jsonl:") == 2 == printed.count("dropped  web/a.jsonl:")
    assert "word 5-grams in common" in printed
    assert "{+changed" in printed or "[-changed" in printed
    with pytest.raises(UserError, match=r"Did you mean 'dedup.minhash'"):
        inspect(str(output), clusters="dedup.minhsh")
    with pytest.raises(UserError, match=r"expected one of .*--clusters STAGE"):
        inspect(str(output), clusters="all", kept=True)
    for options in ({"members": 1}, {"least_alike": True}):
        with pytest.raises(UserError, match="goes with --clusters STAGE"):
            inspect(str(output), **options)


@pytest.mark.slow
def test_cli_inspect_still_works_when_the_inputs_have_changed(tmp_path):
    corpora.write_jsonl(tmp_path / "web/a.jsonl", corpora.documents(1, 40))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n")
    assert run_process(["run", str(mixture)]).returncode == 0
    corpora.write_jsonl(tmp_path / "web/b.jsonl", corpora.documents(2, 40))
    done = datapipe(["inspect", str(tmp_path / "out"), "--dropped", "filter.gopher_quality", "-n", "1"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "threshold 50" in done.stdout


def test_cli_inspect_unknown_reason_is_the_users_error(finished):
    _, output, _ = finished
    done = datapipe(["inspect", str(output), "--dropped", "filter.gofer_quality"])
    assert done.returncode == 2
    assert "filter.gopher_quality" in done.stderr


@pytest.mark.slow
def test_cli_inspect_sweep_prints_the_documents_that_each_threshold_keeps(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 60))
    stages = "stages:\n  - filter.length: {min_words: 80, mode: tag}"
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n", stages)
    assert run_process(["run", str(mixture), "--workers", "1"]).returncode == 0
    output = str(tmp_path / "out")
    done = datapipe(["inspect", output, "--sweep", "filter.length.min_words"])
    assert done.returncode == 0, done.stderr
    assert "▶ 80" in done.stdout
    chosen = datapipe(["inspect", output, "--sweep", "filter.length.min_words", "--at", "0,70"])
    assert "60  100.0%" in " ".join(chosen.stdout.split()).replace(" │ ", "  ")
    for wrong in (["--at", "1"], ["--sweep", "filter.length.min_words", "--at", "a,b"], ["--sweep", "filter.length.x"]):
        refused = datapipe(["inspect", output, *wrong])
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


def test_cli_verify_finds_a_flipped_bit_and_names_the_shard(finished, tmp_path):
    _, output, _ = finished
    assert datapipe(["verify", str(output)]).returncode == 0
    copy = tmp_path / "copy"
    (copy / "shards/web").mkdir(parents=True)
    for path in ("snapshot.json", "tokenizer.json", "files.parquet"):
        (copy / path).write_bytes((output / path).read_bytes())
    for shard in (output / "shards/web").iterdir():
        (copy / "shards/web" / shard.name).write_bytes(shard.read_bytes())
    victim = next((copy / "shards/web").iterdir())
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 4
    victim.write_bytes(content)
    done = datapipe(["verify", str(copy)])
    assert done.returncode == 1
    assert f"shards/web/{victim.name}" in done.stderr


def test_cli_export_lists_its_files_and_tells_one_that_is_whole(finished, tmp_path):
    _, output, _ = finished
    tokens = sum(shard.tokens for shard in read_snapshot(Root(str(output))).shards)
    command = ["export", str(output), "--format", "megatron", "--to", str(tmp_path / "m"), "--target-bytes", "1GB"]
    done = datapipe(command)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/m: 4 files, {tokens:,} tokens" in done.stdout
    assert "web/train-00000.bin, web/train-00000.idx" in done.stdout
    again = datapipe(command)
    assert again.returncode == 0
    assert "It was whole already: nothing was written" in again.stdout
    other = datapipe([*command[:-1], "2GB"])
    assert other.returncode == 2
    assert "holds a whole export of something else: target_bytes" in other.stderr
    assert datapipe([*command[:2], "--format", "tfrecord", *command[4:]]).returncode == 2
    assert datapipe(["verify", str(output)]).returncode == 0


@pytest.mark.slow
def test_cli_export_ends_with_the_line_that_loads_it(finished, tmp_path):
    _, output, _ = finished
    done = datapipe(["export", str(output), "--format", "parquet", "--to", str(tmp_path / "copy")])
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    assert line == f'datapipe.loader.Loader("{tmp_path}/copy", batch_size=8)'
    program = f"import datapipe.loader\nprint(next(iter({line}))['input_ids'].shape[0])"
    loaded = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert loaded.stdout == "8\n", loaded.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "arrow", "--text"], "expected parquet, jsonl or mds"),
        (["--format", "jsonl", "--zstd"], "--zstd requires --format mds"),
        (["--format", "mds", "--rows"], "--rows requires --format megatron"),
        (["--format", "mds", "--source", "wep"], "no source 'wep'. Did you mean 'web'"),
        (["--format", "mds", "--target-bytes", "5GiB"], "less than 4 GiB"),
    ],
)
def test_cli_export_that_cannot_be_met_is_refused_and_writes_nothing(finished, tmp_path, options, message):
    _, output, _ = finished
    done = datapipe(["export", str(output), "--to", str(tmp_path / "new"), *options])
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", ["", "[]", "7", "{}", '{"name": "old", "sources": {}, "total": 3}', "no tokenizer"])
def test_cli_report_of_another_version_is_a_plain_line(finished, tmp_path, content):
    _, output, _ = finished
    if content == "no tokenizer":
        report = json.loads((output / "report.json").read_bytes())
        del report["tokenizer"]
        content = json.dumps(report)
    (tmp_path / "report.json").write_text(content)
    done = datapipe(["report", str(tmp_path)])
    assert done.returncode == 2
    assert f"{tmp_path}/report.json: not a report that this version can read" in done.stderr
    assert "Run the mixture again" in done.stderr


def test_cli_verify_of_a_damaged_second_snapshot_reports_the_other_problems_too(finished, tmp_path):
    _, output, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(output, copy)
    (copy / "length-32").mkdir()
    (copy / "length-32/snapshot.json").write_text("{")
    shard = next((copy / "shards").rglob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1])
    done = datapipe(["verify", str(copy)])
    assert done.returncode == 1
    assert shard.name in done.stderr
    assert f"{copy}/length-32/snapshot.json: not a snapshot" in done.stderr


@pytest.mark.parametrize("command", [["verify"], ["export", "--format", "arrow", "--to", "new"], ["report"]])
def test_cli_output_that_is_a_file_is_a_plain_line(tmp_path, command):
    (tmp_path / "file").write_text("text")
    done = datapipe([*command, "file"], cwd=tmp_path)
    assert done.returncode == 2
    assert "file: no " in done.stderr


def test_cli_trace_names_the_documents_of_a_batch(finished):
    _, output, _ = finished
    done = datapipe(["trace", str(output), "--step", "3", "--global-batch-size", "4"])
    assert done.returncode == 0, done.stderr
    assert "a.jsonl" in done.stdout


def _document_of_step_3(output):
    """The name and the key of a document, as `trace` prints them, and its id in the input."""
    done = datapipe(["trace", str(output), "--step", "3", "--global-batch-size", "4"])
    name, key = done.stdout.splitlines()[1].split()[2:4]
    position = int(name.removeprefix("web/a.jsonl:"))
    line = (output.parent / "web" / "a.jsonl").read_bytes()[position:].partition(b"\n")[0]
    return name, key, json.loads(line)["id"]


def test_cli_document_is_found_by_every_name_that_is_printed(finished):
    _, output, _ = finished
    name, key, own_id = _document_of_step_3(output)
    options = ["--global-batch-size", "4", "--epochs", "1"]
    traced = {datapipe(["trace", str(output), "--document", text, *options]).stdout for text in (name, key, own_id, name[4:])}
    assert len(traced) == 1
    assert "\n3  0  " in traced.pop()
    assert datapipe(["trace", str(output), "--document", name, *options[:2]]).stdout.endswith(
        "searched: the first epoch of its source, since the run has no end. --epochs N searches N epochs of its source\n"
    )
    shown = {datapipe(["inspect", str(output), "--document", text]).stdout for text in (name, key, own_id, name[4:])}
    assert len(shown) == 1
    assert shown.pop().startswith(f"{name}  id {own_id} ")
    for command in (["trace", str(output), *options], ["inspect", str(output)]):
        done = datapipe([*command, "--document", "web/b.jsonl:0"])
        assert done.returncode == 2
        assert "'web/b.jsonl:0'" in done.stderr


@pytest.mark.slow
def test_cli_bench_names_the_bottleneck_and_writes_its_figures(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 60))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n")
    numbers = tmp_path / "bench.json"
    done = run_process(["bench", str(mixture), "--seconds", "0", "--json", str(numbers), "--set", "pack.sequence_length=32"])
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())["sources"]["web"]
    assert f"▶ {found['bottleneck']}" in done.stdout
    assert found["advice"] in done.stdout
    assert found["documents"] == 60
    assert not (tmp_path / "out").exists()
    for wrong in (["--sample", "lots"], ["--source", "wbe"], ["--set", "pack.sequence_lenth=32"]):
        refused = datapipe(["bench", str(mixture), *wrong])
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


def test_cli_loader_bench_prints_the_verdict_and_writes_its_figures(finished, tmp_path):
    _, output, _ = finished
    numbers = tmp_path / "bench.json"
    command = ["loader-bench", str(output), "--batch-size", "4", "--steps", "20", "--rank", "1", "--world-size", "2"]
    done = datapipe([*command, "--step-ms", "0", "--prefetch", "4", "--json", str(numbers)])
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    assert done.stdout.startswith("data-bound: ")  # a trainer that computes nothing only waits
    assert found["diagnosis"] == "data-bound"
    assert (found["steps"], found["step_s"]) == (20, 0)
    assert [forecast["prefetch"] for forecast in found["forecasts"]] == [0, 1, 2, 4, 8]
    assert "▶ 4" in done.stdout
    refused = datapipe([*command, "--step-ms", "0", "--fields", "input_idz"])
    assert refused.returncode == 2
    assert "Did you mean 'input_ids'?" in refused.stderr


@pytest.mark.medium
def test_cli_init_writes_a_mixture_that_plans(tmp_path):
    done = datapipe(["init"], cwd=tmp_path)
    assert done.returncode == 0
    assert datapipe(["init"], cwd=tmp_path).returncode == 2  # the file exists
    planned = datapipe(["plan", "mixture.yaml"], cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "would run" in planned.stdout


def test_cli_prints_commands_that_a_shell_reads_as_they_are_meant(tmp_path, monkeypatch):
    name = "my mix #1 it's.yaml"
    missing = datapipe(["plan", name], cwd=tmp_path).stderr
    written = datapipe(["init", name], cwd=tmp_path).stdout
    printed = [shlex.split(command) for command in re.findall(r"`(datapipe .*?)`", missing + written)]
    assert printed == [["datapipe", command, name] for command in ("init", "plan", "run")]
    arguments = ["datapipe", "run", name, "--set", "sources.a.path=s3://KEY:SECRET@bucket/*.jsonl"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert shlex.split(command_line()) == [*arguments[:4], "sources.a.path=s3://***@bucket/*.jsonl"]


@pytest.mark.medium
def test_cli_process_with_a_missing_mixture_ends_with_a_plain_line_and_status_2(tmp_path):
    done = run_process(["run", "missing.yaml"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("datapipe: ")
    assert "missing.yaml" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "missing.yaml"], 2, "missing.yaml"),
        (["run"], 2, "MIXTURE"),
        (["report", "nowhere"], 2, "nowhere: no report.json here"),
        (["verify", "nowhere"], 2, "nowhere: no snapshot.json here"),
        (["inspect", "nowhere"], 2, "nowhere: no run has left anything here"),
        (["loader-bench", "nowhere", "--step-ms", "1"], 2, "nowhere: no snapshot.json here"),
        (["trace", "nowhere", "--step", "0", "--global-batch-size", "1"], 2, "nowhere: no snapshot.json here"),
        (["stages", "filter.gopher_qualty"], 2, "filter.gopher_quality"),
    ],
)
def test_cli_wrong_input_is_a_plain_line_and_status_2(tmp_path, arguments, status, message):
    done = datapipe(arguments, cwd=tmp_path)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_cli_mistake_in_a_mixture_names_its_line(tmp_path):
    (tmp_path / "m.yaml").write_text("name: m\noutput: out\nsources:\n  web:\n    path: x\n    wieght: 1\n")
    done = datapipe(["run", "m.yaml"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("datapipe: m.yaml:6: sources.web.wieght: unknown key. Did you mean 'weight'?")


def test_cli_glob_that_matches_nothing_names_its_line(tmp_path):
    (tmp_path / "m.yaml").write_text("name: m\noutput: out\nsources:\n  web:\n    path: data/*.jsonl\n")
    done = datapipe(["run", "m.yaml"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("datapipe: m.yaml:5: sources.web.path")
    assert "data/*.jsonl" in done.stderr


def test_cli_unknown_engine_is_refused(finished):
    mixture, _, _ = finished
    done = datapipe(["run", str(mixture), "--engine", "spark"])
    assert done.returncode == 2
    assert "expected local or ray" in done.stderr


def test_cli_stages_of_one_stage_prints_its_documentation():
    printed = datapipe(["stages", "filter.gopher_repetition"]).stdout
    assert "the most frequent n-gram" in printed  # the docstring's table
    assert "profile: paper | datatrove | dclm" in printed


def test_cli_schema_and_stages_know_every_stage():
    schema = datapipe(["schema"])
    listed = datapipe(["stages"])
    root = Path(__file__).resolve().parents[3] / "stages"
    names = {f"{path.parent.name}.{path.stem}" for path in root.glob("*/*.py") if not path.stem.startswith("_")}
    names_listed = {line.partition(" ")[0] for line in listed.stdout.splitlines()}
    for name in names - {name for name in names if name.startswith("read.")}:
        assert name in schema.stdout
        assert name in names_listed
    json.loads(schema.stdout)


def test_cli_stages_in_a_pipe_prints_whole_lines_and_the_readers():
    text = datapipe(["stages"]).stdout
    *lines, empty, hint = text.splitlines()
    assert "…" not in text
    assert (empty, hint) == ("", "`datapipe stages NAME` prints the options of one.")
    heading = lines.index("readers, by the `format:` of a source:")
    assert any(line.split()[:2] == ["filter.length", "filter"] for line in lines[:heading])
    assert [line.split()[0] for line in lines[heading + 1 :]] == catalogue.formats()
    assert all(len(line.split()) > 3 and line.endswith(".") for line in [*lines[: heading - 1], *lines[heading + 1 :]])
    assert datapipe(["stages", "jsonl"]).stdout == datapipe(["stages", "read.jsonl"]).stdout


def test_cli_stages_aligns_the_tables_of_a_docstring():
    lines = datapipe(["stages", "filter.gopher_repetition"]).stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if "`paper`" in line and "`datatrove`" in line)
    column = lines[start].index("`datatrove`")
    assert not any("|" in line for line in lines[start : start + 10])
    assert all(line[column - 1] == " " != line[column] for line in lines[start + 2 : start + 10])


@pytest.mark.medium
def test_cli_stages_of_a_function_without_a_docstring_has_no_line_for_it(tmp_path):
    (tmp_path / "bare_stage.py").write_text("def long_enough(record, least: int = 2) -> bool:\n    return True\n")
    lines = run_process(["stages", "bare_stage:long_enough"], cwd=tmp_path).stdout.splitlines()
    assert lines[0].startswith("bare_stage:long_enough  (function")
    assert lines[1] == ""
    assert "      least: whole number = 2" in lines
    assert all(line.strip() for line in lines[2:])


_COMMANDS = [[command.name or str(command.callback.__name__).replace("_", "-")] for command in app.registered_commands]
_GROUPS = [["tokenizer"], ["tokenizer", "train"], ["classifier"], *(["classifier", name] for name in CLASSIFIER_COMMANDS)]


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", [[], *_COMMANDS, *_GROUPS])
def test_cli_help_fits_the_terminal_and_is_not_cut(command, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    done = datapipe([*command, "--help"])
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert not any(line.endswith("...") for line in done.stdout.partition("\n\n")[2].splitlines())
    for line in done.stdout.splitlines():
        assert line.count("datapipe run ") + line.count("datapipe inspect ") < 2  # examples stand on lines of their own


def test_cli_help_describes_each_command_in_a_line_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    described = datapipe(["--help"]).stdout.partition("Commands:\n")[2].splitlines()
    assert len(described) == len(_COMMANDS) + sum(len(group) == 1 for group in _GROUPS)
    assert all(line.endswith(".") for line in described)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
def test_cli_on_a_terminal_breaks_lines_between_words_and_shows_errors_in_red(tmp_path, columns):
    status, printed = on_terminal(["plan", f"{'a/' * 20}mixture.yaml"], columns, tmp_path)
    assert status == 2
    assert printed.startswith("\x1b[31mdatapipe:")
    lines = re.sub(r"\x1b\[\d*m", "", printed).splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.count(f"{'a/' * 20}mixture.yaml") for line in lines) == 2
    status, printed = on_terminal(["stages"], columns, tmp_path)
    assert status == 0
    assert max(map(len, printed.splitlines())) <= columns
    whole = datapipe(["stages"]).stdout
    assert set(printed.split()) - set(whole.split()) <= {f"({kind})" for kind in ("filter", "map", "global", "reader")}


@pytest.mark.slow
def test_cli_failed_run_writes_its_report(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpora.jsonl(corpora.documents(1, 20)) + b"{broken\n")
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n")
    done = run_process(["run", str(mixture)])
    assert done.returncode == 1
    assert "max_quarantined" in done.stderr
    screen = " ".join(done.stdout[done.stdout.index("test: failed after ") :].split())
    assert screen.startswith("test: failed after 1 of 15 steps, 21 documents read; ")
    assert screen.endswith("--full` shows the counts")  # no tables and no next commands
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["status"] == "failed"
    told = datapipe(["report", str(tmp_path / "out")]).stdout
    assert " ".join(told.split()).endswith(" ".join(f"failed: {report['problem']}".split()))
    assert report["sources"]["web"]["documents"]["quarantined"] == 1
    looked = datapipe(["inspect", str(tmp_path / "out"), "--quarantined"])
    assert looked.returncode == 0
    assert "{broken" in looked.stdout
    assert "a.jsonl" in done.stderr


@pytest.mark.slow
def test_cli_run_that_may_lose_a_file_names_it_in_its_last_lines(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 1200))
    (tmp_path / "b.jsonl.zst").write_bytes(gzip.compress(corpora.jsonl(corpora.documents(2, 600))))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/*.jsonl*\n", stages="stages: []")
    failed = run_process(["run", str(mixture)])
    assert failed.returncode == 2
    assert "b.jsonl.zst from 0 on: the file is a gzip archive" in failed.stderr.splitlines()[-1]
    done = run_process(["run", str(mixture), "--set", "max_unreadable_files=1"])
    assert done.returncode == 0
    named = "warning: source 'web': 1 input file cannot be read whole: b.jsonl.zst from 0 on: the file is a gzip archive"
    for printed in (done.stdout, datapipe(["report", str(tmp_path / "out")]).stdout):
        shown = " ".join(printed.split())
        assert shown.count(named) == 1
        assert "warning" not in shown.partition(named)[0]


@pytest.mark.slow
def test_cli_users_stage_that_breaks_its_contract_is_named_without_a_traceback(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", corpora.documents(1, 20))
    (tmp_path / "my_stage.py").write_text(
        "import pyarrow as pa\nfrom datapipe.stage import Map\n\n\n"
        "class Short(Map):\n    def process(self, batch):\n        return {'text': pa.array(['only one'])}\n"
    )
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n", stages='stages: ["my_stage:Short"]')
    done = run_process(["run", str(mixture)], cwd=tmp_path)
    assert done.returncode == 1
    assert "stage my_stage:Short breaks its contract: column 'text': expected 20 entries" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in (tmp_path / "out/work/failure.txt").read_text()


def test_cli_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    done = datapipe(["--version"])
    assert (done.returncode, done.stdout) == (0, f"datapipe {project['version']}\n")


@pytest.mark.medium
def test_cli_run_whose_reader_ends_says_how_to_go_on_and_the_same_command_does(tmp_path):
    """As `datapipe run … | true`."""
    corpora.write_jsonl(tmp_path / "web/a.jsonl", corpora.documents(1, 30, exact=0, near=0, short=0))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", tail="tokenizer: none\n")
    arguments = ["run", str(mixture), "--workers", "1"]
    process = start(arguments)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait() == 1
    process.stderr.close()
    assert errors.startswith(
        "datapipe: stopped: the program that read what it prints has ended, as in `datapipe run … | head`."
    )
    assert len(errors.splitlines()) == 1
    assert run_process(arguments).returncode == 0

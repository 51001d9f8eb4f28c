"""Commands whose hub or store does not answer end in plain words, and blame nobody who is not at fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cli_processes import run as run_process
from tests.support.runs import write_mixture

NOBODY = "http://127.0.0.1:1"
"""An address where nobody listens."""

_ENVIRONMENT = {
    "HF_ENDPOINT": NOBODY,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_STORE = f"?endpoint_override={NOBODY}&region=us-east-1&connect_timeout=1&max_attempts=1"


def _plain(arguments: list[str], folder: Path) -> str:
    done = run_process(arguments, cwd=folder, env={**os.environ, **_ENVIRONMENT})
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("datapipe: ")
    for blame in ("defect", "traceback", "Traceback"):
        assert blame not in done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.needs("huggingface_hub")
@pytest.mark.parametrize("command", ["plan", "run"])
def test_hub_that_does_not_answer_is_told_with_its_address(tmp_path, command):
    mixture = write_mixture(tmp_path, "  web: {path: 'hf://datasets/me/data/*.jsonl'}", "stages: [filter.length]")
    printed = _plain([command, str(mixture)], tmp_path)
    assert f"{NOBODY}/api/datasets/me/data" in printed
    assert "no answer" in printed


@pytest.mark.slow
@pytest.mark.parametrize("command", [["verify"], ["inspect"], ["report"]])
def test_store_that_does_not_answer_is_told(tmp_path, command):
    assert "no answer: OSError: When " in _plain([*command, f"s3://bucket/out{_STORE}"], tmp_path)


@pytest.mark.slow
def test_output_on_a_store_that_does_not_answer_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n')
    mixture = write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}", "stages: [filter.length]")
    printed = _plain(["run", str(mixture), "--output", f"s3://bucket/out{_STORE}"], tmp_path)
    assert f"s3://bucket/out{_STORE}: no answer" in printed
    assert "run the same command again" in printed

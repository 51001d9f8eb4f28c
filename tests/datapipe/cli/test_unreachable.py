"""Commands whose hub or store does not answer end in plain words, and blame nobody who is not at fault."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.command_line import datapipe
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


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if find_spec("huggingface_hub") is not None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", NOBODY)


def _plain(arguments: list[str], folder: Path, status: int = 1) -> str:
    done = datapipe(arguments, cwd=folder)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("datapipe: ")
    for blame in ("defect", "traceback", "Traceback"):
        assert blame not in done.stderr
    return done.stderr


@pytest.mark.medium
@pytest.mark.needs("huggingface_hub")
@pytest.mark.parametrize("command", ["plan", "run"])
def test_hub_that_does_not_answer_is_told_with_its_address(tmp_path, command):
    mixture = write_mixture(tmp_path, "  web: {path: 'hf://datasets/me/data/*.jsonl'}", "stages: [filter.length]")
    printed = _plain([command, str(mixture)], tmp_path)
    assert f"{NOBODY}/api/datasets/me/data" in printed
    assert "no answer" in printed


@pytest.mark.needs("huggingface_hub")
@pytest.mark.parametrize(
    "url", ["hf://user:SECRET@datasets/x", "hf://foo", "hf://datasets/me", "hf://", "gs://", "hf://data sets/x/*"]
)
def test_url_that_no_store_can_have_is_the_users_error_with_a_right_one(tmp_path, url):
    mixture = write_mixture(tmp_path, f"  web: {{path: '{url}'}}", "stages: [filter.length]")
    printed = _plain(["plan", str(mixture)], tmp_path, 2)
    assert f"{mixture}:5: sources.web.path: cannot open {url.partition(':')[0]}://" in printed
    assert (
        f"Expected a URL such as {'gs://bucket/' if url == 'gs://' else 'hf://datasets/OWNER/NAME/'}folder/*.parquet" in printed
    )
    assert "SECRET" not in printed


@pytest.mark.medium
def test_input_on_a_store_that_does_not_answer_is_told(tmp_path):
    mixture = write_mixture(tmp_path, f"  web: {{path: 's3://bucket/in/*.jsonl{_STORE}'}}", "stages: [filter.length]")
    printed = _plain(["plan", str(mixture)], tmp_path)
    assert "s3://bucket/in/: no answer: OSError: When " in printed


@pytest.mark.medium
@pytest.mark.parametrize("command", [["verify"], ["inspect"], ["report"]])
def test_store_that_does_not_answer_is_told(tmp_path, command):
    assert "no answer: OSError: When " in _plain([*command, f"s3://bucket/out{_STORE}"], tmp_path)


@pytest.mark.medium
def test_output_on_a_store_that_does_not_answer_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n')
    mixture = write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}", "stages: [filter.length]")
    printed = _plain(["run", str(mixture), "--output", f"s3://bucket/out{_STORE}"], tmp_path)
    assert f"s3://bucket/out{_STORE}: no answer" in printed
    assert "run the same command again" in printed

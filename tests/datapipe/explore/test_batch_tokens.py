"""`datapipe inspect OUTPUT --step N --tokens` shows the documents of a batch, their control tokens and what no loss counts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from datapipe.explore.batch_tokens import rows_of_step
from tests.support import corpora, runs
from tests.support.chat_tokenizer import chat_tokenizer, conversations
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

S = 64


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
    corpora.write_jsonl(folder / "a.jsonl", [{"text": text} for text in conversations(60)])
    sources = f"  chat:\n    path: {folder}/a.jsonl\n    stages:\n      - tests.support.chat_tokenizer:as_chat\n"
    tail = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>", bos: "<s>"}}\npack: {{sequence_length: {S}}}'
    runs.run_mixture(runs.write_mixture(folder, sources, "", tail), make_engine=runs.InProcess)
    return folder / "out"


def test_rows_have_the_tokens_of_the_batch_and_their_mask(output: Path) -> None:
    rows = rows_of_step(str(output), 1, 4)
    assert [(row.row, row.source) for row in rows] == [(number, "chat") for number in range(4)]
    seen = set[str]()
    for row in rows:
        assert sum(document.num_tokens for document in row.documents) + row.num_padding == S
        for document in row.documents:
            seen |= {run.text for run in document.runs if run.is_control}
            answers = [run.text for run in document.runs if run.is_learned and not run.is_control]
            assert not any(answer.startswith(("user\n", "assistant\n")) for answer in answers)
            headers = [run.text for run in document.runs if run.text == "assistant\n"]
            assert document.start or not headers or document.num_learned > 0
    assert seen == {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}


def test_command_marks_what_is_unlearned_and_writes_json(output: Path) -> None:
    printed = datapipe(["inspect", str(output), "--step", "0", "--tokens", "-n", "3"]).stdout
    assert "«<|im_start|>»«user\n" in printed and "learned" in printed
    listed = json.loads(datapipe(["inspect", str(output), "--step", "0", "--tokens", "-n", "3", "--json"]).stdout)
    assert listed["step"] == 0 and len(listed["rows"]) == 3
    assert listed["rows"][0]["documents"][0]["runs"][0].keys() == {"text", "is_control", "is_learned"}


def with_call(record: Mapping[str, Any]) -> dict[str, Any]:
    """A stage: a control token that the tokenizer does not mark as special, and its name as text."""
    return {"segments": [{"token": "<tool_call>", "learn": False}, {"text": record["text"]}]}


with_call.columns = {"segments": list}  # type: ignore[attr-defined]


def test_control_tokens_are_named_also_where_they_are_not_special(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("\n\n", normalized=False)])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": f"<tool_call> {number}\n\n"} for number in range(20)])
    sources = f"  chat:\n    path: {tmp_path}/a.jsonl\n    stages:\n      - {__name__}:with_call\n"
    tail = f'tokenizer: {{path: {tmp_path}/tokenizer.json, eos: "</s>"}}\npack: {{sequence_length: {S}}}'
    runs.run_mixture(runs.write_mixture(tmp_path, sources, "", tail), make_engine=runs.InProcess)
    [row] = rows_of_step(str(tmp_path / "out"), 0, 1)
    whole = [document for document in row.documents if document.start == 0]
    for document in whole[:-1]:
        begin, text, end = document.runs
        assert (begin.text, begin.is_control, begin.is_learned) == ("<tool_call>", True, False)
        assert text.text.startswith("<tool_call> ") and text.text.endswith("\n\n") and not text.is_control
        assert (end.text, end.is_control) == ("</s>", True)
    assert len(whole) > 2


@pytest.mark.parametrize("options", [["--tokens"], ["--step", "0"]])
def test_step_and_tokens_go_together(output: Path, options: list[str]) -> None:
    done = datapipe(["inspect", str(output), *options])
    assert done.returncode == 2 and "--step 0 --tokens" in done.stderr


@pytest.mark.parametrize("options", [["--source", "chat"], ["--quarantined"], ["--document", "a"]])
def test_options_that_choose_documents_do_not_go_with_tokens(output: Path, options: list[str]) -> None:
    done = datapipe(["inspect", str(output), "--step", "0", "--tokens", *options])
    assert done.returncode == 2 and f"found {options[0] if options[0] == '--source' else 'one of'}" in done.stderr

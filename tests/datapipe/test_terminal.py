"""Text for a screen: no document, name or file of another party controls a terminal."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path

import pytest
from rich.table import Table

from datapipe.report.layout import Screen
from datapipe.terminal import HarmlessStream, harmless
from tests.support.cli_processes import on_terminal
from tests.support.command_line import datapipe

CONTROLS = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\x7f\u202e\u2066\u200f\u061c\u2028"
_FORBIDDEN = {*range(9), *range(11, 32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
_FORBIDDEN |= {0x200E, 0x200F, 0x061C, *range(0xD800, 0xE000)}


def _forbidden(text: str) -> set[str]:
    return {character for character in text if ord(character) in _FORBIDDEN}


def test_text_with_every_forbidden_character_becomes_escapes_that_json_reads_back() -> None:
    text = "".join(map(chr, range(0x2100))) + "\udfff日本語 é\t\n"
    assert not _forbidden(harmless(text))
    quoted = harmless(json.dumps({"text": text}, ensure_ascii=False))
    assert not _forbidden(quoted)
    assert json.loads(quoted) == {"text": text}


def test_text_in_any_script_stays_as_it_is() -> None:
    text = "naïve\tΔ\n日本語 עברית नमस्ते 👩\u200d👧 ﷽ \u00a0 \\u001b"
    assert harmless(text) == text


def test_stream_takes_harmless_text_alone_and_passes_on_what_else_it_is_asked() -> None:
    below = io.StringIO()
    stream = HarmlessStream(below)
    print("a\x1b[2Jb", file=stream)  # type: ignore[arg-type]
    stream.writelines(["c\x07", "d"])
    assert below.getvalue() == "a\\u001b[2Jb\nc\\u0007d"
    assert not stream.isatty()


def test_screen_shows_names_with_markup_and_controls_as_text() -> None:
    stream = io.StringIO()
    screen, name = Screen(file=stream, width=100), "[red]web[/nothing] :smile: \x1b[2J\u202e"
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    screen.print(name, table)
    assert stream.getvalue().count("[red]web[/nothing] :smile: \\u001b[2J\\u202e") == 5
    assert not _forbidden(stream.getvalue())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a mixture and its output, of which every name and text holds control characters and markup."""
    folder, rng = tmp_path_factory.mktemp("hostile"), random.Random(2)
    words = ["the", "be", "to", "of", "and", "that", "have", "with", "people", "world", "house", "river"]
    documents = [
        {
            "id": f"id{CONTROLS}[bold]{number}",
            "text": f"{CONTROLS}[/red] {number} " + " ".join(rng.choice(words) for _ in range(60 if number % 3 else 5)),
            "url": f"https://example.org/{CONTROLS}",
        }
        for number in range(60)
    ]
    documents += [{"id": f"twin{CONTROLS}{number}", "text": "the of and that with have be " * 10} for number in range(2)]
    lines = [json.dumps(document) for document in documents] + [f'{{"text": "bad {CONTROLS}"', json.dumps(documents[0])]
    (folder / "data").mkdir()
    (folder / "data" / f"\x1b]0;name\x07\u202e[red]{chr(13)}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "mixture.yaml").write_text(
        'name: "n\\e]0;owned\\a\\u202e[/x]"\noutput: out\nmax_quarantined: 50%\n'
        "sources:\n  docs: {path: data/*.jsonl, keep: [url]}\n"
        "stages: [filter.gopher_quality: {min_words: 20}, dedup.exact, dedup.minhash]\n"
        "tokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n",
        encoding="utf-8",
    )
    ran = datapipe(["run", "mixture.yaml", "--workers", "1"], folder)
    assert ran.returncode == 0, ran.stderr
    assert not _forbidden(ran.stdout + ran.stderr)
    return folder


_INSPECT = ["--kept -n 3", "--kept -n 3 --json", "--dropped all -n 3 --full", "--quarantined", "--clusters all"]
_TRACE = ["--step 0 --global-batch-size 4 --text", "--step 0 --global-batch-size 4 --json", "--document nothing\u202e"]
_REPORT = ["out", "out --full", "out --json", "out out"]
_OTHERS = (
    "inspect out --document nothing\x1b[2J",
    "snapshots out",
    "status out",
    "status out --json",
    "plan mixture.yaml",
    "plan mixture.yaml --json",
    "plan \x1b[2Jnothing.yaml",
    "verify out",
    "export out --format jsonl --to export",
    "takedown out --document nothing\x07",
    "clean out --dry-run",
    "stages nothing\x1b[2J",
    "nothing\x1b[2J",
)
_COMMANDS = [f"inspect out {options}" for options in _INSPECT] + [f"trace out {options}" for options in _TRACE]
_COMMANDS += [f"report {options}" for options in _REPORT] + [*_OTHERS]


@pytest.mark.medium
@pytest.mark.parametrize("command", _COMMANDS)
def test_command_over_hostile_documents_and_names_prints_no_control_character(hostile: Path, command: str) -> None:
    ended = datapipe(command.split(" "), hostile)
    printed = ended.stdout + ended.stderr
    assert not _forbidden(printed), printed
    assert "Traceback" not in printed
    assert "defect of datapipe" not in printed
    assert printed
    if "--json" in command:
        json.loads(ended.stdout)


@pytest.mark.medium
@pytest.mark.parametrize("command", ["inspect out --dropped all -n 2", "report out --full"])
def test_terminal_gets_escape_sequences_of_styles_alone(hostile: Path, command: str) -> None:
    status, printed = on_terminal(command.split(" "), 100, hostile)
    assert status == 0
    assert "\x1b[" in printed
    assert not _forbidden(re.sub(r"\x1b\[[\d;]*m", "", printed))
    assert "\\u001b" in printed

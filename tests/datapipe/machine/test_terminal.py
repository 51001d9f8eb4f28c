"""What a screen shows: nothing of another party controls a terminal, and no URL shows its credentials."""

import io
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from datapipe.credentials import is_masked, masked, masked_urls, remember, restored
from datapipe.errors import CorruptionError, DatapipeError, UserError
from datapipe.machine.terminal import HarmlessStream, harmless
from datapipe.report.layout import Screen
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
    documents = [{"id": f"twin{CONTROLS}{number}", "text": "the of and that with have be " * 10} for number in range(2)]
    for number in range(60):
        text = f"{CONTROLS}[/red] {number} " + " ".join(rng.choice(words) for _ in range(60 if number % 3 else 5))
        documents.append({"id": f"id{CONTROLS}[bold]{number}", "text": text, "url": f"https://example.org/{CONTROLS}"})
    lines = [json.dumps(document) for document in documents] + [f'{{"text": "bad {CONTROLS}"', json.dumps(documents[-1])]
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


_COMMANDS = [
    *(f"inspect out {which}" for which in ("--kept -n 3", "--kept -n 3 --json", "--dropped all -n 3 --full", "--quarantined")),
    *("sql out from/**/documents", "sql out from/**/documents --json", "sql out \x1b[2J"),
    *("inspect out --clusters all", "inspect out --document nothing\x1b[2J"),
    *(f"trace out --step 0 --global-batch-size 4 {form}" for form in ("--text", "--json")),
    *("trace out --document nothing\u202e", "report out", "report out --full", "report out --json", "report out out"),
    *("snapshots out", "status out", "status out --json", "plan mixture.yaml", "plan mixture.yaml --json"),
    *("plan \x1b[2Jnothing.yaml", "verify out", "export out --format jsonl --to export", "clean out --dry-run"),
    *("takedown out --document nothing\x07", "stages nothing\x1b[2J", "nothing\x1b[2J"),
]


@pytest.mark.medium
@pytest.mark.parametrize("command", _COMMANDS)
def test_command_over_hostile_documents_and_names_prints_no_control_character(hostile: Path, command: str) -> None:
    ended = datapipe(command.split(" "), hostile)
    printed = ended.stdout + ended.stderr
    assert printed and not _forbidden(printed), printed
    assert "Traceback" not in printed and "defect of datapipe" not in printed
    if "--json" in command:
        for document in ended.stdout.splitlines() if command.startswith("sql") else [ended.stdout]:
            json.loads(document)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["inspect out --dropped all -n 2", pytest.param("report out --full", marks=pytest.mark.slow)]
)
def test_terminal_gets_escape_sequences_of_styles_alone(hostile: Path, command: str) -> None:
    status, printed = on_terminal(command.split(" "), 100, hostile)
    assert status == 0
    assert "\x1b[" in printed
    assert not _forbidden(re.sub(r"\x1b\[[\d;]*m", "", printed))
    assert "\\u001b" in printed


SECRET = "zq81Secret"
ENDPOINT = "endpoint_override=http://127.0.0.1:5000&region=us-east-1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"s3://KEY:{SECRET}@bucket/a?{ENDPOINT}", f"s3://***@bucket/a?{ENDPOINT}"),
        (f"s3://KEY:{SECRET}/x+y@bucket/a", "s3://***@bucket/a"),  # not encoded as it should be
        (f"s3://KEY:{SECRET}/bucket", "s3://***@"),
        (f"s3://bucket/a?session_token={SECRET}&region=x", "s3://bucket/a?***"),
        (f"s3://bucket/a?endpoint_override=http://u:{SECRET}@host&region=x", None),
        (f"s3://bucket/a?endpoint_override=http%3A%2F%2Fu%3A{SECRET}%40host", "s3://bucket/a?***"),
        (f"s3://${{KEY}}:{SECRET}@bucket/a", "s3://***@bucket/a"),
        (f"https://user:p@{SECRET}@host/a", "https://***@host/a"),
        (f"https://host/a?X-Amz-Credential=k&X-Amz-Signature={SECRET}", "https://host/a?***"),
        (f"https://host:{SECRET},b:8815/a", None),
        (f"grpc://a:8815,b:{SECRET}/runs", None),
        (f"grpc://a:8815,{SECRET}@b:8815/runs", None),
        (f"abfs://files:{SECRET}@account.dfs.core.windows.net/a", "abfs://***@account.dfs.core.windows.net/a"),
        (f"cannot open 's3://K:{SECRET}@b/a': gone; see (https://h/x?sig={SECRET}).", None),
        (f"--output=s3://K:{SECRET}@b", "--output=s3://***@b"),
    ],
)
def test_masked_text_holds_no_credentials(text, expected):
    assert SECRET not in masked_urls(text)
    assert masked_urls(masked_urls(text)) == masked_urls(text)
    assert expected in (None, masked_urls(text))


@pytest.mark.parametrize(
    "text",
    [
        f"s3://bucket/a/*.jsonl?{ENDPOINT}&max_attempts=2",
        "s3://bucket: no such bucket",
        "gs://anonymous@public/data/part-?.jsonl",
        "http://127.0.0.1:5000/a@b: refused",
        "hf://datasets/me/data@main/x.parquet",
        "s3://${KEY}:${SECRET}@bucket/a?session_token=${TOKEN}",
        "Expected grpc://HOST:PORT,HOST:PORT/NAME, or grpc+tls:// with ?ca=FILE",
        "grpc+tls://a:8815,b:8815/runs/web",
        "/data/user:name@host/a?token=b",
        "file:///data/a:b@c",
    ],
)
def test_masked_text_without_credentials_is_unchanged(text):
    assert masked_urls(text) == text
    assert not is_masked(text)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"<>@/?#"), min_size=1))
def test_masked_url_keeps_nothing_of_any_password(password):
    assert masked_urls(f"s3://KEY:{password}@bucket/a") == "s3://***@bucket/a"
    assert masked_urls(f"https://user:{password}@host/a") == "https://***@host/a"


def test_masked_url_is_restored_from_the_pattern_of_its_host():
    patterns = ["s3://A:B@other/x", f"s3://KEY:{SECRET}@bucket/a/*.jsonl?{ENDPOINT}", "s3://C:D@bucket/b"]
    file = f"s3://KEY:{SECRET}@bucket/a/1.jsonl?{ENDPOINT}"
    stored = masked_urls(file)
    assert is_masked(stored)
    assert restored(stored, patterns) == file
    assert restored(stored, patterns[:1]) == stored
    assert restored("s3://bucket/a/1.jsonl", patterns) == "s3://bucket/a/1.jsonl"


def test_variable_is_masked_wherever_it_appears_where_its_name_or_its_url_reports_that_it_is_secret():
    remember("by-its-name-92", "${STORE_TOKEN}", "${STORE_TOKEN}")
    remember("by-its-url-92", "${LOGIN}", "s3://user:${LOGIN}@bucket/a")
    remember("corpora-of-92", "${CORPUS}", "${CORPUS}/*.jsonl")
    text = "by-its-name-92, by-its-url-92 and corpora-of-92"
    assert masked(text) == "${STORE_TOKEN}, ${LOGIN} and corpora-of-92"


@pytest.mark.parametrize("kind", [DatapipeError, UserError, CorruptionError])
def test_error_holds_no_credentials(kind):
    error = kind(f"cannot open s3://KEY:{SECRET}@bucket/a")
    assert str(error) == "cannot open s3://***@bucket/a"
    assert SECRET not in repr(error.args)


def test_credentials_of_a_url_are_masked_where_they_stand_alone_too():
    text = "Invalid URI 'hf://user:SECRET@datasets/x'. Expected namespace/name, got 'user:SECRET'"
    assert masked(text) == "Invalid URI 'hf://***@datasets/x'. Expected namespace/name, got '***'"

"""Sources of conversations, from their files to batches with labels."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.config.sources.chat import ChatTemplateSpec
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.explore.document.parts import Part
from datapipe.explore.document.replay import Replayer
from datapipe.explore.documents import Inspector
from datapipe.explore.redaction import Redactor
from datapipe.loader.loader import Loader
from datapipe.shards.loss_mask import learned_of
from datapipe.shards.manifest import read_snapshot, read_tokens
from datapipe.snapshots.export.export import ExportRequest, export_snapshot, shard_batches
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.chat_tokenizer import chat_tokenizer

pytestmark = pytest.mark.medium

S = 64
IGNORED = -100
TEMPLATE = (
    "{% for m in messages %}{{ bos_token if loop.first }}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)
"""A template of a tokenizer: ChatML behind the token that begins documents."""


def conversations(count: int) -> list[list[dict[str, str]]]:
    return [
        [
            {"role": ("user", "assistant")[turn % 2], "content": f"turn {turn} of {number} <|im_end|>"}
            for turn in range(2 + 2 * (number % 3))
        ]
        for number in range(count)
    ]


BROKEN = [[{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}], "Hi"]
REASONS = {f"extract.chat: {reason}": 1 for reason in ("no answer of an assistant", "an empty answer", "no list of messages")}


def tokenizer_folder(folder: Path, *, template: str | None = TEMPLATE, in_config: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    if template is not None and in_config:
        config["chat_template"] = [{"name": "other", "template": "{{ 1 }}"}, {"name": "default", "template": template}]
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def mixture(
    folder: Path, options: str = "template: chatml", *, name: str = "a.jsonl", tokenizer: str = "", rows: Any = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"id": f"{number}", "turns": turns} for number, turns in enumerate(conversations(40) if rows is None else rows)]
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(listed), folder / name)
    else:
        corpora.write_jsonl(folder / name, listed)
    used = tokenizer or f"{{path: {tokenizer_folder(folder / 'tokenizer', template=None)}, eos: </s>}}"
    sources = f"  chat: {{path: {folder}/{name}, messages: turns, stages: [], {options}}}"
    tail = f"tokenizer: {used}\npack: {{sequence_length: {S}}}\nmax_quarantined: 50%\n"
    return runs.write_mixture(folder, sources, "", tail)


def run(path: Path, **options: Any) -> tuple[runs.Finished, Root]:
    done = runs.run_mixture(path, **{"make_engine": runs.InProcess, **options})
    return done, Root(str(done.mixture.output))


Tokens = tuple[tuple[int, ...], tuple[bool, ...]]


def expected_of(turns: list[dict[str, str]], *, bos: bool = False) -> Tokens:
    """A conversation by `tokenizers`, turn by turn, and what the assistant writes."""
    tokenizer = chat_tokenizer()
    tokenizer.encode_special_tokens = True
    start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    ids, learned = ([tokenizer.token_to_id("<s>")], [False]) if bos else ([], [])
    before = ""
    for turn in turns:
        is_own = turn["role"] == "assistant"
        head = tokenizer.encode(before, add_special_tokens=False).ids
        encoding = tokenizer.encode(f"{turn['role']}\n{turn['content']}", add_special_tokens=False)
        header = len(turn["role"]) + 1
        ids += [*head, start, *encoding.ids, end]
        learned += [*[False] * (len(head) + 1), *(is_own and stop > header for _, stop in encoding.offsets), is_own]
        before = "\n"
    tail = tokenizer.encode("\n", add_special_tokens=False).ids
    return (*ids, *tail, tokenizer.token_to_id("</s>")), (*learned, *[False] * len(tail), False)


def documents(root: Root) -> set[Tokens]:
    """The documents of an output: by key, their pieces in order."""
    snapshot = read_tokens(root)
    pieces: dict[bytes, list[tuple[int, list[int], list[bool]]]] = {}
    for rows in shard_batches(root, snapshot, snapshot.shards):
        learned = learned_of(rows).reshape(-1, S)
        for row, record in enumerate(rows.to_pylist()):
            at = 0
            for key, start, length in zip(record["keys"], record["starts"], record["lengths"]):
                part = (start, record["tokens"][at : at + length], learned[row, at : at + length].tolist())
                pieces.setdefault(key, []).append(part)
                at += length
    whole = (sorted(parts) for parts in pieces.values())
    return {(tuple(n for part in parts for n in part[1]), tuple(flag for part in parts for flag in part[2])) for parts in whole}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_conversations_of_any_format_have_the_ids_and_the_mask_of_their_template(tmp_path: Path, name: str) -> None:
    done, root = run(mixture(tmp_path, name=name))
    assert documents(root) == {expected_of(turns) for turns in conversations(40)}
    assert not verify_snapshot(root, done.snapshot)


def test_labels_are_ignored_where_no_assistant_writes(tmp_path: Path) -> None:
    _, root = run(mixture(tmp_path))
    batch = Loader(root.url, global_batch_size=4, labels="unshifted", fields=("input_ids", "labels")).batch(0)
    ids, labels = batch["input_ids"].ravel().tolist(), batch["labels"].ravel().tolist()
    assert {label for number, label in zip(ids, labels) if label != number} == {IGNORED}
    start = chat_tokenizer().token_to_id("<|im_start|>")
    assert all(label == IGNORED for number, label in zip(ids, labels) if number == start)
    assert 0 < sum(label != IGNORED for label in labels) < len(labels)


@pytest.mark.parametrize("in_config", [False, True])
def test_the_template_of_the_tokenizer_is_the_default_and_goes_with_the_snapshot(tmp_path: Path, in_config: bool) -> None:
    folder = tokenizer_folder(tmp_path / "own", in_config=in_config)
    done, root = run(mixture(tmp_path, "learn: assistant", tokenizer=f"{{path: {folder}, eos: </s>, bos: <s>}}"))
    assert documents(root) == {expected_of(turns, bos=True) for turns in conversations(40)}
    folders = (tmp_path / "out", tmp_path / "out" / "snapshots" / done.snapshot.fingerprint)
    assert [(each / "chat_template.jinja").read_text() for each in folders] == [TEMPLATE] * 2
    for form in ("parquet", "megatron"):
        export_snapshot(root, done.snapshot, Root(str(tmp_path / form)), ExportRequest(format=form))
        assert (tmp_path / form / "chat_template.jinja").read_text() == TEMPLATE
    assert not verify_snapshot(Root(str(tmp_path / "parquet")), read_snapshot(Root(str(tmp_path / "parquet"))))
    (folders[1] / "chat_template.jinja").write_text("other")
    assert any("chat_template.jinja" in problem for problem in verify_snapshot(root, done.snapshot))


def test_a_run_without_conversations_leaves_no_template_in_the_output(tmp_path: Path) -> None:
    _, root = run(mixture(tmp_path))
    assert root.exists("chat_template.jinja")
    path = mixture(tmp_path)
    path.write_text(path.read_text().replace("messages: turns, stages: [], template: chatml", "text: id, stages: []"))
    run(path)
    assert not root.exists("chat_template.jinja")


def test_malformed_conversations_are_quarantined_and_counted_by_reason(tmp_path: Path) -> None:
    done, root = run(mixture(tmp_path, rows=[*conversations(5), *BROKEN]))
    counts = done.summary.total.documents
    assert (counts.read, counts.kept, counts.quarantined) == (8, 5, 3)
    assert counts.quarantine_reasons == REASONS
    output = Inspector.open(root.url)
    found = output.find("quarantined", count=9)
    assert {each["error"].rpartition("\n")[2] for each in found} == {reason.partition(": ")[2] for reason in REASONS}
    assert '{"turns":"Hi"}' in {each["text"] for each in found}
    original = output.locator.read(bytes.fromhex(output.find("kept")[0]["key"])).batch
    assert original is not None
    replayed = Replayer(output, Redactor(output)).run({"source": "chat", "fate": "kept"}, original)
    assert replayed.parts == [Part(text=output.find("kept")[0]["text"])] and not replayed.notes


@pytest.mark.parametrize("longer", ["cut", "drop"])
@pytest.mark.parametrize("bos", [False, True])
def test_long_conversations_are_cut_behind_an_answer_or_dropped(tmp_path: Path, longer: str, bos: bool) -> None:
    most, end = 70, chat_tokenizer().token_to_id("</s>")
    own = f"bos: <s>, path: {tokenizer_folder(tmp_path / 'own')}, eos: </s>" if bos else ""
    options = f"{'' if bos else 'template: chatml, '}max_document_tokens: {most}, longer: {longer}"
    done, root = run(mixture(tmp_path, options, tokenizer=own and f"{{{own}}}"))
    expected, counts = set[Tokens](), Counter[str]()
    for turns in conversations(40):
        ids, learned = expected_of(turns, bos=bos)
        ends = (
            [stop for stop in range(1, min(most, len(ids))) if learned[stop - 1] and not learned[stop]]
            if longer == "cut"
            else []
        )
        fate = "whole" if len(ids) <= most else "cut" if ends else "dropped"
        counts[fate] += 1
        if fate != "dropped":
            stop = len(ids) if fate == "whole" else ends[-1]
            expected.add((ids, learned) if fate == "whole" else ((*ids[:stop], end), (*learned[:stop], True)))
    assert documents(root) == expected and not verify_snapshot(root, done.snapshot)
    found = done.summary.total.documents
    assert (found.dropped.get("tokenize:too_many_tokens", 0), found.kept) == (
        counts["dropped"],
        counts["whole"] + counts["cut"],
    )
    assert (
        done.summary.total.counts.get("tokenize:cut_at_an_answer", 0) == counts["cut"] and counts["dropped"] + counts["cut"] > 9
    )
    output = Inspector.open(root.url)
    [fates] = output.database.rows("select count(*) as all_rows, count(distinct key) as keys from facts")
    assert fates == {"all_rows": 40, "keys": 40} and len(output.find("kept", count=99)) == found.kept
    dropped = output.find("dropped", count=99)
    assert len(dropped) == counts["dropped"] and all(each["value"] > most == each["threshold"] for each in dropped)


def test_bytes_do_not_depend_on_how_conversations_are_cut_into_tasks(tmp_path: Path) -> None:
    rows = [*conversations(60), *BROKEN]
    whole, _ = run(mixture(tmp_path / "one", rows=rows))
    text = mixture(tmp_path / "two", rows=rows)
    text.write_text(text.read_text() + "execution: {split_bytes: 1KiB, bucket_bytes: 4KiB}\n")
    cut, _ = run(text, make_engine=runs.LastFirst)
    assert cut.checksums == whole.checksums
    assert cut.summary.total.documents.quarantine_reasons == whole.summary.total.documents.quarantine_reasons


def test_a_trained_tokenizer_has_the_control_tokens_that_the_mixture_names(tmp_path: Path) -> None:
    tokens = "control_tokens: [<|im_start|>, <|im_end|>]"
    _, root = run(mixture(tmp_path, tokenizer=f"{{train: {{vocab_size: 300, {tokens}}}}}"))
    tokenizer = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert [each["content"] for each in tokenizer["added_tokens"]] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    [(ids, learned), *_] = documents(root)
    assert tokenizer["added_tokens"][1]["id"] in ids and any(learned)
    assert max(ids) < 300


def test_documents_of_a_run_without_a_tokenizer_have_their_segments(tmp_path: Path) -> None:
    run(mixture(tmp_path, tokenizer="none"))
    (path,) = (tmp_path / "out").glob("documents/chat/*")
    [row, *_] = pq.read_table(path).to_pylist()
    assert [each["token"] for each in row["segments"] if each["token"]][:2] == ["<|im_start|>", "<|im_end|>"]
    assert row["text"].startswith("user\nturn 0 of ")


def test_two_fields_make_a_conversation_and_a_field_of_tools_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{# ${OWN} #}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    (tmp_path / "own.jinja").write_text(template)
    rows = [
        {"asked": {"prompt": "Hi", "completion": "Hello!"}, "functions": [{"name": "add"}]},
        {"asked": {"prompt": "A", "completion": "B"}},
    ]
    corpora.write_jsonl(tmp_path / "a.jsonl", rows)
    monkeypatch.setenv("OWN", str(tmp_path))
    options = "messages: [asked.prompt, asked.completion], tools: functions, template: '${OWN}/own.jinja', learn: all"
    path = runs.write_mixture(tmp_path, f"  chat: {{path: {tmp_path}/a.jsonl, {options}}}", "", "tokenizer: none")
    run(path)
    assert load_mixture(tmp_path / "out" / "mixture.yaml").sources["chat"].template == ChatTemplateSpec(text=template)
    (written,) = (tmp_path / "out").glob("documents/chat/*")
    assert sorted(pq.read_table(written).column("text").to_pylist()) == [
        "add user: Hi\nassistant: Hello!\n",
        "user: A\nassistant: B\n",
    ]


def _refused(folder: Path, options: str, tokenizer: str, *, before: str = "") -> Iterator[str]:
    path = mixture(folder, options, tokenizer=tokenizer)
    path.write_text(path.read_text().replace("stages: []", f"stages: [{before}]"))
    with pytest.raises(UserError) as caught:
        prepare(load_mixture(path))
    yield str(caught.value)


@pytest.mark.parametrize(
    ("options", "tokenizer", "stages", "message"),
    [
        ("learn: last", "", "", "template: missing, and the tokenizer has no chat template"),
        (
            "template: chatml",
            "{train: {vocab_size: 300}}",
            "",
            'control_tokens: ["<|im_end|>", "<|im_start|>"]` under tokenizer.train',
        ),
        *(
            ("template: chatml", f"{{train: {{vocab_size: 300, control_tokens: [{token}]}}}}", "", "at least 2 characters")
            for token in ("a", '"\\n\\n"')
        ),
        ("template: llama3", "", "", 'it writes "<|begin_of_text|>"'),
        ("template: llama3", "", "", "tokenizer.add_special_tokens"),
        ("template: nowhere.jinja", "", "", f"cannot read the template nowhere.jinja ({os.getcwd()}/nowhere.jinja)"),
        ("template: chatml, longer: drop", "", "", "sources.chat.longer: needs max_document_tokens"),
        (
            "template: chatml, learn: all, max_document_tokens: 9",
            "",
            "",
            "sources.chat.max_document_tokens: cuts longer conversations",
        ),
        (
            "template: chatml, learn: all, max_document_tokens: 9, longer: cut",
            "",
            "",
            "sources.chat.longer: cut needs learn: assistant",
        ),
        (
            "template: chat.txt",
            "",
            "",
            "found 'chat.txt', expected tokenizer, chatml, llama3, harmony, or the path of a .jinja",
        ),
        ("template: chatlm", "", "", "Did you mean 'chatml'"),
        ("template: chatml, text: id", "", "", "sources.chat.text: found beside messages"),
        ("template: chatml, fim: {rate: 1}", "", "", "sources.chat.fim: cannot be combined with messages"),
        ("template: chatml", "", "filter.length, extract.chat", "filter.length reads the text"),
        ("template: chatml", "", "extract.html", "extract.html makes texts of pages"),
        ("", "", "extract.chat: {tools: a}", "extract.chat: tools: found in the list of stages"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, options: str, tokenizer: str, stages: str, message: str
) -> None:
    [error] = _refused(tmp_path, options, tokenizer, before=stages)
    assert message in error


def test_a_field_that_no_record_has_is_an_error_with_the_others(tmp_path: Path) -> None:
    path = mixture(tmp_path)
    path.write_text(path.read_text().replace("messages: turns", "messages: turn"))
    with pytest.raises(UserError, match=r"sources.chat.messages: none of .* has the field 'turn' .* Did you mean 'turns'"):
        prepare(load_mixture(path))


def test_a_source_with_stages_that_remove_lines_is_warned_of(tmp_path: Path) -> None:
    path = mixture(tmp_path)
    path.write_text(path.read_text().replace("stages: []", "stages: [filter.c4_quality]"))
    [warning] = [each for each in prepare(load_mixture(path)).warnings if each.kind == "cut_conversations"]
    assert "source 'chat': filter.c4_quality removes lines" in warning.text


def test_a_field_of_tools_that_the_source_names_and_no_record_has_is_an_error(tmp_path: Path) -> None:
    path = mixture(tmp_path, "template: chatml, tools: tolls", rows=[])
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"turns": conversations(1)[0], "tools": []}])
    with pytest.raises(UserError, match=r"sources.chat.tools: none of .* has the field 'tolls' .* Did you mean 'tools'"):
        prepare(load_mixture(path))
    path.write_text(path.read_text().replace("tools: tolls", "check_fields: false, tools: tolls"))
    assert [each.kind for each in prepare(load_mixture(path)).warnings] == ["missing_field"]
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"turns": conversations(1)[0], "tolls": None}])
    assert not prepare(load_mixture(path)).warnings


def test_conversations_in_a_source_of_text_are_named_in_the_error(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"messages": conversations(1)[0]}])
    path = runs.write_mixture(tmp_path, f"  chat: {{path: {tmp_path}/a.jsonl}}", "", "tokenizer: none")
    with pytest.raises(UserError, match="For conversations write `messages: messages` in place of `text`"):
        prepare(load_mixture(path))


def test_tokens_that_the_tokenizer_lacks_for_its_own_template_are_warned_of(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "own", template=TEMPLATE.replace("im_end", "no_end"))
    path = mixture(tmp_path, "learn: assistant", tokenizer=f"{{path: {folder}, eos: </s>, bos: <s>}}")
    [warning] = prepare(load_mixture(path)).warnings
    assert (warning.kind, warning.source, warning.details) == ("missing_tokens", "chat", {"tokens": ["<|no_end|>"]})
    assert "writes <|no_end|>, and the tokenizer has no such control tokens. They become text" in warning.text


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ("learn: assistant", "which cuts longer ones behind an answer; `longer: drop`"),
        ("learn: all", "`max_document_tokens: 64` in the source and `longer: drop`"),
        ("max_document_tokens: 64", ""),
    ],
)
def test_conversations_that_no_row_holds_are_warned_of(tmp_path: Path, options: str, advice: str) -> None:
    done, _ = run(mixture(tmp_path, f"template: chatml, {options}"))
    found = [each for each in done.report["warnings"] if each["kind"] == "long_conversations"]
    assert len(found) == bool(advice)
    for warning in found:
        num_long = sum(len(expected_of(turns)[0]) > S for turns in conversations(40))
        assert (warning["longer"], warning["documents"], warning["sequence_length"]) == (num_long, 40, S)
        assert advice in warning["text"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_conversation_that_is_null_is_quarantined(tmp_path: Path, name: str) -> None:
    done, root = run(mixture(tmp_path, name=name, rows=[*conversations(5), None]))
    counts = done.summary.total.documents
    assert (counts.read, counts.kept, counts.quarantined) == (6, 5, 1)
    [found] = Inspector.open(root.url).find("quarantined")
    assert found["error"] == "field 'turns' is missing or null; expected the content of the document"

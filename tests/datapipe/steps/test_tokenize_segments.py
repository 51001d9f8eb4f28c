"""Whole runs of documents with segments: ids and mask in shards and exports are those of each document by itself."""

import json
from collections.abc import Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.shards.loss_mask import learned_of
from datapipe.shards.manifest import read_tokens
from datapipe.snapshots.export.export import ExportRequest, export_snapshot, shard_batches
from datapipe.snapshots.takedown import take_down
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.chat_tokenizer import CONTROL, as_chat, chat_tokenizer, conversations
from tests.support.megatron_reader import read_pair

pytestmark = pytest.mark.medium

S = 32
STAGE = "tests.support.chat_tokenizer:as_chat"


def mixture(folder: Path, *, stages: str = "", eos_within: bool = False, source: str = "", execution: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    texts = conversations(120)
    (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
    corpora.write_jsonl(folder / "a.jsonl", [{"id": f"{number}", "text": text} for number, text in enumerate(texts)])
    own = f"      - {STAGE}: {{eos_within: {json.dumps(eos_within)}}}\n{stages}"
    sources = f"  chat:\n    path: {folder}/a.jsonl\n    stages:\n{own}{source}"
    tail = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>", bos: "<s>"}}\npack: {{sequence_length: {S}}}\n{execution}'
    return runs.write_mixture(folder, sources, "", tail)


def run(path: Path, *overrides: str) -> tuple[runs.Finished, Root]:
    done = runs.run_mixture(path, overrides=overrides, make_engine=runs.InProcess)
    return done, Root(str(done.mixture.output))


Tokens = tuple[tuple[int, ...], tuple[bool, ...]]
"""The ids of a document, and which of them a loss counts."""


def documents(*, eos_within: bool = False) -> set[Tokens]:
    """Each conversation by `tokenizers`: text between control tokens is encoded as a whole."""
    tokenizer = chat_tokenizer()
    tokenizer.encode_special_tokens = True
    made = set()
    for text in conversations(120):
        ids, learned = [tokenizer.token_to_id("<s>")], [True]
        held = ""
        of_chars: list[bool] = []
        for segment in [
            *as_chat({"text": text.replace("bob.smith@example.com", "<EMAIL>")}, eos_within)["segments"],
            {"token": "</s>"},
        ]:
            if "text" in segment:
                held += segment["text"]
                of_chars += [segment["learn"]] * len(segment["text"])
                continue
            encoding = tokenizer.encode(held, add_special_tokens=False)
            ids += [*encoding.ids, tokenizer.token_to_id(segment["token"])]
            learned += [*(any(of_chars[start:stop]) for start, stop in encoding.offsets), segment.get("learn", True)]
            held, of_chars = "", []
        end = -1 if eos_within else None  # the last turn ends with the token that ends documents
        made.add((tuple(ids[:end]), tuple(learned[:end])))
    return made


def rows_of(root: Root) -> pa.RecordBatch:
    snapshot = read_tokens(root)
    return pa.Table.from_batches(list(shard_batches(root, snapshot, snapshot.shards))).combine_chunks().to_batches()[0]


def joined(rows: pa.RecordBatch) -> set[Tokens]:
    return {*by_key(rows).values()}


def by_key(rows: pa.RecordBatch) -> dict[bytes, Tokens]:
    """The documents in rows, by key and start."""
    pieces: dict[bytes, list[tuple[int, list[int], list[bool]]]] = {}
    learned = learned_of(rows).reshape(-1, S)
    for row, record in enumerate(rows.to_pylist()):
        at = 0
        for key, start, length in zip(record["keys"], record["starts"], record["lengths"]):
            part = (start, record["tokens"][at : at + length], learned[row, at : at + length].tolist())
            pieces.setdefault(key, []).append(part)
            at += length
    whole = {key: sorted(parts) for key, parts in pieces.items()}
    return {
        key: tuple(tuple(chain.from_iterable(part[column] for part in parts)) for column in (1, 2))  # type: ignore[misc]
        for key, parts in whole.items()
    }


EDITS = "      - normalize.unicode\n      - redact.pii\n      - dedup.exact\n"


@pytest.mark.parametrize("eos_within", [False, True])
def test_shards_and_exports_have_the_ids_and_the_mask_of_each_conversation(tmp_path: Path, eos_within: bool) -> None:
    done, root = run(mixture(tmp_path / "run", stages=EDITS, eos_within=eos_within))
    rows, expected = rows_of(root), documents(eos_within=eos_within)
    assert joined(rows) == expected and len(expected) > 100
    assert any(start > 0 for starts in rows.column("starts").to_pylist() for start in starts)
    assert not verify_snapshot(root, done.snapshot)
    target = tmp_path / "megatron"
    export_snapshot(root, done.snapshot, Root(str(target)), ExportRequest(format="megatron"))
    ids, masks = (read_pair(target / "chat" / f"train{name}")[0] for name in ("", "-loss-mask"))
    assert {(tuple(one.tolist()), tuple(map(bool, other))) for one, other in zip(ids, masks, strict=True)} == expected


def test_rows_that_begin_with_bos_hold_beginnings_of_documents_with_their_mask(tmp_path: Path) -> None:
    path = mixture(tmp_path / "run", stages=EDITS)
    first, root = run(path)
    whole = by_key(rows_of(root))
    assert any(
        "starts at token" in line for line in verify_snapshot(root, first.snapshot.model_copy(update={"bos_aligned": True}))
    )
    done, _ = run(path, "pack.bos_aligned=true")
    rows, begin = rows_of(root), chat_tokenizer().token_to_id("<s>")
    left = by_key(rows)
    assert {ids[0] for ids in rows.column("tokens").to_pylist()} == {begin}
    assert left.keys() == whole.keys()
    for key, (ids, learned) in left.items():
        assert (ids, learned) == (whole[key][0][: len(ids)], whole[key][1][: len(ids)])
    packing = done.report["sources"]["chat"]["packing"][str(S)]
    num_tokens = sum(len(ids) for ids, _ in whole.values())
    assert packing["dropped_tokens"] == num_tokens - sum(len(ids) for ids, _ in left.values()) > 0
    [warning] = [each for each in done.report["warnings"] if each["kind"] == "dropped_tokens"]
    assert (warning["dropped_tokens"], warning["tokens"]) == (packing["dropped_tokens"], num_tokens)
    assert not verify_snapshot(root, done.snapshot)
    export_snapshot(root, done.snapshot, Root(str(tmp_path / "megatron")), ExportRequest(format="megatron"))
    pairs = (read_pair(tmp_path / "megatron/chat" / f"train{name}")[0] for name in ("", "-loss-mask"))
    exported = [(tuple(ids.tolist()), tuple(map(bool, mask))) for ids, mask in zip(*pairs, strict=True)]
    assert sorted(exported) == sorted(left.values())


def test_bytes_do_not_depend_on_how_the_input_is_cut_and_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = run(mixture(tmp_path / "whole", stages=EDITS))
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 2)
    small = "execution: {split_bytes: 4KiB, bucket_bytes: 4KiB}\n"
    cut = runs.run_mixture(mixture(tmp_path / "cut", stages=EDITS, execution=small), make_engine=runs.LastFirst)
    assert (cut.checksums, cut.snapshot.sources) == (whole.checksums, whole.snapshot.sources)
    assert any(step.tasks for step in cut.plan.of_kind("merge") if step.id.startswith("chat/pack"))


def test_cuts_of_deduplication_keep_the_mask_of_what_is_left(tmp_path: Path) -> None:
    done, root = run(mixture(tmp_path / "run", stages="      - dedup.lines: {max_removed_share: 1}\n"))
    assert not verify_snapshot(root, done.snapshot)
    tokenizer = chat_tokenizer()

    control = {tokenizer.token_to_id(token) for token in CONTROL}

    def lines(made: set[Tokens], *, of_learned: bool) -> set[str]:
        """The lines of what is learned, or of the rest."""
        found = set[str]()
        for each in made:
            for is_own, run in groupby(zip(*each), lambda token: token[0] not in control and token[1] == of_learned):
                found |= {*tokenizer.decode([number for number, _ in run]).splitlines()} if is_own else set()
        return found

    left, whole = joined(rows_of(root)), documents()
    assert sum(len(ids) for ids, _ in left) < sum(len(ids) for ids, _ in whole)
    for of_learned in (True, False):
        with_address = {line.replace("<EMAIL>", "bob.smith@example.com") for line in lines(whole, of_learned=of_learned)}
        assert lines(left, of_learned=of_learned) <= with_address


def test_documents_that_were_taken_down_leave_the_mask_of_the_others(tmp_path: Path) -> None:
    _, root = run(mixture(tmp_path / "run"))
    before = joined(rows_of(root))
    keys = sorted({key for keys in rows_of(root).column("keys").to_pylist() for key in keys})
    take_down(root, [key.hex() for key in keys[::3]])
    after = joined(rows_of(root))
    assert after < before and len(after) == len(before) - len(keys[::3])


def test_a_filling_order_or_a_prefix_beside_segments_is_refused(tmp_path: Path) -> None:
    for option in ("fim: {rate: 1}", "document_prefix: {text: '{id}'}"):
        with pytest.raises(
            UserError, match=f"sources.chat.{option[: option.index(':')]}: the stages of the source make segments"
        ):
            run(mixture(tmp_path / option[:3], source=f"    {option}\n"))


def test_text_before_documents_is_unlearned_and_only_where_the_columns_have_values(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(chat_tokenizer().to_str())
    rows = [{"text": f"hello {number}", "url": f"a.b/{number}" if number % 3 else None} for number in range(40)]
    corpora.write_jsonl(tmp_path / "a.jsonl", rows)
    options = 'keep: [url], document_prefix: {text: "see {url}\\n"}, stages: []'
    tail = f'tokenizer: {{path: {tmp_path}/tokenizer.json, eos: "</s>"}}\npack: {{sequence_length: {S}}}'
    _, root = run(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl, {options}}}", "", tail))
    tokenizer, expected = chat_tokenizer(), set[Tokens]()
    for row in rows:
        before = tokenizer.encode(f"see {row['url']}\n" if row["url"] else "").ids
        ids = [*before, *tokenizer.encode(row["text"]).ids, tokenizer.token_to_id("</s>")]
        expected.add((tuple(ids), tuple(place >= len(before) for place in range(len(ids)))))
    assert joined(rows_of(root)) == expected


def test_filling_in_the_middle_needs_no_mask_and_is_the_same_however_the_input_is_cut(tmp_path: Path) -> None:
    made = []
    for name, execution in (("whole", ""), ("cut", "execution: {split_bytes: 4KiB}")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
        corpora.write_jsonl(folder / "a.jsonl", [{"text": text} for text in conversations(80)])
        tail = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>"}}\npack: {{sequence_length: {S}}}\n{execution}'
        options = "fim: {rate: 1, spm: 50%, at: tokens}, stages: []"
        made.append(run(runs.write_mixture(folder, f"  web: {{path: {folder}/a.jsonl, {options}}}", "", tail)))
    (whole, root), (cut, _) = made
    assert whole.checksums == cut.checksums
    rows = rows_of(root)
    assert "unlearned" not in rows.schema.names
    middle = chat_tokenizer().token_to_id("<fim_middle>")
    spelled = [text for text in conversations(80) if "<|im_end|>" in text or "</s>" in text]
    assert sum(ids.count(middle) for ids in rows.column("tokens").to_pylist()) == 80 - len(spelled) > 0
    counts = [each.report["sources"]["web"]["counts"] for each in (whole, cut)]
    assert counts[0] == counts[1]
    assert counts[0]["fim:control_token"] == len(spelled)
    assert counts[0]["fim:psm"] + counts[0]["fim:spm"] == 80 - len(spelled)


def test_documents_of_a_run_without_a_tokenizer_have_their_segments(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "hi¦hello"}])
    sources = f"  chat:\n    path: {tmp_path}/a.jsonl\n    stages:\n      - {STAGE}\n"
    _, root = run(runs.write_mixture(tmp_path, sources, "", "tokenizer: none"))
    (path,) = Path(root.url).glob("documents/chat/*")
    [row] = pq.read_table(path).to_pylist()
    segments = [(each["start"], each["token"], each["learned"]) for each in row["segments"]]
    assert row["text"] == "user\nhi\nassistant\nhello\n"
    assert segments[3:6] == [(7, "<|im_end|>", False), (8, "<|im_start|>", False), (8, None, False)]


def learned_whole(record: Mapping[str, Any]) -> dict[str, Any]:
    """A stage: all is learned."""
    return {"segments": [{"token": "<|im_start|>"}, {"text": record["text"]}]}


def with_rank(record: Mapping[str, Any]) -> Any:
    """A stage behind `learned_whole`: keeps the segments of some documents, and makes plain texts of others."""
    return {"segments": []} if record["text"].startswith("plain") else True


learned_whole.columns = with_rank.columns = {"segments": list}  # type: ignore[attr-defined]


def test_documents_that_are_learned_as_a_whole_and_plain_ones_pass_a_second_stage(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(chat_tokenizer().to_str())
    texts = [f"{'plain' if number % 2 else 'chat'} {number}" for number in range(30)]
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    stages = "".join(f"      - {__name__}:{name}\n" for name in ("learned_whole", "with_rank"))
    tail = f'tokenizer: {{path: {tmp_path}/tokenizer.json, eos: "</s>"}}\npack: {{sequence_length: {S}}}'
    _, root = run(runs.write_mixture(tmp_path, f"  chat:\n    path: {tmp_path}/a.jsonl\n    stages:\n{stages}", "", tail))
    tokenizer, expected = chat_tokenizer(), set[Tokens]()
    for text in texts:
        begin = [] if text.startswith("plain") else [tokenizer.token_to_id("<|im_start|>")]
        ids = [*begin, *tokenizer.encode(text).ids, tokenizer.token_to_id("</s>")]
        expected.add((tuple(ids), (True,) * len(ids)))
    assert joined(rows_of(root)) == expected
    snapshot, target = read_tokens(root), tmp_path / "megatron"
    [exported] = export_snapshot(root, snapshot, Root(str(target)), ExportRequest(format="megatron"))
    assert exported.files == ("chat/train.bin", "chat/train.idx")  # and no mask of ones
    assert {tuple(ids.tolist()) for ids in read_pair(target / "chat/train")[0]} == {ids for ids, _ in expected}


@pytest.mark.parametrize(
    ("options", "tokenizer", "message"),
    [
        ("fim: {rate: 1}", "train: {vocab_size: 300}", "sources.web.fim: needs tokenizer.path"),
        ("fim: {tokens: [a, b, c]}", "path", "sources.web.fim: expected control tokens before .*: a, b, c"),
        ("document_prefix: {text: '{nope}'}", "path", r"sources.web.document_prefix.text: documents have no column 'nope'"),
        ("document_prefix: {text: 'no column'}", "path", "expected the name of a column in braces"),
        ("document_prefix: {text: '{url!r}'}", "path", "expected columns in braces"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_runs(
    tmp_path: Path, options: str, tokenizer: str, message: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(chat_tokenizer().to_str())
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "url": "b"}])
    used = f'path: {tmp_path}/tokenizer.json, eos: "</s>"' if tokenizer == "path" else tokenizer
    sources = f"  web: {{path: {tmp_path}/a.jsonl, keep: [url], {options}}}"
    with pytest.raises(UserError, match=message):
        run(runs.write_mixture(tmp_path, sources, "", f"tokenizer: {{{used}}}"))
    assert not (tmp_path / "out" / "work" / "attempts").exists()

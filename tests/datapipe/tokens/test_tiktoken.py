"""tiktoken's rank files: the ids of tiktoken's own procedure, and clear words for what cannot be known from the file."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from datapipe.errors import UserError
from datapipe.tokens import Encoder, tiktoken
from datapipe.tokens.patterns import splitter
from datapipe.tokens.tiktoken import Encoding, convert, is_rank_file

TOKENS = [b"th", b"he", b"the", b" t", b" the", b"in", b"ing", b"aa", b"aaaa", "é".encode(), "漢".encode(), b"abc", b"bc"]
RANKS = {bytes([byte]): 255 - byte for byte in range(256)} | {token: 256 + number for number, token in enumerate(TOKENS)}
SPECIAL = {"<|end_of_text|>": 300}


def rank_file(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def by_ranks(word: bytes) -> list[int]:
    """tiktoken's procedure, as simple as can be: join the neighbours whose union has the lowest rank, the first of equals."""
    if word in RANKS:
        return [RANKS[word]]
    parts = [word[at : at + 1] for at in range(len(word))]
    while True:
        unions = [(RANKS[left + right], at) for at, (left, right) in enumerate(zip(parts, parts[1:])) if left + right in RANKS]
        if not unions:
            return [RANKS[part] for part in parts]
        _, at = min(unions)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_converted_ranks_give_the_ids_of_tiktoken(pattern):
    encoder = Encoder(convert(rank_file(RANKS), pattern, SPECIAL))
    rng, splits = random.Random(1), splitter(pattern)
    for _ in range(300):
        text = "".join(rng.choices([*"thenigabc é漢字\n1'", "the ", "ing", "<|end_of_text|>"], k=rng.randint(0, 30)))
        words = [text[start:stop].encode() for _, (start, stop) in splits.pre_tokenize_str(text)]
        ids, _ = encoder.encode(pa.array([text], pa.large_string()))
        assert ids.tolist() == [number for word in words for number in by_ranks(word)]


def test_converted_whole_word_is_its_token_where_no_merge_leads_to_it():
    encoder = Encoder(convert(rank_file({**RANKS, b"zebra": 280}), "cl100k", SPECIAL))
    assert encoder.encode(pa.array(["zebra"], pa.large_string()))[0].tolist() == [280]


def test_converted_special_tokens_have_the_ids_given():
    content = convert(rank_file(RANKS), "cl100k", {"<|end_of_text|>": 300, "<|pad|>": 290})
    encoder = Encoder(content)
    assert (encoder.eos_token, encoder.eos_id, encoder.vocab_size) == ("<|end_of_text|>", 300, 301)
    assert Tokenizer.from_buffer(content).token_to_id("<|pad|>") == 290
    assert Tokenizer.from_buffer(content).decode([RANKS[b" the"], 300]) == " the"


def test_known_rank_file_needs_no_more(monkeypatch):
    content = rank_file(RANKS)
    known = Encoding(pattern="qwen2", special_tokens={"<|endoftext|>": 299})
    monkeypatch.setitem(tiktoken.KNOWN, hashlib.sha256(content).hexdigest(), known)
    assert convert(content) == convert(content, "qwen2", {"<|endoftext|>": 299})


GIVEN = {"pattern": "gpt2", "special_tokens": SPECIAL}


@pytest.mark.parametrize(
    ("content", "options", "fact"),
    [
        (rank_file(RANKS), {}, "`pattern` and `special_tokens`"),
        (rank_file(RANKS), {"pattern": "gpt2"}, "`special_tokens`"),
        (rank_file(RANKS), GIVEN | {"pattern": "gpt3"}, "gpt2"),
        (rank_file(RANKS), GIVEN | {"special_tokens": {"<|a|>": 256}}, "another token"),
        (rank_file(RANKS), GIVEN | {"special_tokens": {"<|a|>": 300, "<|b|>": 300}}, "another token"),
        (rank_file(RANKS), GIVEN | {"special_tokens": {"the": 300}}, "word"),
        (rank_file(RANKS), GIVEN | {"special_tokens": {"<|a|>": -3}}, "-3"),
        (rank_file(RANKS), GIVEN | {"special_tokens": {"<|a|>": 1 << 40}}, "expected 0 to"),
        (rank_file(RANKS) + b"%%% 3\n", GIVEN, "line 270"),
        (rank_file(RANKS)[:900], GIVEN, "complete"),
        (rank_file({**RANKS, b"two": 256}), GIVEN, "same rank"),
        (rank_file(RANKS) + b"YWFh -5\n", GIVEN, "line 270"),
        (rank_file(RANKS) + b"YWFh 99999999999\n", GIVEN, "line 270"),
        (rank_file(RANKS) + b"YQ== 400\n", GIVEN, "line 270: .*158"),
    ],
)
def test_convert_refuses_what_it_cannot_know(content, options, fact):
    with pytest.raises(UserError, match=fact):
        convert(content, **options)


def test_rank_files_are_told_by_their_first_line():
    assert is_rank_file(rank_file(RANKS))
    assert is_rank_file(b"IQ== 0")
    assert not is_rank_file(b'{"model": {}}')
    assert not is_rank_file(b"")


@pytest.mark.real
@pytest.mark.parametrize(("path", "field"), [("prose/novels.jsonl.zst", "text"), ("lang/udhr.jsonl.zst", "text"), ("code", "")])
def test_cl100k_ids_equal_those_of_the_tiktoken_package(real_data, tmp_path, path, field):
    package, load = pytest.importorskip("tiktoken"), pytest.importorskip("tiktoken.load")
    content = pa.CompressedInputStream(str(real_data / "tokenizers/cl100k_base.tiktoken.zst"), "zstd").read()
    (tmp_path / "ranks").write_bytes(content)
    known = tiktoken.KNOWN[hashlib.sha256(content).hexdigest()]
    reference = package.Encoding(
        "cl100k_base",
        pat_str=json.loads((real_data / "tokenizers/tiktoken_meta.json").read_bytes())["cl100k_base"]["pat_str"],
        mergeable_ranks=load.load_tiktoken_bpe(str(tmp_path / "ranks")),
        special_tokens=dict(known.special_tokens),
    )
    if path == "code":
        texts = [file.read_text(encoding="utf-8") for file in sorted(Path(tiktoken.__file__).parent.glob("*.py"))]
    else:
        lines = pa.CompressedInputStream(str(real_data / path), "zstd").read().splitlines()
        texts = [json.loads(line)[field][:100_000] for line in lines[:300]]
    ids, offsets = Encoder(convert(content)).encode(pa.array(texts, pa.large_string()))
    for number, expected in enumerate(reference.encode_ordinary_batch(texts)):
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected

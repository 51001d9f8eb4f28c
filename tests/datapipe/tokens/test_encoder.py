"""The encoder: long documents, facts about files, and files that are refused. Its ids are compared in `test_proof.py`."""

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from datapipe.errors import UserError
from datapipe.tokens import Encoder
from datapipe.tokens import encoder as encoder_module
from tests.support.tokenizer_files import train_tokenizer

WORDS = ["the", "of", "and", "to", "in", "that", "it's", "we'll", "don't", "naïve", "café", "漢字", "Don’t", "x1", "3.14"]
WORDS += ["12345", "foo_bar(a,", "b);", "I'm", "state-of-the-art", "def run(x):\n    return x + 1\n\n\tif a == b:  # x \r\n"]


def prose(num_bytes: int) -> str:
    rng, parts, size = random.Random(1), [], 0
    while size < num_bytes:
        parts.append(rng.choice(WORDS) + rng.choice([" ", " ", " ", ", ", ". ", "\n\n", "  "]))
        size += len(parts[-1].encode())
    return "".join(parts)


def column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    return train_tokenizer([column(prose(80_000))], 340, pattern="cl100k")


def changed(content: bytes, model: dict[str, Any] | None = None, **settings: Any) -> bytes:
    file = json.loads(content)
    return json.dumps({**file, "model": {**file["model"], **(model or {})}, **settings}).encode()


def with_token(content: bytes, token: str, number: int) -> bytes:
    return changed(content, {"vocab": {**json.loads(content)["model"]["vocab"], token: number}})


def ids_of(encoder: Encoder, *texts: str) -> list[list[int]]:
    ids, offsets = encoder.encode(column(*texts))
    return [ids[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:])]


def assert_as_tokenizers(content: bytes, *texts: str) -> None:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = True
    assert ids_of(Encoder(content), *texts) == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.medium
@pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
def test_encode_long_documents_equals_the_library(pattern):
    content = train_tokenizer([column(prose(20_000))], 340, pattern=pattern)
    assert_as_tokenizers(content, "a b", prose(100_000), "", "\0 \0a", "x" * 30_000)
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(["  ", "of the", "return"])
    assert_as_tokenizers(tokenizer.to_str().encode(), prose(50_000) + "e\u0301")


def test_encode_takes_the_rows_of_a_slice_and_no_nulls(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    ids, offsets = encoder.encode(column("skip", "of and", "").slice(1))
    assert ids.tolist() == ids_of(encoder, "of and")[0]
    assert offsets.tolist() == [0, len(ids), len(ids)]
    ids, offsets = encoder.encode(column())
    assert (len(ids), offsets.tolist()) == (0, [0])
    with pytest.raises(UserError):
        encoder.encode(pa.array(["a", None], pa.large_string()))


def test_encoder_truncation_padding_and_dropout_of_file_are_off(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    encoder, plain = Encoder(changed(tokenizer.to_str().encode(), {"dropout": 0.9})), Encoder(tokenizer_json)
    assert ids_of(encoder, prose(300)) == ids_of(plain, prose(300))
    assert encoder.fingerprint == plain.fingerprint


def test_encoder_fingerprint_ignores_spacing_and_order_and_nothing_else(tokenizer_json):
    settings = json.loads(tokenizer_json)
    turned = json.dumps(dict(reversed(settings.items())), indent=3).encode()
    fewer = changed(tokenizer_json, {"merges": settings["model"]["merges"][:-1]})
    assert Encoder(turned).fingerprint == Encoder(tokenizer_json).fingerprint
    assert Encoder(turned).to_json() == Encoder(tokenizer_json).to_json()
    assert Encoder(fewer).fingerprint != Encoder(tokenizer_json).fingerprint


@pytest.mark.slow
def test_encoder_facts_describe_the_vocabulary(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    assert (encoder.vocab_size, encoder.eos_id, encoder.eos_token) == (340, 0, "<|endoftext|>")
    assert encoder.id_type == pa.uint16()
    assert encoder.encode(column("a"))[0].dtype == np.uint16
    encoder = Encoder(with_token(tokenizer_json, "far", 70_000))
    assert (encoder.vocab_size, encoder.id_type) == (70_001, pa.uint32())
    assert encoder.encode(column("a"))[0].dtype == np.uint32


def test_encoder_of_a_file_a_folder_and_a_pickle_is_the_same(tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    encoder = Encoder(tokenizer_json, eos="<|endoftext|>")
    for again in (pickle.loads(pickle.dumps(encoder)), Encoder(tmp_path / "tokenizer.json"), Encoder(tmp_path)):
        assert again.fingerprint == encoder.fingerprint
        assert ids_of(again, "of the") == ids_of(encoder, "of the")


@pytest.mark.parametrize("name", ["</s>", "<eos>", "<|end_of_text|>"])
def test_encoder_well_known_end_of_text_is_found(name):
    assert Encoder(train_tokenizer([column("a b")], 257, eos=name)).eos_token == name


def test_encoder_unknown_end_of_text_asks_for_it(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(changed(tokenizer_json, added_tokens=[]))
    tokenizer.add_special_tokens([AddedToken("[END]")])
    content = tokenizer.to_str().encode()
    with pytest.raises(UserError, match=r"\[END\]"):
        Encoder(content)
    assert Encoder(content, eos="[END]").eos_id == 340


def nested(depth: int, begin: bytes, end: bytes) -> bytes:
    model = b'{"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": '
    return model + begin * depth + end * depth + b"}"


def of_model(**model: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), "model": {"type": "BPE", **model}}).encode()


def without_z(content: bytes) -> bytes:
    """A tokenizer whose unknown text becomes the end of a text."""
    vocabulary = {token: number for token, number in json.loads(content)["model"]["vocab"].items() if "z" not in token}
    return changed(content, {"unk_token": "<|endoftext|>", "vocab": vocabulary, "merges": []})


SEQUENCE = (b'{"type":"Sequence","pretokenizers":[', b"]}")
NO_REGEX = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "change",
    [
        *(lambda _, begun=begun: begun for begun in (b"", b"\xff", b"[]", b"{}", b'{"model": {"type": "NoSuch"}}')),
        *(lambda _, depth=depth: nested(depth, b"[", b"]") for depth in (60, 900, 200_000)),
        *(lambda _, depth=depth: nested(depth, *SEQUENCE) for depth in (60, 900, 200_000)),
        lambda content: changed(content, added_tokens=[{"id": 1 << 70, "content": "x"}]),
        lambda content: changed(content, added_tokens=["</s>"]),
        lambda content: changed(content, added_tokens={"a": 1}),
        lambda content: with_token(content, "far", (1 << 32) - 1),
        lambda content: changed(content, pre_tokenizer=NO_REGEX),
        lambda content: changed(content, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        of_model(vocab={"a": 1 << 40}, merges=[]),
        of_model(vocab=["a"], merges=[]),
        of_model(vocab={"a": 0}, merges=[["a", "b"]]),
        of_model(vocab={"a": 0, "": 1}, continuing_subword_prefix="##", merges=[["a", ""]]),
        of_model(type="Unigram", vocab=[["a", 0.0]], unk_id=1 << 30),
        of_model(type="Unigram", vocab=[["a", float("nan")]], unk_id=0),
        of_model(type="WordLevel", vocab={"a": 0, "<|endoftext|>": 1}, unk_token="none"),
        without_z,
    ],
)
def test_encoder_file_that_is_no_sound_tokenizer_is_a_user_error(tokenizer_json, change):
    with pytest.raises(UserError):
        Encoder(change(tokenizer_json))


def test_encoder_file_that_is_absent_or_of_absurd_size_is_a_user_error(tokenizer_json, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"none\.json"):
        Encoder(tmp_path / "none.json")
    monkeypatch.setattr(encoder_module, "LARGEST_FILE", 1000)
    with pytest.raises(UserError):
        Encoder(tokenizer_json)


@pytest.mark.parametrize("eos", ["<endoftext>", "the", "Ġthe", "a"])
def test_encoder_eos_that_is_no_token_or_that_text_spells_is_refused(tokenizer_json, eos):
    with pytest.raises(UserError, match="eos: "):
        Encoder(tokenizer_json, eos=eos)


@pytest.mark.slow
def test_encode_starts_no_thread_and_a_fork_behind_it_warns_of_nothing(tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    program = (
        "import os, sys, pyarrow as pa; from datapipe.tokens import Encoder; encoder = Encoder(sys.argv[1]); "
        "threads = lambda: len(os.listdir('/proc/self/task')); before = threads(); "
        "encoder.encode(pa.array(['a b'] * 1000, pa.large_string())); print(threads() - before, flush=True); "
        "pid = os.fork(); os._exit(0) if pid == 0 else os.waitpid(pid, 0)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "RAYON_NUM_THREADS": "4"})
    assert (done.stdout, done.stderr) == (b"0\n", b"")


@pytest.mark.real
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-olmo"])
def test_encode_novels_with_published_tokenizers_equals_whole(real_data, name):
    content = pa.CompressedInputStream(str(real_data / f"tokenizers/{name}/tokenizer.json.zst"), "zstd").read()
    lines = pa.CompressedInputStream(str(real_data / "prose/novels.jsonl.zst"), "zstd").read().splitlines()
    texts = [json.loads(line)["text"] for line in lines[:3]]
    assert_as_tokenizers(content, *texts, "".join(texts))  # the last one is above 1 MB


END = {"id": 0, "content": "</s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ASCII = [*map(chr, range(0x20, 0x7F)), "\t", "\n"]


def file(pieces: list[str], *, pre: Any = None, normalizer: Any = None, added: list[str] | None = None, **model: Any) -> bytes:
    vocabulary = {piece: number for number, piece in enumerate(["</s>", "<unk>", *pieces])}
    more = [{**END, "id": 1000 + number, "content": token, "special": False} for number, token in enumerate(added or [])]
    merges = {} if model.get("type", "BPE") != "BPE" else {"merges": []}
    settings = {"model": {"type": "BPE", **merges, **model, "vocab": vocabulary}, "added_tokens": [END, *more]}
    return json.dumps({"version": "1.0", "pre_tokenizer": pre, "normalizer": normalizer, **settings}).encode()


def unigram(pieces: list[str], unk_id: int | None, **model: Any) -> bytes:
    settings = json.loads(file([], **model))
    vocabulary = [[piece, -1.0] for piece in ["</s>", "<unk>", *pieces]]
    return json.dumps(settings | {"model": {"type": "Unigram", "unk_id": unk_id, "vocab": vocabulary, **model}}).encode()


def without(pieces: list[str], *left_out: str) -> list[str]:
    return [piece for piece in pieces if piece not in left_out]


WORD_PIECE = {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (file(without(ALPHABET, "q", "z"), pre=BYTE_LEVEL), "0x71 'q', 0x7a 'z'"),
        (file(without(ALPHABET, "Ġ"), pre=BYTE_LEVEL), "1 byte .*0x20 ' '"),
        (file(without(ALPHABET, "Ã"), pre=BYTE_LEVEL), "1 byte .*0xc3,"),
        (file(without(ALPHABET, "q"), normalizer={"type": "ByteLevel"}), "1 byte .*0x71 'q'"),
        (file(["a"], pre=BYTE_LEVEL), "242 bytes .*0x00 .* 226 more"),
        (file(without(BYTES, "<0xE2>"), byte_fallback=True), "1 byte .*0xe2,"),
        (file(without(ASCII, "q")), "1 byte .*0x71 'q'"),
        (file(ASCII), "characters"),
        (file(ALPHABET, pre=BYTE_LEVEL, continuing_subword_prefix="##"), "243 bytes"),
        (unigram([*ASCII, *BYTES], None, byte_fallback=True), "characters"),
        (unigram(without(ASCII, "q"), None), "1 byte .*0x71 'q'"),
        (file(["a"], type="WordLevel", unk_token="none"), "words"),
        (file(["a"], unk_token="none", **WORD_PIECE), "words"),
    ],
)
def test_encoder_vocabulary_that_lacks_text_is_refused(content, missing):
    with pytest.raises(UserError, match=missing):
        Encoder(content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (file(ALPHABET, pre=BYTE_LEVEL), "any text é漢"),
        (file(without(ALPHABET, "Á", "õ", "ÿ"), pre=BYTE_LEVEL), "bytes that UTF-8 never has"),
        (file(without(ALPHABET, *"QZ"), pre=BYTE_LEVEL, normalizer={"type": "Lowercase"}), "Quiz Z"),
        (file(without(ALPHABET, "Ċ"), pre=BYTE_LEVEL, added=["\n"]), "a\nb"),
        (file(BYTES, byte_fallback=True), "any text é漢"),
    ],
)
def test_encoder_vocabulary_that_never_gets_what_it_lacks_is_taken(content, text):
    encoder = Encoder(content)
    assert encoder.unknown_id is None
    assert len(encoder.encode(pa.array([text], pa.large_string()))[0]) > 0


@pytest.mark.parametrize(
    "content",
    [
        file(without(ALPHABET, "q"), pre=BYTE_LEVEL, unk_token="<unk>"),
        file(without(ASCII, "q"), unk_token="<unk>"),
        file(without(BYTES, "<0x71>"), byte_fallback=True, unk_token="<unk>"),
        file(["a"], type="WordLevel", unk_token="<unk>"),
        unigram(["a"], 1),
    ],
)
def test_encoder_unknown_text_becomes_the_unknown_token(content):
    encoder = Encoder(content)
    assert encoder.unknown_id == 1
    assert 1 in encoder.encode(pa.array(["q"], pa.large_string()))[0]

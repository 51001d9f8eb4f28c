"""A tokenizer that would lose text is refused with the bytes that it lacks."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import pre_tokenizers

from datapipe.errors import UserError
from datapipe.tokens import Encoder

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
def test_encoder_vocabulary_that_never_meets_what_it_lacks_is_taken(content, text):
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

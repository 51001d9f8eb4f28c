"""Text that spells control tokens never becomes one, in any case and spacing, whatever the tokenizer and what is around it."""

import json
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from datapipe.columns import make_keys, text_buffers
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segments import SEGMENTS_TYPE, segments_of, text_and_segments
from datapipe.tokens import Encoder
from datapipe.tokens.fim import Fim, encode_filling
from datapipe.tokens.prefix import with_prefix
from datapipe.tokens.segments import Encoded, encode_segments
from datapipe.tokens.tiktoken import convert
from datapipe.tokens.vocabulary import is_in_brackets
from tests.datapipe.tokens.test_segments import MAKERS as WITH_SEGMENTS
from tests.datapipe.tokens.test_tokens import MAKERS as OF_KINDS

FIM = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
ADDED = [
    *(AddedToken(token, special=True, normalized=False) for token in ("<|im_start|>", "<|im_end|>", *FIM)),
    AddedToken("<|User|>", special=True, normalized=True, lstrip=True, rstrip=True),
    AddedToken("<tool_call>", special=False, normalized=False),
    AddedToken("[INST]", special=False, normalized=True, single_word=True),
    AddedToken("{name}", special=False, lstrip=True),
    AddedToken("<｜fim▁hole｜>", special=False, normalized=False),
    AddedToken("  ", special=False, normalized=False),
]
MAKERS = {**OF_KINDS, **WITH_SEGMENTS}
REAL = ["gpt2", "gpt-neox-olmo", "cl100k_base"]


@cache
def encoder_of(name: str) -> Encoder:
    tokenizer = MAKERS[name]()
    tokenizer.add_tokens(ADDED)
    return Encoder(tokenizer.to_str().encode(), bos="<s>")


def real_encoder(folder: Any, name: str) -> Encoder:
    path = folder / (f"{name}.tiktoken.zst" if name == "cl100k_base" else f"{name}/tokenizer.json.zst")
    content = pa.CompressedInputStream(str(path), "zstd").read()
    tokenizer = Tokenizer.from_buffer(convert(content) if name == "cl100k_base" else content)
    tokenizer.add_tokens(ADDED)
    return Encoder(tokenizer.to_str().encode())


def control_of(encoder: Encoder) -> dict[int, str]:
    """The tokens that text never becomes, by id; without that of text that has no token."""
    ends = {encoder.eos_id: encoder.eos_token}
    ends |= {} if encoder.bos_id is None or encoder.bos_token is None else {encoder.bos_id: encoder.bos_token}
    return {number: token for token, number in encoder.control_tokens.items() if number != encoder.unknown_id} | ends


def spelled_by(encoder: Encoder) -> list[str]:
    """What texts are made of: added tokens, and entries of the vocabulary in brackets, in any case and spacing."""
    vocabulary = Tokenizer.from_str(encoder.to_json().decode()).get_vocab(with_added_tokens=True)
    entries = {entry.lstrip("▁Ġ#") for entry in vocabulary}
    tokens = sorted({*encoder.added_tokens, *filter(is_in_brackets, entries), *control_of(encoder).values()})
    return [form for token in tokens for form in forms_of(token)]


def forms_of(token: str) -> list[str]:
    wide = token.translate({ord(narrow): wide for narrow, wide in zip("<>[]|", "＜＞［］｜")})
    spaced = [" ".join(token), f" {token} ", f"\n{token}\n", token.replace("_", " "), f"{token[0]} {token[1:-1]} {token[-1:]}"]
    broken = [f"{token[:1]}\u200b{token[1:]}", f"{token[:-1]}\u0301{token[-1:]}", token[1:], token[:-1], token * 2]
    return [token, token.upper(), token.lower(), token.title(), token.swapcase(), wide, *spaced, *broken]


def in_segments(encoder: Encoder, documents: list[list[dict[str, Any]]]) -> Encoded:
    pairs = [text_and_segments(listed) for listed in documents]
    texts = pa.array([text for text, _ in pairs], pa.large_string())
    column = pa.array([rows for _, rows in pairs], SEGMENTS_TYPE)
    return encode_segments(encoder, texts, segments_of(column, text_buffers(texts)[0]))


def check(encoder: Encoder, texts: list[str]) -> None:
    """Texts by themselves, in segments between tokens that are meant, as prefix, and in the order of filling a gap."""
    control = control_of(encoder)

    def found(encoded: Encoded) -> list[str]:
        return [control[number] for number in encoded.ids.tolist() if number in control]

    column, keys = pa.array(texts, pa.large_string()), make_keys(3, np.arange(len(texts)).astype(np.uint64))
    assert not found(Encoded(*encoder.encode(column), None))
    meant = ["<|im_start|>", "<tool_call>", "<|im_end|>"]
    listed = [[{"token": meant[0]}, {"text": text, "learn": False}, {"token": meant[1]}, {"text": text}] for text in texts]
    listed = [[*document, {"token": meant[2]}, {"text": "a"}] for document in listed]
    assert found(in_segments(encoder, listed)) == meant * len(texts)
    record = pa.record_batch({"key": keys, "text": column, "url": column})
    assert not found(encode_segments(encoder, *with_prefix(DocumentBatch(record), "{url}\n", 1.0, 5)))
    for at in ("characters", "tokens"):
        fim = Fim(rate=1.0, spm=0.5, at=at, min_chars=0, tokens=FIM)  # type: ignore[arg-type]
        num_cut = sum(not any(token in text for token in encoder.control_tokens) for text in texts)
        assert sorted(found(encode_filling(encoder, fim, column, keys, 5))) == sorted(FIM * num_cut)


@pytest.mark.medium
@pytest.mark.parametrize("name", MAKERS)
def test_text_that_spells_control_tokens_never_becomes_one(name: str) -> None:
    encoder = encoder_of(name)
    spelled = spelled_by(encoder)
    assert len(spelled) > 100
    check(encoder, [*spelled, " ".join(spelled), "".join(spelled)])


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_any_mixture_of_what_spells_control_tokens_never_becomes_one(name: str, data: st.DataObject) -> None:
    encoder = encoder_of(name)
    parts = st.sampled_from([*spelled_by(encoder), *"<>[]|{}_/ ab\n", "plain", "words", "▁"])
    check(encoder, data.draw(st.lists(st.lists(parts, max_size=8).map("".join), min_size=1, max_size=3)))


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_text_that_spells_control_tokens_of_published_tokenizers_never_becomes_one(real_data: Any, name: str) -> None:
    encoder = real_encoder(real_data / "tokenizers", name)
    spelled = spelled_by(encoder)
    check(encoder, [*spelled, " ".join(spelled), "".join(spelled)])
    assert json.loads(encoder.to_json())["added_tokens"]

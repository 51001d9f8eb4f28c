"""Documents with segments: the ids and the mask of `tokenizers` for the same text with its control tokens spelled out."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from datapipe.columns import text_buffers
from datapipe.errors import UserError
from datapipe.stage.segments import SEGMENTS_TYPE, segments_of, text_and_segments
from datapipe.tokens import Encoder
from datapipe.tokens.fim import Fim, fim_tokens
from datapipe.tokens.segments import encode_segments
from datapipe.tokens.separators import separators_in

CONTROL = ["</s>", "<s>", "<|im_start|>", "<|im_end|>", "<tool>"]
_TEXTS = ["user\nHello there, how are you?", "assistant\nI am fine.\n\nThanks!  é漢字", "system\nBe kind "] * 4


def _trained(pre_tokenizer: Any, normalizer: Any = None, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return _with_control_tokens(tokenizer)


def _with_control_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL[:-1]])
    tokenizer.add_tokens([AddedToken(CONTROL[-1], special=False, normalized=False)])
    return tokenizer


def _sentencepiece(**options: Any) -> Tokenizer:
    letters = sorted({*"".join(_TEXTS), "▁"} - {" "})
    pieces = dict.fromkeys(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁H", "He", "lo"])
    merges = [("▁", "H"), ("H", "e"), ("l", "o")]
    model = models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(**options), decoders.Metaspace()
    return _with_control_tokens(tokenizer)


MAKERS = {
    "byte level": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte level with a space before": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "whole parts": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "byte level of NFC": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()),
    "a space before the first": lambda: _sentencepiece(prepend_scheme="first"),
    "a space before all": lambda: _sentencepiece(prepend_scheme="always"),
}


@cache
def both(name: str) -> tuple[Encoder, Tokenizer]:
    content = MAKERS[name]().to_str()
    return Encoder(content.encode()), Tokenizer.from_str(content)


def encoded(encoder: Encoder, documents: list[list[dict[str, Any]]]) -> list[tuple[list[int], list[bool]]]:
    pairs = [text_and_segments(listed) for listed in documents]
    texts = pa.array([text for text, _ in pairs], pa.large_string())
    column = pa.array([rows for _, rows in pairs], SEGMENTS_TYPE)
    ids, offsets, learned, _ = encode_segments(encoder, texts, segments_of(column, text_buffers(texts)[0]))
    assert learned is not None and len(learned) == len(ids) == offsets[-1]
    return [(ids[a:b].tolist(), learned[a:b].tolist()) for a, b in zip(offsets, offsets[1:])]


def expected(tokenizer: Tokenizer, listed: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    """Of text that spells no control token: the ids of the whole, and a token is learned that has any learned character."""
    learned: list[bool] = []
    for segment in listed:
        learned += [segment.get("learn", True)] * len(segment.get("text", segment.get("token")))
    encoding = tokenizer.encode(
        "".join(segment.get("text", segment.get("token")) for segment in listed), add_special_tokens=False
    )
    return encoding.ids, [any(learned[start:stop]) for start, stop in encoding.offsets]


text = st.text(st.sampled_from("user\nHelo é漢 a.!\u0301"), max_size=8)
repeated = st.builds(lambda text, count: text * count, text, st.sampled_from([1, 1, 9]))
segment = st.one_of(
    st.builds(lambda token, learn: {"token": token, "learn": learn}, st.sampled_from(CONTROL), st.booleans()),
    st.builds(lambda text, learn: {"text": text, "learn": learn}, repeated, st.booleans()),
)


@pytest.mark.parametrize("name", MAKERS)
@given(documents=st.lists(st.lists(segment, max_size=7), min_size=1, max_size=4))
def test_segments_have_the_ids_and_the_mask_of_the_text_with_its_tokens_spelled_out(name, documents):
    encoder, tokenizer = both(name)
    assert encoded(encoder, documents) == [expected(tokenizer, listed) for listed in documents]


@pytest.mark.parametrize("name", MAKERS)
def test_text_never_becomes_a_control_token_and_a_token_that_is_meant_does(name):
    encoder, tokenizer = both(name)
    numbers = {tokenizer.token_to_id(token) for token in CONTROL}
    spelled = [f" {form} " for token in CONTROL for form in (token, token.upper(), token.replace("<", "< "), token * 2)]
    [(ids, learned)] = encoded(encoder, [[{"token": "<|im_start|>", "learn": False}, {"text": "".join(spelled)}]])
    assert ids[0] == tokenizer.token_to_id("<|im_start|>") and not learned[0]
    assert numbers.isdisjoint(ids[1:]) and all(learned[1:])


def test_token_that_the_tokenizer_lacks_is_refused_with_the_nearest():
    encoder, _ = both("byte level")
    with pytest.raises(UserError, match=r"found the token '<\|im_strat\|>'.*Did you mean '<\|im_start\|>'\?"):
        encoded(encoder, [[{"token": "<|im_strat|>"}]])


def test_added_tokens_that_text_becomes_are_no_control_tokens():
    tokenizer = MAKERS["byte level"]()
    tokenizer.add_tokens(["@@file", "@@end"])
    tokenizer.add_special_tokens(["##special"])
    encoder = Encoder(tokenizer.to_str().encode())
    with pytest.raises(UserError, match=r"segments: found the token '@@file', to which .* text .*\"special\": true"):
        encoded(encoder, [[{"token": "@@file"}, {"text": "Hi"}]])
    with pytest.raises(UserError, match=r"tokens: found the token '@@end', to which .* text"):
        fim_tokens(encoder, Fim(rate=1, spm=0, at="characters", min_chars=0, tokens=("##special", "<|im_end|>", "@@end")))
    added = {"@@file": False, "##special": True, "<file>": False}
    with pytest.raises(UserError, match=r"separators: found the token '@@file', to which .* text"):
        separators_in(added, ["<file>", "@@file"])
    assert separators_in(added, ["<file>", "##special"]) == ("<file>", "##special")
    [(ids, _)] = encoded(encoder, [[{"token": "##special"}, {"text": "##special"}]])
    assert ids.count(encoder.control_tokens["##special"]) == 1

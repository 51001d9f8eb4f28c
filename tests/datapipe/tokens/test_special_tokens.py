"""Text never becomes a control token, whichever model knows the token; all other text has the ids of `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from datapipe.errors import UserError
from datapipe.tokens import Encoder
from datapipe.tokens.special_tokens import AddedAround, added_around
from tests.support import tokenizer_files

SPECIAL = ["<unk>", "<s>", "</s>"]
TEXTS = ["plain words <0x0A> and </s> marks < / s > in <s> text", "ab ab </ s> x <u n k>", "é漢字 </p> <b>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def unigram(*, whole: bool = False) -> Tokenizer:
    """As T5, XLM-R and llm-jp; `whole`: no pre-tokenizer, and tokens for bytes."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, show_progress=False, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    if not whole:
        return tokenizer
    file = json.loads(tokenizer.to_str())
    model = {**file["model"], "byte_fallback": True, "vocab": [*file["model"]["vocab"], *([name, 0.0] for name in BYTES)]}
    return Tokenizer.from_str(json.dumps({**file, "model": model, "pre_tokenizer": None, "normalizer": None}))


def sentencepiece_bpe(**options: Any) -> Tokenizer:
    """As Llama 2; unlike there, merges make the end-of-text token and a byte token."""
    letters = sorted({*"".join(TEXTS), "▁"} - {" "})
    made = ["</", "</s", "</s>", "<s", "<s>", "<0", "<0x", "<0x0", "<0x0A", "<0x0A>", "pl", "▁w"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys([*SPECIAL, *BYTES, *letters, *made]))}
    merges = [(piece[:-1], piece[-1]) for piece in made]
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True, **options)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def whole_words(model: Callable[..., Any]) -> Tokenizer:
    """A tokenizer of words that white space parts, so that a word may spell a token."""
    pieces = [*SPECIAL, "plain", "words", "w", "##ords", "##</s>", "<", "##s", "##>", "##/"]
    tokenizer = Tokenizer(model({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "unigram": unigram,
    "unigram of whole texts": lambda: unigram(whole=True),
    "sentencepiece": sentencepiece_bpe,
    "sentencepiece without merges": lambda: sentencepiece_bpe(ignore_merges=True),
    "word level": lambda: whole_words(models.WordLevel),
    "word pieces": lambda: whole_words(models.WordPiece),
}


@cache
def both(name: str) -> tuple[Encoder, Tokenizer]:
    tokenizer = MAKERS[name]()
    tokenizer.encode_special_tokens = True
    return Encoder(tokenizer.to_str().encode(), bos="<s>"), tokenizer


def ids_of(encoder: Encoder, text: str) -> list[int]:
    return encoder.encode(pa.array([text], pa.large_string()))[0].tolist()


PARTS = [*SPECIAL, "</", "s>", "<0x0A>", "<0x", "0A>", "＜/s＞", "plain", "words", *"</s> ▁a漢é\n>"]
hostile = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@given(text=hostile)
@settings(deadline=None, max_examples=150)
@pytest.mark.parametrize("name", MAKERS)
def test_encode_hostile_text_has_no_control_token_and_else_the_ids_of_tokenizers(name, text):
    encoder, tokenizer = both(name)
    ids, expected = ids_of(encoder, text), tokenizer.encode(text, add_special_tokens=False)
    assert not {1, 2} & {*ids}
    byte_ids = {tokenizer.token_to_id(token) for token in BYTES}
    bytes_of_text = [tokenizer.id_to_token(number) for number in ids if number in byte_ids]
    assert "<0x0A>" not in bytes_of_text or "\n" in text
    if not {*SPECIAL, "##</s>"} & {*expected.tokens} and not any(each in text for each in [*SPECIAL, "<0x0A>"]):
        assert ids == expected.ids


@pytest.mark.parametrize("name", ["sentencepiece", "sentencepiece without merges", "unigram of whole texts"])
def test_encode_spelled_tokens_decode_to_the_text(name):
    encoder, tokenizer = both(name)
    pieces = [tokenizer.id_to_token(number) for number in ids_of(encoder, "</s> <s><0x0A>")]
    assert "".join(pieces).replace("▁", " ").replace("<0x20>", " ").strip() == "</s> <s><0x0A>"


@pytest.mark.parametrize("by_kernels", [True, False])
def test_encode_added_token_that_is_not_special_is_found_in_text_unless_it_ends_documents(by_kernels):
    tokenizer = Tokenizer.from_str(tokenizer_files.byte_level().decode()) if by_kernels else sentencepiece_bpe()
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken("<end>")])
    encoder = Encoder(tokenizer.to_str().encode(), eos="<end>")
    assert (encoder.fallback_reason == "") == by_kernels
    ids = ids_of(encoder, "a<tool><end>" if by_kernels else "<tool><end>")
    assert tokenizer.token_to_id("<tool>") in ids
    assert encoder.eos_id not in ids
    if by_kernels:
        assert tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "") == "a<tool><end>"


def test_encoder_end_of_text_that_is_a_piece_and_no_added_token_is_usable():
    file = json.loads(unigram().to_str())
    encoder = Encoder(json.dumps({**file, "added_tokens": []}).encode(), eos="</s>")
    assert encoder.eos_id not in ids_of(encoder, "a</s> </s>")


def test_encoder_merges_of_an_old_file_are_read():
    file = json.loads(sentencepiece_bpe().to_str())
    merges = ["#version: 0.2", *map(" ".join, file["model"]["merges"])]
    encoder = Encoder(json.dumps(file | {"model": file["model"] | {"merges": merges}}).encode())
    assert ids_of(encoder, "pl </s> w") == ids_of(both("sentencepiece")[0], "pl </s> w")


def test_encoder_names_of_control_tokens_stay_in_its_file():
    content = unigram().to_str()
    assert json.loads(Encoder(content.encode()).to_json()) == json.loads(content)


def test_encoder_begin_and_end_of_text_are_checked():
    content = unigram().to_str().encode()
    encoder = Encoder(content, bos="<s>")
    assert (encoder.bos_token, encoder.bos_id) == ("<s>", 1)
    assert Encoder(content).bos_id is None
    refused = [("eos", "▁", "▁"), ("bos", "<bos>", "'<s>'"), ("bos", "</s>", "end-of-text"), ("bos", "<unk>", "unknown")]
    for name, token, fact in refused:
        with pytest.raises(UserError, match=f"{name}: .*{fact}"):
            Encoder(content, **{name: token})


@pytest.mark.parametrize(
    ("template", "before", "behind"),
    [("<s> $A </s>", ("<s>",), ("</s>",)), ("<s> $A", ("<s>",), ()), ("$A </s>", (), ("</s>",)), (None, (), ())],
)
def test_added_around_is_what_the_post_processor_adds(template, before, behind):
    tokenizer = unigram()
    if template is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
    assert added_around(tokenizer) == AddedAround(before=before, behind=behind)

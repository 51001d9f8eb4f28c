"""Control tokens that text never becomes, rank files of tiktoken, training, and counts of texts and tokens."""

import base64
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from datapipe.errors import UserError
from datapipe.stage.documents import DocumentBatch
from datapipe.token_counts import MAX_NAMES, Fertility
from datapipe.tokens import Encoder, tiktoken
from datapipe.tokens.fertility import Meter
from datapipe.tokens.figures import SourceFertility
from datapipe.tokens.patterns import PATTERNS, splitter
from datapipe.tokens.tiktoken import Encoding, convert, is_rank_file
from datapipe.tokens.vocabulary import AddedAround, added_around
from datapipe.tokens.word_counts import COUNTED, WordCounts
from tests.support import tokenizer_files
from tests.support.tokenizer_files import train_tokenizer

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


@pytest.mark.medium
@given(text=hostile)
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


@pytest.mark.parametrize("is_byte_level", [True, False])
def test_encode_added_token_that_is_not_special_is_found_in_text_unless_it_looks_like_a_control_token(is_byte_level):
    tokenizer = Tokenizer.from_str(tokenizer_files.byte_level().decode()) if is_byte_level else sentencepiece_bpe()
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken("<end>"), AddedToken("ab")])
    encoder = Encoder(tokenizer.to_str().encode(), eos="<end>")
    ids = ids_of(encoder, "ab<tool><end>")
    assert tokenizer.token_to_id("ab") in ids
    assert {encoder.eos_id, tokenizer.token_to_id("<tool>")}.isdisjoint(ids)
    if is_byte_level:
        assert tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "") == "ab<tool><end>"


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


TOKENS = [b"th", b"he", b"the", b" t", b" the", b"in", b"ing", b"aa", b"aaaa", "é".encode(), "漢".encode(), b"abc", b"bc"]
RANKS = {bytes([byte]): 255 - byte for byte in range(256)} | {token: 256 + number for number, token in enumerate(TOKENS)}
OF_RANKS = {"<|end_of_text|>": 300}


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
    encoder = Encoder(convert(rank_file(RANKS), pattern, OF_RANKS))
    rng, splits = random.Random(1), splitter(pattern)
    for _ in range(300):
        text = "".join(rng.choices([*"thenigabc é漢字\n1'", "the ", "ing", "<|end_of_text|>"], k=rng.randint(0, 30)))
        words = [text[start:stop].encode() for _, (start, stop) in splits.pre_tokenize_str(text)]
        ids, _ = encoder.encode(pa.array([text], pa.large_string()))
        assert ids.tolist() == [number for word in words for number in by_ranks(word)]


def test_converted_whole_word_is_its_token_where_no_merge_leads_to_it():
    encoder = Encoder(convert(rank_file({**RANKS, b"zebra": 280}), "cl100k", OF_RANKS))
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


GIVEN = {"pattern": "gpt2", "special_tokens": OF_RANKS}


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


def test_rank_files_are_reported_by_their_first_line():
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


SENTENCES = [
    f"the {word}ing of {word}s and {number * 37} more {word}, isn't it? naïve 漢字\n"
    for number in range(40)
    for word in ("pack", "shard")
]


def column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("eos", ["<|endoftext|>", "</s>"])
def test_train_equals_the_trainer_of_tokenizers(pattern, eos):
    texts = [*SENTENCES, "It's don't WE'LL  x\r\n\n\t 12345 ½ ǅ ʰ \u0301 漢字漢字漢字 aaaaaaa ababab", "the the the the" * 9]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, min_frequency=2, special_tokens=[eos], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    expected = Encoder(tokenizer.to_str().encode(), eos=eos).to_json()
    before = dict(os.environ)
    assert train_tokenizer([column(*texts)], 900, eos=eos, pattern=pattern) == expected
    assert dict(os.environ) == before
    assert Encoder(expected).vocab_size > 300


@pytest.mark.medium
def test_train_order_batches_and_lengths_of_texts_do_not_show():
    straight = train_tokenizer([column(*SENTENCES)], 340)
    assert train_tokenizer((column(text) for text in reversed(SENTENCES)), 340) == straight
    text = "".join(SENTENCES) * 500  # above the size at which texts are cut
    assert len(text.encode()) > 2 << 20
    assert train_tokenizer([column(text)], 400) == train_tokenizer([column(*(["".join(SENTENCES)] * 500))], 400)


def test_word_counts_are_those_of_a_counter_in_the_order_of_first_words():
    rng = random.Random(3)
    begins = [b"", b"a", b"a\0", b"a" * 8, b"a" * 9, b"a" * 8 + b"\0", b"a" * 17, b"b" * 255, b"b" * 256, b"b" * 300]
    words = [*begins, *(b"%d" % rng.randrange(30_000) for _ in range(40_000)), *(each + b"c" for each in begins), *begins]
    expected, counted = Counter[bytes](), WordCounts()
    for start in range(0, len(words), 7_000):
        part = words[start : start + 7_000]
        counts = [rng.randrange(1, 1 << 40) for _ in part]
        for word, count in zip(part, counts):
            expected[word] += count
        counted.add(pa.table([pa.array(part, pa.large_binary()), pa.array(counts, pa.int64())], COUNTED))
    assert list(zip(*counted.total().to_pydict().values())) == list(expected.items())


def test_train_result_is_canonical_and_encodes_anything():
    content = train_tokenizer([column(*SENTENCES)], 340)
    encoder, vocabulary = Encoder(content), json.loads(content)["model"]["vocab"]
    assert encoder.to_json() == content
    assert (encoder.vocab_size, encoder.eos_id) == (340, 0)
    assert sorted(vocabulary.values()) == list(range(340))
    assert {len(token) for token, number in vocabulary.items() if 1 <= number <= 256} == {1}
    ids, _ = encoder.encode(column("Ωmega \x00 𝄞 packing"))
    assert Tokenizer.from_buffer(content).decode(ids.tolist()) == "Ωmega \x00 𝄞 packing"


def test_train_too_little_text_gives_fewer_tokens():
    assert Encoder(train_tokenizer([column("ab ab ab")], 32_000)).vocab_size < 270
    assert Encoder(train_tokenizer([], 300)).vocab_size == 257


@pytest.mark.parametrize("options", [{"vocab_size": 256}, {"pattern": "gpt3"}, {"eos": "end"}])
def test_train_impossible_options_are_refused(options):
    with pytest.raises(UserError):
        train_tokenizer([column("a")], **{"vocab_size": 300, **options})


def metered(languages: list[str | None], cuts: int = 1) -> Fertility:
    """The counts of one-word texts of two tokens each, metered in `cuts` tasks."""
    total = Fertility()
    for part in np.array_split(np.arange(len(languages)), cuts):
        columns = {
            "text": pa.array(["abc"] * len(part), pa.large_string()),
            "language": pa.array([languages[number] for number in part], pa.string()),
        }
        meter = Meter(10)
        meter.add(DocumentBatch(pa.record_batch(columns)), np.full(2 * len(part), 3), np.arange(len(part) + 1) * 2)
        total.add(meter.fertility)
    return total


@pytest.mark.parametrize("cuts", [1, 3])
def test_counts_are_by_language_however_cut(cuts):
    found = SourceFertility.of(metered(["en", "de", "en", None, "de", "en"], cuts))
    assert {name: one.documents for name, one in (found.languages or {}).items()} == {"": 1, "de": 2, "en": 3}
    assert (found.bytes, found.words, found.tokens) == (18, 6, 12)
    assert (found.bytes_per_token, found.tokens_per_word) == (1.5, 2.0)
    assert SourceFertility.of(Fertility()).bytes_per_token is None


@pytest.mark.parametrize("cuts", [1, 3])
@pytest.mark.parametrize("odd", [[str(number) for number in range(MAX_NAMES)], ["a sentence, not the name of a language"]])
def test_column_that_holds_no_languages_is_not_counted_by(odd, cuts):
    found = metered(["en", *odd, "en"], cuts)
    assert found.languages.by_name is None
    assert found.total.documents == len(odd) + 2
    assert metered(["en", *odd[1:], "en"], cuts).languages.by_name is not None

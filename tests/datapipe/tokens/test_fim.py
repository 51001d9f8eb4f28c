"""Fill in the middle: equal to a document at a time, the share within its bound, and every document comes back."""

import math
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from datapipe.columns import key_halves, make_keys, text_buffers
from datapipe.errors import UserError
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.segments import SEGMENTS_TYPE, segments_of
from datapipe.tokens import Encoder
from datapipe.tokens.fim import KNOWN_TOKENS, Fim, check_fim, encode_filling, encode_filling_files, fim_tokens
from tests.oracles.repositories import File, document

SEED = 17
CODE = ["def f(x):\n    return x + 1\n", "for é in range(10):\n  print(漢字)\n", "a = b", "", "x"] * 3


@cache
def encoder_with(names: tuple[str, ...]) -> Encoder:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer: Any = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CODE, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("</s>", *names)])
    return Encoder(tokenizer.to_str().encode())


def fim(**options: Any) -> Fim:
    return Fim(**{"rate": 0.5, "spm": 0.5, "at": "characters", "min_chars": 0, "tokens": (), **options})


def keys_of(number: int) -> pa.Array:
    return make_keys(7, np.arange(number).astype(np.uint64))


def ids_of(encoder: Encoder, text: str) -> list[int]:
    return encoder.encode(pa.array([text], pa.large_string()))[0].tolist()


def split(encoder: Encoder, ids: list[int]) -> tuple[str, str]:
    """The order of a document, and its text."""
    prefix, suffix, middle = (encoder.added_tokens[name] for name in fim_tokens(encoder, fim()))
    decode = Tokenizer.from_str(encoder.to_json().decode())
    decode.decoder = decoders.ByteLevel()
    if prefix not in ids:
        return "plain", decode.decode(ids)
    at_suffix, at_middle = ids.index(suffix), ids.index(middle)
    before, between, behind = ids[1:at_suffix], ids[at_suffix + 1 : at_middle], ids[at_middle + 1 :]
    if at_suffix == 1:
        return "spm", decode.decode(behind) + decode.decode(between)
    return "psm", decode.decode(before) + decode.decode(behind) + decode.decode(between)


def one_by_one(encoder: Encoder, spec: Fim, texts: list[str], keys: pa.Array) -> tuple[list[list[int]], Counter[str]]:
    """A document at a time, with integers of Python; and how many there are of each kind."""
    hashes = {
        name: keyed_hash(key_halves(keys), seed_for(SEED, "fim", name)).tolist() for name in ("rate", "spm", "one", "other")
    }
    prefix, suffix, middle = ([encoder.added_tokens[name]] for name in fim_tokens(encoder, spec))
    made, counts = [], Counter({"psm": 0, "spm": 0, "too_short": 0, "control_token": 0})
    for number, text in enumerate(texts):
        ids = ids_of(encoder, text)
        is_chosen = hashes["rate"][number] < int(spec.rate * 2**64) or spec.rate == 1
        is_short, is_spelled = len(text) < spec.min_chars, any(token in text for token in encoder.control_tokens)
        if not is_chosen or is_short or is_spelled:
            made.append(ids)
            counts["too_short" if is_short else "control_token"] += is_chosen
            continue
        whole: Any = text if spec.at == "characters" else ids
        cuts = sorted(((hashes[name][number] >> 32) * (len(whole) + 1)) >> 32 for name in ("one", "other"))
        parts = [whole[: cuts[0]], whole[cuts[0] : cuts[1]], whole[cuts[1] :]]
        before, between, behind = (ids_of(encoder, part) for part in parts) if spec.at == "characters" else parts
        is_spm = hashes["spm"][number] < int(spec.spm * 2**64) or spec.spm == 1
        counts["spm" if is_spm else "psm"] += 1
        psm = prefix + before + suffix + behind + middle + between
        made.append(prefix + suffix + behind + middle + before + between if is_spm else psm)
    return made, counts


texts = st.lists(st.text("ab é漢\n", max_size=9) | st.sampled_from([*CODE, "a </s> b", "<fim_middle>"]), max_size=7)
shares = st.sampled_from([0.0, 0.3, 1.0])


@given(texts=texts, rate=shares, spm=shares, at=st.sampled_from(["characters", "tokens"]), min_chars=st.sampled_from([0, 3]))
@settings(deadline=None)
def test_documents_are_those_of_one_at_a_time(texts, rate, spm, at, min_chars):
    encoder, spec = encoder_with(KNOWN_TOKENS[0]), fim(rate=rate, spm=spm, at=at, min_chars=min_chars)
    keys = keys_of(len(texts) + 1)
    column = pa.array(["before", *texts], pa.large_string()).slice(1)
    encoded = encode_filling(encoder, spec, column, keys.slice(1), SEED)
    found = [encoded.ids[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:])]
    assert (found, Counter(encoded.counts)) == one_by_one(encoder, spec, texts, keys.slice(1))
    assert encoded.learned is None


@pytest.mark.parametrize("at", ["characters", "tokens"])
def test_every_document_comes_back_and_as_many_are_changed_as_asked_for(at):
    encoder, number = encoder_with(KNOWN_TOKENS[0]), 3000
    listed = [CODE[k % 3] * 20 for k in range(number)]  # long: of an empty prefix the order does not show
    encoded = encode_filling(
        encoder, fim(at=at, rate=0.3, spm=0.25), pa.array(listed, pa.large_string()), keys_of(number), SEED
    )
    orders = []
    for text, start, stop in zip(listed, encoded.offsets, encoded.offsets[1:]):
        order, again = split(encoder, encoded.ids[start:stop].tolist())
        assert again == text
        orders.append(order)
    changed = number - orders.count("plain")
    for count, of, share in ((changed, number, 0.3), (orders.count("spm"), changed, 0.25)):
        assert abs(count - of * share) < 4.5 * math.sqrt(of * share * (1 - share))  # one run in 10^5 is further away


def test_tokens_are_those_of_published_tokenizers_or_the_named_ones():
    for names in KNOWN_TOKENS:
        assert fim_tokens(encoder_with(names), fim()) == names
    named = ("<a>", "<b>", "<c>")
    assert fim_tokens(encoder_with(named), fim(tokens=named)) == named
    with pytest.raises(UserError, match=r"expected control tokens.*Name its three tokens"):
        fim_tokens(encoder_with(named), fim())
    with pytest.raises(UserError, match="<d>"):
        fim_tokens(encoder_with(named), fim(tokens=("<a>", "<b>", "<d>")))


def test_a_tokenizer_that_puts_a_space_before_each_text_cuts_between_tokens_alone():
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    for scheme, is_refused in (("always", True), ("first", False)):
        pieces = {piece: number for number, piece in enumerate(names)}
        tokenizer = Tokenizer(models.BPE(pieces, [], byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("</s>", *KNOWN_TOKENS[0])])
        encoder = Encoder(tokenizer.to_str().encode())
        check_fim(encoder, fim(at="tokens"))
        if is_refused:
            with pytest.raises(UserError, match="Write `at: tokens`"):
                check_fim(encoder, fim())
        else:
            check_fim(encoder, fim())


def test_added_tokens_that_are_no_control_tokens_leave_code_as_it_is_to_be_cut():
    content = Tokenizer.from_str(encoder_with(KNOWN_TOKENS[0]).to_json().decode())
    content.add_tokens([AddedToken("    ", normalized=False), AddedToken("\n\n", normalized=False)])
    encoder = Encoder(content.to_str().encode())
    texts = pa.array(["if a:\n    b\n\nc"] * 50, pa.large_string())
    encoded = encode_filling(encoder, fim(rate=1.0), texts, keys_of(50), SEED)
    assert int((encoded.ids == encoder.added_tokens["<fim_middle>"]).sum()) == 50


SEPARATORS = ("<repo_name>", "<file_sep>")
BODIES = st.sampled_from(["", "x", "def f():\n    return 1\n", "é漢字\n", "<fim_middle>", "\n"])
REPOSITORIES = st.lists(
    st.tuples(st.sampled_from(["", "a/b"]), st.lists(st.tuples(st.sampled_from(["", "a.py"]), BODIES), min_size=1, max_size=4)),
    max_size=5,
)


@given(REPOSITORIES, st.sampled_from([0.5, 1.0]), st.integers(0, 12))
def test_files_of_a_document_are_changed_one_by_one_behind_their_paths(repositories, rate, min_chars):
    encoder = encoder_with((*KNOWN_TOKENS[0], *SEPARATORS))
    spec = fim(rate=rate, min_chars=min_chars, of_files=True)
    files = [[File(b"", name, *file) for file in listed] for name, listed in repositories]
    made, keys = [document(listed, SEPARATORS) for listed in files], keys_of(len(files))
    texts = pa.array([one.text for one in made], pa.large_string())
    segments = segments_of(pa.array([one.segments for one in made], SEGMENTS_TYPE), text_buffers(texts)[0])
    encoded = encode_filling_files(encoder, spec, texts, segments, keys, SEED)
    own = keyed_hash(key_halves(keys), seed_for(SEED, "fim", "files"))
    before, between = (encoder.added_tokens[token] for token in SEPARATORS)
    for number, listed in enumerate(files):
        name = listed[0].repository
        expected = [before, *ids_of(encoder, name)] if name else []
        for place, file in enumerate(listed, 2 if name else 1):
            expected += [between, *file_one_by_one(encoder, spec, file, make_keys(own[number], np.array([place], np.uint64)))]
        assert encoded.ids[encoded.offsets[number] : encoded.offsets[number + 1]].tolist() == expected
    assert encoded.learned is not None and encoded.learned.all()


def file_one_by_one(encoder: Encoder, spec: Fim, file: File, key: pa.Array) -> list[int]:
    path, content = f"{file.path}\n", file.text
    names = ("rate", "spm", "one", "other")
    hashes = {name: int(keyed_hash(key_halves(key), seed_for(SEED, "fim", name))[0]) for name in names}
    is_chosen = spec.rate == 1 or hashes["rate"] < int(spec.rate * 2**64)
    if not content or not is_chosen or len(path + content) < spec.min_chars or "<fim_middle>" in content:
        return ids_of(encoder, path + content)
    first, second = sorted(((hashes[name] >> 32) * (len(content) + 1)) >> 32 for name in ("one", "other"))
    before, between, behind = (
        ids_of(encoder, part) for part in (path + content[:first], content[first:second], content[second:])
    )
    prefix, suffix, middle = ([encoder.added_tokens[name]] for name in fim_tokens(encoder, spec))
    if hashes["spm"] < int(spec.spm * 2**64):
        return prefix + suffix + behind + middle + before + between
    return prefix + before + suffix + behind + middle + between

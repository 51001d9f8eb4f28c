"""fastText and linear models answer as the library and the definition do, and files that are no models are refused."""

import math
import random
import struct
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import text_buffers
from datapipe.errors import UserError
from datapipe.kernels.dedup.word_characters import invisible_characters
from datapipe.stage.models import fasttext as fasttext_model
from datapipe.stage.models import linear
from datapipe.stage.models.classifier import Classifier, open_classifier
from datapipe.stage.models.fasttext import CompiledModel, open_model
from datapipe.stage.models.fasttext_file import read_labels, read_model
from datapipe.stage.models.linear import LinearFile, file_bytes
from stages.filter.language import bundled_model
from tests.oracles import case_folding
from tests.oracles import linear as oracle
from tests.support.fasttext_files import NEGATIVES, ONE_VS_ALL, TREE, LibraryModel, Recipe

_PIECES = [" ", "\n", "\t\v\f\r", "\0", "</s>", "__label__en", "__label__"]
_PIECES += ["the", "and", "ça", "der", "<", ">", "x" * 20, "日本"]

RECIPES = {
    "softmax": Recipe(),
    "tree": Recipe(loss=TREE),
    "tree of one": Recipe(loss=TREE, labels=("en",)),
    "tree of many": Recipe(loss=TREE, labels=[f"l{number}" for number in range(40)], dim=17),
    "negatives": Recipe(loss=NEGATIVES),
    "one against all": Recipe(loss=ONE_VS_ALL, scale=4.0),
    "wide": Recipe(dim=35, labels=[f"l{number}" for number in range(300)], scale=0.3),
    "many dimensions": Recipe(dim=130, longest_run=2, scale=0.2),
    "runs of words": Recipe(longest_run=3, loss=TREE),
    "words alone": Recipe(chars=(0, 0), num_buckets=0),
    "words and runs": Recipe(chars=(0, 0), longest_run=2),
    "single characters": Recipe(chars=(1, 3)),
    "any characters": Recipe(chars=(0, 12)),
    "no end of line": Recipe(words=("the", "and")),
    "no words": Recipe(words=()),
    "equal words": Recipe(words=("</s>", "the", "and", "the")),
    "quantised": Recipe(quantised=True, part=4, loss=TREE),
    "quantised without norms": Recipe(quantised=True, has_norms=False),
    "quantised in and out": Recipe(quantised=True, quantised_output=True, pruned=30),
    "quantised tree": Recipe(quantised=True, quantised_output=True, pruned=30, loss=TREE, part=5),
    "pruned": Recipe(quantised=True, pruned=60, longest_run=2),
    "all pruned": Recipe(quantised=True, pruned=0, longest_run=2),
    "version 11": Recipe(version=11),
}


def _texts(seed: int, number: int) -> list[bytes]:
    """Words the models know between white space and marks, characters of every length, and bytes that are no text."""
    rng = random.Random(seed)
    picks = [
        lambda: rng.choice(_PIECES).encode(),
        lambda: "".join(rng.choices("theandrßéж日", k=rng.randint(1, 9))).encode() + b" ",
        lambda: rng.randbytes(rng.randint(0, 6)),
    ]
    return [b"".join(rng.choice(picks)() for _ in range(rng.randint(0, 25))) for _ in range(number)]


def _spans(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where texts start and stop in their bytes, which go on behind them."""
    stops = np.cumsum(list(map(len, texts)), dtype=np.int64)
    return stops - list(map(len, texts)), stops, np.frombuffer(b"".join(texts) + b"#", np.uint8)


def _best(model: CompiledModel | LibraryModel, texts: Sequence[bytes], k: int) -> tuple[np.ndarray, np.ndarray]:
    return model.best(*_spans(texts), k)


def _assert_alike(path: Path, texts: Sequence[bytes], k: int) -> None:
    """The kernels answer as the library, but for the order of equal scores, which is the library's own."""
    model = open_model(path)
    labels, scores = _best(model, texts, k)
    expected_labels, expected = _best(LibraryModel(path, model.labels), texts, k)
    np.testing.assert_array_equal(scores, expected)
    apart = np.diff(scores, axis=1, append=-1.0) != 0
    apart[:, 1:] &= apart[:, :-1]
    np.testing.assert_array_equal(labels[apart], expected_labels[apart])


@pytest.mark.medium
@pytest.mark.parametrize("name", RECIPES)
def test_model_of_any_kind_answers_as_the_library(name: str, tmp_path: Path) -> None:
    for seed, k in enumerate((1, 3, 3)):
        path = replace(RECIPES[name], seed=seed).write(tmp_path / f"{seed}.bin")
        _assert_alike(path, _texts(seed, 150), k)


def test_model_quantised_too_large_to_be_dense_answers_as_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fasttext_model, "MAX_DENSE_BYTES", 0)
    for name in ("quantised", "quantised without norms", "quantised tree", "pruned"):
        _assert_alike(RECIPES[name].write(tmp_path / "lid.ftz"), _texts(7, 150), 2)


def test_model_bundled_answers_as_the_library() -> None:
    _assert_alike(bundled_model(), [*_texts(1, 400), *[text.replace(b"\n", b" ") * 9 for text in _texts(2, 50)]], 3)


def test_model_texts_without_words_have_no_label(tmp_path: Path) -> None:
    for path in (Recipe().write(tmp_path / "lid.bin"), bundled_model()):
        labels, scores = _best(open_model(path), [b"", b" \n\t\r\v\f\0 ", b"</s>", b" </s>\n</s> "], 2)
        assert (labels == -1).all()
        assert (scores == 0).all()


def test_model_beyond_the_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lid\.bin has n-grams of 2 to 200 characters\. Expected n-grams of up to 100"):
        open_model(Recipe(chars=(2, 200)).write(tmp_path / "lid.bin"))


def test_labels_are_read_without_the_matrices(tmp_path: Path) -> None:
    path = tmp_path / "lid.bin"
    content = Recipe().content()
    path.write_bytes(content[: len(content) // 2])
    assert read_labels(path) == ("en", "de", "fr", "zh", "ga")
    assert len(read_labels(bundled_model())) == 176
    with pytest.raises(UserError, match=r"lid\.bin is no fastText model"):
        open_model(path)
    Recipe(labels=("en", "de")).write(path)
    assert read_labels(path) == ("en", "de")  # the file changed


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"no model", "its first bytes differ"),
        (Recipe(version=13).content(), "version 13"),
        (Recipe(kind=1).content(), "no labels"),
        (Recipe(loss=5).content(), "loss 5"),
        (Recipe(loss=0).content(), "loss 0"),
        (Recipe(labels=()).content(), "6 words and 0 labels"),
        (Recipe().content()[:100], "within its dictionary"),
        (Recipe(pruned=30).content(), "pruned"),
        (Recipe(num_buckets=0).content(), "0 buckets"),
        (Recipe(chars=(0, 0)).content().replace(Recipe(chars=(0, 0))._options(), Recipe(dim=7)._options()), "5 x 6"),
    ],
)
def test_model_that_cannot_be_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "lid.bin"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        open_model(path)
    assert f"{path} is no fastText model" in str(caught.value) and reason in str(caught.value)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["tree", "quantised in and out", "words alone"])
def test_model_with_any_number_changed_is_refused_or_read(name: str, tmp_path: Path) -> None:
    content, path = RECIPES[name].content(), tmp_path / "lid.bin"
    offsets = range(0, len(content) // 2, 3)
    for offset in random.Random(1).sample(offsets, min(150, len(offsets))):
        for value in (-1, (1 << 31) - 1):
            path.write_bytes(content[:offset] + struct.pack("<i", value) + content[offset + 4 :])
            with suppress(UserError):
                read_model(path)


def test_model_of_values_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    content = bytearray(Recipe(num_buckets=1).content())
    rows = content.index(struct.pack("<2q", 7, 6)) + 16
    content[rows : rows + 7 * 6 * 4] = np.full(7 * 6, np.nan, "<f4").tobytes()
    path = tmp_path / "lid.bin"
    path.write_bytes(content)
    model = open_model(path)
    with pytest.raises(UserError, match=r"lid\.bin holds values that are no numbers"):
        _best(model, [b"the"], 1)
    with pytest.raises(UserError, match="an output of values that are no numbers"):
        open_model(Recipe(scale=float("nan")).write(path))


@pytest.mark.parametrize("name", ["softmax", "tree of many", "one against all", "quantised in and out", "wide"])
def test_scores_are_those_of_the_library_in_the_order_of_labels(name: str, tmp_path: Path) -> None:
    path = RECIPES[name].write(tmp_path / "lid.bin")
    model, texts = open_classifier(path), [*_texts(5, 40), b"", b"</s>"]
    scores = model.scores(*_spans(texts))
    expected = LibraryModel(path, model.labels).scores(*_spans(texts))
    assert (scores.shape, scores.dtype) == ((42, len(model.labels)), np.float32)
    of_table = 0.008 if name == "one against all" else 0.0  # the library looks sigmoids up in steps of 1/32
    np.testing.assert_allclose(scores, expected, atol=2e-5 + of_table)  # it adds 1e-5 to each chance
    assert (scores[-2:] == 0).all()


def test_model_that_is_absent_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.bin", tmp_path):
        for read in (open_model, read_labels):
            with pytest.raises(UserError, match="is no fastText model"):
                read(path)


def test_model_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content, path = Recipe(quantised=True, quantised_output=True, pruned=20).content(), tmp_path / "lid.ftz"
    for cut in range(0, 1000, 37):
        path.write_bytes(content[: len(content) * cut // 1000])
        with pytest.raises(UserError, match="is no fastText model"):
            open_model(path)


_BITS = (10, 12)
_INVISIBLE = set(invisible_characters().tolist())


def _model_file(kind: str = "classes", labels: tuple[str, ...] = ("bad", "good")) -> LinearFile:
    rng, columns = np.random.default_rng(5), 1 if kind == "number" or len(labels) == 2 else len(labels)
    entries = rng.integers(-(1 << 31), 1 << 31, (sum(1 << bits for bits in _BITS), columns)).astype(np.int32)
    entries = entries & ~0xFF | (entries[:, :1] & 0xFF)
    return LinearFile(
        kind=kind,  # pyright: ignore[reportArgumentType]
        labels=labels,
        word_bits=_BITS[0],
        character_bits=_BITS[1],
        entries=entries,
        scales=np.full(columns, 1e-7),
        biases=rng.standard_normal(columns),
    )


def _opened(tmp_path: Path, file: LinearFile) -> Classifier:
    path = tmp_path / "model"
    path.write_bytes(file_bytes(file))
    return open_classifier(path)


def _scores(model: Classifier, texts: list[str]) -> np.ndarray:
    offsets, data = text_buffers(pa.array(texts, pa.large_string()))
    return model.scores(offsets[:-1].copy(), offsets[1:].copy(), data)


def _expected(file: LinearFile, text: str) -> list[float]:
    numbers = (file.entries.tolist(), file.scales.tolist(), file.biases.tolist())
    visible = "".join(character for character in text if ord(character) not in _INVISIBLE)
    return oracle.sums(case_folding.folded(visible.encode()), _BITS, *numbers)


HOSTILE = [
    "",
    " \n\t\x85\u3000",
    "\0\0 a\0b",
    "A word, a WORD; don't f*ck 3.50€!",
    "e\u0301" * 50 + "\u0301\u0327",
    "中文没有空格，也有。ไทยด้วย",
    "مرحبا بالعالم שָׁלוֹם Ελληνικά ΣΊΣΥΦΟΣ İstanbul ǅ",
    "👩‍👩‍👧‍👦 \U0010ffff\ufffe \u00ad\u200bhidden",
    "- " * 400,
    "ab" * 700,
]


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "labels"), [("classes", ("bad", "good")), ("classes", ("a", "b", "c")), ("number", ("n",))])
def test_linear_scores_equal_the_definition(tmp_path, kind, labels):
    file = _model_file(kind, labels)
    scores = _scores(_opened(tmp_path, file), HOSTILE)
    for text, score in zip(HOSTILE, scores.tolist(), strict=True):
        sums = _expected(file, text)
        chances = [1 / (1 + math.exp(-value)) for value in sums]
        wanted = sums if kind == "number" else [1 - chances[0], chances[0]]
        if len(labels) == 3:
            wanted = [chance / sum(chances) for chance in chances]
        np.testing.assert_allclose(score, wanted, rtol=3e-7, atol=1e-7)


@pytest.mark.medium
@given(texts=st.lists(st.text(max_size=40), max_size=6), data=st.data())
def test_linear_scores_depend_on_the_text_alone(tmp_path_factory, texts, data):
    model = linear.LinearModel(_model_file())
    together = _scores(model, texts)
    order = data.draw(st.permutations(range(len(texts))))
    apart = [_scores(model, [texts[index]])[0] for index in order]
    assert [row.tolist() for row in together[list(order)]] == [row.tolist() for row in apart]


@pytest.mark.medium
@given(text=st.text(max_size=60))
def test_linear_scores_are_the_same_in_every_normal_form(text):
    model = linear.LinearModel(_model_file())
    known = "".join(character for character in text if unicodedata.category(character) != "Cn")
    forms = [unicodedata.normalize(form, known) for form in ("NFC", "NFD")]
    first, second = _scores(model, [*forms]).tolist()
    assert first == second


def test_linear_scores_of_spans_in_any_place_and_slice_equal_those_of_texts(tmp_path, monkeypatch):
    model = _opened(tmp_path, _model_file())
    offsets, data = text_buffers(pa.array(HOSTILE, pa.large_string()))
    starts, stops = offsets[:-1][::-2].copy(), offsets[1:][::-2].copy()
    expected = _scores(model, HOSTILE).tolist()
    assert model.scores(starts, stops, data).tolist() == expected[::-2]
    monkeypatch.setattr(linear, "SLICE_BYTES", 64)
    assert _scores(model, HOSTILE).tolist() == expected


@pytest.mark.medium
def test_linear_damaged_files_are_refused_or_score_the_same(tmp_path):
    content, path = file_bytes(_model_file()), tmp_path / "model"
    expected = _scores(linear.LinearModel(_model_file()), HOSTILE).tolist()
    positions = [*range(0, 1200, 13), *range(1200, len(content) - 900, 1997), *range(len(content) - 900, len(content), 11)]
    refused = 0
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            assert _scores(open_classifier(path), HOSTILE).tolist() == expected, position
        except UserError as error:
            refused += str(path) in str(error)
    assert refused > len(positions) // 2


def test_linear_cut_missing_and_other_files_are_refused(tmp_path):
    path, table = tmp_path / "model", pa.table({"text": ["a"]})
    for size in (0, 5, 6, 100, 3000, -9):
        path.write_bytes(file_bytes(_model_file())[:size])
        with pytest.raises(UserError, match="model"):
            open_classifier(path)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    for other in (path, tmp_path / "none"):
        with pytest.raises(UserError, match=str(other)):
            open_classifier(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": ("one",)},
        {"kind": "guess"},
        {"word_bits": 11},
        {"word_bits": 60},
        {"word_bits": -1},
        {"biases": np.array([math.nan])},
        {"scales": np.zeros(2)},
    ],
)
def test_linear_files_with_a_checksum_that_make_no_sense_are_refused(tmp_path, changed):
    path = tmp_path / "model"
    path.write_bytes(file_bytes(replace(_model_file(), **changed)))
    with pytest.raises(UserError, match="do not fit together"):
        open_classifier(path)

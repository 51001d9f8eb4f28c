"""Models of every kind answer as fasttext-predict does, and files that are no models are refused."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.stage.models import fasttext as fasttext_model
from datapipe.stage.models.classifier import open_classifier
from datapipe.stage.models.fasttext import CompiledModel, LibraryModel, open_model
from datapipe.stage.models.fasttext_file import read_labels, read_model
from stages.filter.language import bundled_model
from tests.support.fasttext_files import NEGATIVES, ONE_VS_ALL, TREE, Recipe

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
    assert isinstance(model, CompiledModel)
    labels, scores = _best(model, texts, k)
    expected_labels, expected = _best(LibraryModel(path, model.labels, "as the oracle"), texts, k)
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


def test_model_unusual_falls_back_to_the_library_and_says_so(tmp_path: Path) -> None:
    usual, unusual = Recipe(chars=(2, 60)), Recipe(chars=(2, 200))
    texts = [text for text in _texts(3, 80) if len(text) < 60]
    compiled = open_model(usual.write(tmp_path / "usual.bin"))
    model = open_model(unusual.write(tmp_path / "unusual.bin"))
    assert isinstance(model, LibraryModel)
    assert (compiled.fallback_reason, model.fallback_reason) == ("", "n-grams of 2 to 200 characters")
    for found, expected in zip(_best(model, texts, 2), _best(compiled, texts, 2), strict=True):
        np.testing.assert_array_equal(found, expected)


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
    for offset in random.Random(1).sample(offsets, min(400, len(offsets))):
        for value in (-1, (1 << 31) - 1):
            path.write_bytes(content[:offset] + struct.pack("<i", value) + content[offset + 4 :])
            with suppress(UserError):
                read_model(path)


def test_model_of_absurd_sizes_is_refused(tmp_path: Path) -> None:
    content, path = Recipe(quantised=True, part=6).content(), tmp_path / "lid.bin"
    header = struct.pack("<4i", 6, 1, 6, 6)  # one part of six dimensions, which are all of the last part
    path.write_bytes(content.replace(header, struct.pack("<4i", 6, 1, (1 << 31) - 1, 6)))
    assert read_model(path).matrix.centroids.shape == (1, 256, 6)
    rows = Recipe(num_buckets=1).content()
    path.write_bytes(rows.replace(struct.pack("<2q", 7, 6), struct.pack("<2q", 1 << 60, 0)))
    with pytest.raises(UserError, match="rows of 0 dimensions"):
        open_model(path)


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
    expected = LibraryModel(path, model.labels, "as the oracle").scores(*_spans(texts))
    assert (scores.shape, scores.dtype) == ((42, len(model.labels)), np.float32)
    of_table = 0.008 if name == "one against all" else 0.0  # the library looks sigmoids up in steps of 1/32
    np.testing.assert_allclose(scores, expected, atol=2e-5 + of_table)  # it adds 1e-5 to each chance
    assert (scores[-2:] == 0).all()


def test_scores_of_different_texts_are_rarely_equal(tmp_path: Path) -> None:
    model = open_classifier(Recipe(loss=ONE_VS_ALL, labels=("bad", "good"), num_buckets=5000).write(tmp_path / "quality.bin"))
    texts = [f"page number {number} of the corpus".encode() for number in range(2000)]
    assert len(np.unique(model.scores(*_spans(texts))[:, 1])) > 1950


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    model = open_classifier(Recipe(scale=1e30).write(tmp_path / "lid.bin"))
    with pytest.raises(UserError, match=r"lid\.bin holds values that are no numbers"):
        model.scores(np.array([0]), np.array([3]), np.frombuffer(b"the", np.uint8))


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


def test_model_that_no_kernel_takes_names_the_library_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)  # as on a Python without a wheel of it
    with pytest.raises(UserError, match=r"n-grams of 3 to 200 characters.*fasttext-predict is not installed"):
        LibraryModel(Path("model.bin"), ("a",), "n-grams of 3 to 200 characters")

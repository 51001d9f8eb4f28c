"""Linear models: scores equal the definition whatever the text and its neighbours; damaged files are refused."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import text_buffers
from datapipe.errors import UserError
from datapipe.kernels.dedup.word_characters import invisible_characters
from datapipe.stage.models import linear
from datapipe.stage.models.classifier import Classifier, open_classifier
from datapipe.stage.models.linear_file import LinearFile, file_bytes
from tests.oracles import case_folding
from tests.oracles import linear as oracle

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


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=40), max_size=6), data=st.data())
def test_linear_scores_depend_on_the_text_alone(tmp_path_factory, texts, data):
    model = linear.LinearModel(_model_file())
    together = _scores(model, texts)
    order = data.draw(st.permutations(range(len(texts))))
    apart = [_scores(model, [texts[index]])[0] for index in order]
    assert [row.tolist() for row in together[list(order)]] == [row.tolist() for row in apart]


@settings(max_examples=60, deadline=None)
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
def test_linear_scores_a_word_of_ten_megabytes(tmp_path):
    scores = _scores(_opened(tmp_path, _model_file()), ["x" * 10_000_000, "é" * 5_000_000, "short"])
    assert np.isfinite(scores).all()
    assert scores[2].tolist() == _scores(_opened(tmp_path, _model_file()), ["short"])[0].tolist()


def test_linear_texts_without_features_have_the_bias(tmp_path):
    file = _model_file("number", ("n",))
    model = _opened(tmp_path, file)
    assert _scores(model, ["", " \n"]).tolist() == [[np.float32(file.biases[0])]] * 2
    assert _scores(model, []).shape == (0, 1)


def test_linear_sigmoid_is_that_of_the_library():
    values = np.linspace(-40, 40, 2001).tolist()
    wanted = [1 / (1 + math.exp(-value)) for value in values]
    np.testing.assert_allclose([oracle.sigmoid(value) for value in values], wanted, rtol=1e-13)


def test_linear_file_is_the_same_twice_and_has_what_was_written(tmp_path):
    file = _model_file(labels=("a", "é", "c"))
    assert file_bytes(file) == file_bytes(file)
    model = _opened(tmp_path, file)
    assert (model.labels, model.kind, model.fallback_reason) == (("a", "é", "c"), "classes", "")


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
    ("changed", "problem"),
    [
        ({"labels": ("one",)}, "1 labels"),
        ({"labels": ("same", "same")}, "distinct"),
        ({"kind": "guess"}, "kind 'guess'"),
        ({"word_bits": 11}, "entries"),
        ({"word_bits": 60}, "60"),
        ({"word_bits": -1}, "-1"),
        ({"biases": np.array([math.nan])}, "no numbers"),
        ({"scales": np.zeros(2)}, "2 scales"),
    ],
)
def test_linear_files_with_a_checksum_that_make_no_sense_are_refused(tmp_path, changed, problem):
    sound = _model_file()
    fields = {name: getattr(sound, name) for name in LinearFile.__dataclass_fields__} | changed
    path = tmp_path / "model"
    path.write_bytes(file_bytes(LinearFile(**fields)))
    with pytest.raises(UserError, match=problem):
        open_classifier(path)

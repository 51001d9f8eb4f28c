"""Which languages pass, on generated texts, and what a document that cannot be read gets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from datapipe import columns
from datapipe.documents import DocumentBatch
from datapipe.stage import StageContext
from stages.filter.language import Language, bundled_model

ENGLISH = "The children walked home from school and talked about what they had learned that day. "
GERMAN = "Die Kinder gingen von der Schule nach Hause und sprachen über das, was sie gelernt hatten. "
JAPANESE = "子供たちは学校から家に歩いて帰り、その日に学んだことについて話しました。"


def _batch(texts: list[str]) -> DocumentBatch:
    keys = columns.make_keys(1, np.arange(len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string())}))


def _opened(**options: object) -> Language:
    stage = Language.model_validate(options)
    stage.open(StageContext(name="filter.language", seed=1))
    return stage


def test_language_english_kept_others_dropped_by_rule() -> None:
    result = _opened().process(_batch([ENGLISH, GERMAN, JAPANESE]))
    assert result.keep.tolist() == [True, False, False]
    assert result.rule.tolist() == [-1, 1, 1]
    assert (result.value > 0.9).all()
    assert (result.keep.dtype, result.rule.dtype, result.value.dtype) == (np.bool_, np.int16, np.float64)


def test_language_several_kept() -> None:
    result = _opened(keep=["ja", "de"]).process(_batch([ENGLISH, GERMAN, JAPANESE]))
    assert result.keep.tolist() == [False, True, True]


def test_language_unsure_is_dropped_by_its_score() -> None:
    batch = _batch(["ok"])
    score = _opened(keep=["en"], min_score=0.0).process(batch).value[0]
    assert 0 < score < 0.99
    for min_score, kept in ((score, True), (min(score + 0.0001, 1.0), False)):
        result = _opened(keep=["en"], min_score=min_score).process(batch)
        assert result.keep.tolist() == [kept]
        assert result.rule.tolist() == [-1 if kept else 2]
        assert result.value.tolist() == [score]


def test_language_text_without_words_is_in_no_language() -> None:
    result = _opened().process(_batch(["", " \n\t\r\n", "\0", "</s>", ENGLISH]))
    assert result.keep.tolist() == [False] * 4 + [True]
    assert result.rule.tolist() == [1] * 4 + [-1]
    assert result.value[:4].tolist() == [0.0] * 4


def test_language_newlines_and_end_marks_hide_nothing() -> None:
    lines = ENGLISH.replace(" ", "\n")
    result = _opened().process(_batch([ENGLISH, lines, "</s> " + ENGLISH]))
    assert len(set(result.value.tolist())) == 1


def test_language_only_the_first_characters_are_read() -> None:
    batch = _batch([ENGLISH + GERMAN * 9, JAPANESE + ENGLISH * 9])
    assert _opened(max_chars=len(ENGLISH)).process(batch).keep.tolist() == [True, False]
    assert _opened(keep=["ja"], max_chars=len(JAPANESE)).process(batch).keep.tolist() == [False, True]
    assert _opened(keep=["de"], max_chars=100_000).process(batch).keep.tolist() == [True, False]


def test_language_empty_batch_is_empty() -> None:
    result = _opened().process(_batch([]))
    assert [len(column) for column in (result.keep, result.rule, result.value)] == [0, 0, 0]


def test_language_sliced_batch_decides_as_the_whole() -> None:
    stage, batch = _opened(), _batch([ENGLISH, GERMAN, "", JAPANESE, ENGLISH])
    whole = stage.process(batch)
    parts = [stage.process(batch.slice(start, stop)) for start, stop in ((0, 1), (1, 4), (4, 5))]
    assert np.concatenate([part.value for part in parts]).tolist() == whole.value.tolist()
    assert np.concatenate([part.rule for part in parts]).tolist() == whole.rule.tolist()


@pytest.mark.parametrize("is_open", [False, True])
def test_language_pickled_stage_decides_the_same(is_open: bool) -> None:
    stage = _opened(keep=["de"])
    again = pickle.loads(pickle.dumps(stage if is_open else Language(keep=("de",))))
    assert again == Language(keep=("de",))
    batch = _batch([ENGLISH, GERMAN])
    assert again.process(batch).value.tolist() == stage.process(batch).value.tolist()
    assert stage.process(batch).keep.tolist() == [False, True]  # pickling took nothing from the one at hand


def test_language_unknown_code_is_refused_with_the_nearest() -> None:
    for options in ({"keep": ["de", "eng"]}, {"min_scores": {"eng": 0.5}}):
        with pytest.raises(
            ValueError, match=rf"{next(iter(options))}: the model knows no language 'eng'. Did you mean 'en'\? It knows: af,"
        ):
            Language.model_validate(options)


def test_language_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lid.ftz"
    path.write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"model: .*lid\.ftz is no fastText model"):
        Language(model=path)
    with pytest.raises(ValueError, match=r"model: .*absent\.ftz is no fastText model"):
        Language(model=tmp_path / "absent.ftz")


def test_language_own_model_is_an_input_file(tmp_path: Path) -> None:
    path = tmp_path / "copy.ftz"
    path.write_bytes(bundled_model().read_bytes())
    assert Language(model=path).input_files() == (str(path),)
    assert Language().input_files() == ()
    assert _opened(model=path).process(_batch([ENGLISH])).keep.tolist() == [True]


@pytest.mark.parametrize(
    "options", [{"min_scores": {"en": 1.5}}, {"min_score": 1.5}, {"max_chars": 0}, {"languages": ["en"]}, {"top_k": 0}]
)
def test_language_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Language.model_validate(options)


@pytest.mark.real
def test_language_labelled_sentences_are_told_apart(real_data: Path) -> None:
    with zstandard.open(real_data / "lang" / "lingua_sentences.jsonl.zst", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for number, line in enumerate(lines) if number % 10 == 0]
    result = _opened(min_score=0.5).process(_batch([row["text"] for row in rows]))
    is_english = np.array([row["lang"] == "en" for row in rows])
    assert result.keep[is_english].mean() > 0.9
    assert result.keep[~is_english].mean() < 0.01

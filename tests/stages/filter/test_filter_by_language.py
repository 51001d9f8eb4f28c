"""Filters that decide each document by the settings of its own language: as the filter of that language alone decides."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.stage import Filter, FilterResult
from datapipe.stage.documents import DocumentBatch
from stages.filter._thresholds.fineweb2 import TABLE, languages, settings_of
from stages.filter.fineweb_quality import FinewebQuality
from stages.filter.gopher_quality import GopherQuality
from stages.filter.gopher_repetition import GopherRepetition
from tests.support import corpora, runs
from tests.support.decisions import opened
from tests.support.global_stages import batch_of

KINDS = (GopherQuality, GopherRepetition, FinewebQuality)
BY_COLUMN: dict[str, Any] = {"language": {"column": "language"}}


def _stage(kind: type[Filter], **options: Any) -> Any:
    return opened(kind.model_validate(options))


def _text(rng: np.random.Generator, label: str) -> str:
    """A text of words of the language and others, with some lines again, about as long as the thresholds ask for."""
    words = [*settings_of(label).options.get("stop_words", ("the", "of")), "x" * int(rng.integers(1, 30)), "中文字", "…", "12"]
    lines = [" ".join(rng.choice(words, int(rng.integers(1, 12)))) + rng.choice(["", ".", "。"]) for _ in range(12)]
    return "\n".join(rng.choice(lines, int(rng.integers(1, 40))))


def _decisions(stage: Filter, result: FilterResult) -> np.ndarray:
    """What is decided and measured of each document, with the threshold of the rule that drops it."""
    limit = np.array([rule.limit for rule in stage.rules()])[result.rule] if result.limit is None else result.limit
    return np.column_stack([result.keep, result.rule, result.value, np.where(result.keep, 0, limit), *result.measured])


@pytest.mark.medium
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "given"), [(GopherQuality, {"max_words": 300}), (GopherRepetition, {}), (FinewebQuality, {})])
def test_every_language_in_one_batch_is_decided_as_alone(kind: type[Filter], given: dict[str, Any], every: int) -> None:
    rng = np.random.default_rng(5)
    codes = [*[*languages()][::every], "eng_Latn"]
    labels = rng.permutation(codes * 2)
    texts = [_text(rng, label) for label in labels]
    mixed = _stage(kind, **BY_COLUMN, **given)
    result = mixed.process(batch_of(texts, language=pa.array(labels)))
    found, alone = _decisions(mixed, result), np.empty((len(labels), 4 + len(result.measured)))
    for code in codes:
        rows, stage = np.flatnonzero(labels == code), kind.model_validate({"language": code, **given})
        alone[rows] = _decisions(stage, stage.process(batch_of([texts[row] for row in rows])))
    np.testing.assert_array_equal(found, alone)
    assert len(set(result.rule.tolist())) > 3
    assert result.columns["language_settings"].to_numpy().all()  # each has settings of its own


def test_languages_without_settings_have_those_of_their_script_and_others_the_default_and_both_are_counted() -> None:
    labels = ["de", "pt-BR", "zh-Hant-TW", "xxx_Latn", "deu_Cyrl", "xxx", "", None, "en-US"]
    found = [(settings.level, settings.code) for settings in map(settings_of, labels)]
    assert found[:3] == [("language", "deu_Latn"), ("language", "por_Latn"), ("language", "cmn_Hani")]
    assert found[3:5] == [("script", "Latn"), ("script", "Cyrl")]
    assert found[5:] == [("default", "")] * 3 + [("language", "eng_Latn")]
    assert settings_of("xxx_Jpan").options["max_top_2_gram"] == settings_of("ja").options["max_top_2_gram"]
    for kind in KINDS:
        column = pa.array(labels).dictionary_encode()
        result = _stage(kind, **BY_COLUMN).process(batch_of(["a text"] * len(labels), language=column))
        counts = {name: counted.to_pylist() for name, counted in result.columns.items()}
        assert counts == {
            "language_settings": [1, 1, 1, 0, 0, 0, 0, 0, 1],
            "script_settings": [0, 0, 0, 1, 1, 0, 0, 0, 0],
            "default_settings": [0, 0, 0, 0, 0, 1, 1, 1, 0],
        }
        assert kind.model_validate({"language": "de"}).counts == ()


def test_options_that_are_given_hold_in_every_language_and_differ_from_defaults_in_the_record() -> None:
    given = _stage(GopherQuality, **BY_COLUMN, max_mean_word_length=9.0, words="whitespace")
    free = _stage(GopherQuality, **BY_COLUMN)
    texts, languages_of_texts = ["ab " * 60, "abcdefghijk " * 60], pa.array(["de", "de"])
    limits = given.process(batch_of(texts, language=languages_of_texts)).limits
    assert limits[3].tolist() == [9, 9]
    assert free.process(batch_of(texts, language=languages_of_texts)).limits[3].tolist() == [15, 15]
    default = {"max_mean_word_length": free.max_mean_word_length}  # as its record has it already
    assert _stage(GopherQuality, **BY_COLUMN, **default).model_dump() != free.model_dump()
    assert free.columns_read() == {"language": "language"}


def test_words_that_stages_share_follow_the_documents_that_are_left() -> None:
    rng = np.random.default_rng(7)
    labels = [str(label) for label in rng.choice(["ja", "de", "th", "en"], 60)]
    batch = batch_of([_text(rng, label) for label in labels], language=pa.array(labels))
    repetition = _stage(GopherRepetition, **BY_COLUMN)
    _stage(GopherQuality, **BY_COLUMN).process(batch)
    keep = rng.random(60) < 0.5
    followed = repetition.process(batch.filter(keep))
    moved = batch.filter(keep).with_columns({"language": pa.array(rng.permutation(np.array(labels)[keep]))})
    for left, result in ((batch.filter(keep), followed), (moved, repetition.process(moved))):
        fresh = repetition.process(DocumentBatch(left.record))
        np.testing.assert_array_equal(result.measured, fresh.measured)


@pytest.mark.parametrize("language", [5, {}, {"colum": "language"}, ["de"]])
def test_what_is_neither_a_language_nor_a_column_is_refused(language: Any) -> None:
    with pytest.raises(ValueError, match=r"language: found .*, expected a language such as de, or \{column: NAME\}"):
        GopherQuality.model_validate({"language": language})


def test_a_column_without_any_language_is_decided_by_the_default() -> None:
    for column in (pa.nulls(2), pa.nulls(2, pa.string()), pa.array([None, None], pa.dictionary(pa.int32(), pa.large_string()))):
        result = _stage(GopherQuality, **BY_COLUMN).process(batch_of(["a", "b"], language=column))
        assert result.columns["default_settings"].to_pylist() == [1, 1]
    assert _stage(GopherQuality, **BY_COLUMN).process(batch_of([], language=pa.nulls(0))).keep.tolist() == []


def _run(folder: Path, rows: list[dict[str, Any]], keep: str, before: str = "") -> runs.Finished:
    corpora.write_jsonl(folder / "a.jsonl", rows)
    stages = f"stages:\n{before}  - filter.gopher_quality: {{language: {{column: language}}, min_words: 0}}\n"
    path = runs.write_mixture(folder, f"  web: {{path: {folder}/a.jsonl{keep}}}", stages, "tokenizer: none")
    return runs.run_mixture(path, make_engine=runs.InProcess)


@pytest.mark.medium
def test_a_column_of_other_names_is_warned_of_and_one_that_nothing_writes_ends_the_run_at_its_start(tmp_path: Path) -> None:
    rows = [{"text": "der Wert und das Wort von einem", "language": language} for language in ("German", "German", None, "de")]
    [warning] = [each for each in _run(tmp_path, rows, ", keep: [language]").warnings if each.kind == "unknown_languages"]
    assert "filter.gopher_quality: 3 of 4 documents have no language in the column 'language'" in warning.text
    label = "  - filter.language: {keep: [], top_k: 2}\n"
    assert not any(each.kind == "unknown_languages" for each in _run(tmp_path / "labelled", rows, "", label).warnings)
    unwritten = label.replace("[], top_k: 2", '["*"]')
    with pytest.raises(UserError, match=r"filter.gopher_quality \(language\): documents have no column 'language'"):
        _run(tmp_path / "unlabelled", rows, "", unwritten)


def test_a_column_that_holds_no_names_is_refused() -> None:
    batch = batch_of(["a"], language=pa.array([3]))
    with pytest.raises(UserError, match=r"filter.gopher_quality \(language\): the column 'language' holds int64"):
        _stage(GopherQuality, **BY_COLUMN).process(batch)


def test_the_update_script_writes_the_lines_that_the_table_has(tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / ".ci/fineweb2"))
    assert TABLE.read_text("utf-8").startswith(script["HEAD"])
    assignment = tmp_path / "tokenizer_assignment.csv"
    head = "code_3,code_1,script,default_code_1,default_script"
    rows = "est,et,Latn,FALSE,TRUE ekk,et,Latn,TRUE,TRUE ekk,et,Cyrl,TRUE,FALSE xyz,,Latn,FALSE,TRUE"
    assignment.write_text("\n".join([head, *rows.split(" ")]))
    names = script["names_of_codes"](assignment, {"ekk_Latn", "ekk_Cyrl"})
    assert names == {"ekk_Latn": ["ekk", "et", "est"], "ekk_Cyrl": []}
    grams = {"top_n_grams": [[2, 0.345], [3, 0.268], [4, 0.215]], "dup_n_grams": [[n, n / 100] for n in range(5, 11)]}
    numbers = dict(zip(script["NUMBERS"], [-1, 0.0345, 3, 13, 0.722]))
    settings = {**grams, **numbers, "language_score": 0.638, "dup_line_frac": 0.363, "stopwords": ["ja", "on kui", "#"]}
    line = script["line_of"]("ekk_Latn", names["ekk_Latn"], settings)
    assert line == "ekk_Latn ekk,et,est 638 363 345 268 215 50 60 70 80 90 100 -1000 34.5 3000 13000 722 ja #"

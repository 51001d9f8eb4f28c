"""Which languages pass, on generated texts; and the table of FineWeb-2's settings of languages, with the published values."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import zstandard

from datapipe.config.catalogue import build_stage
from datapipe.config.stage_use import parse_stage
from datapipe.errors import UserError
from datapipe.stage import FilterResult
from stages.filter._thresholds.fineweb2 import language_settings, languages, least_score, names_of
from stages.filter.language import Language, bundled_model
from tests.support.decisions import opened
from tests.support.fasttext_files import ONE_VS_ALL, SOFTMAX, Recipe
from tests.support.global_stages import batch_of

ENGLISH = "The children walked home from school and talked about what they had learned that day. "
GERMAN = "Die Kinder gingen von der Schule nach Hause und sprachen über das, was sie gelernt hatten. "
JAPANESE = "子供たちは学校から家に歩いて帰り、その日に学んだことについて話しました。"
KEPT, SHORT, LANGUAGE, LOW_SCORE = range(-1, 3)
"""Rules by their numbers."""


def _opened(**options: object) -> Language:
    return opened(Language.model_validate(options))


def _process(texts: list[str], **options: object) -> FilterResult:
    return Language.model_validate(options).process(batch_of(texts))  # opens its model itself, if nobody opened it


SHORTS = ["", "ok 12345 ###############", "Wörter.", ENGLISH, "日本語"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "texts", "rules"),
    [
        ({}, [ENGLISH, GERMAN, JAPANESE], [KEPT, LANGUAGE, LANGUAGE]),
        ({"keep": ["ja", "de"]}, [ENGLISH, GERMAN, JAPANESE], [LANGUAGE, KEPT, KEPT]),
        ({"keep": ["zh"]}, ["这是一个中文句子", "这是中文"], [KEPT, SHORT]),
        # text without words is in no language
        ({"min_letters": 0}, ["", " \n\t\r\n", "\0", "</s>", ENGLISH], [LANGUAGE] * 4 + [KEPT]),
        # only the first characters are read
        ({"max_chars": len(ENGLISH)}, [ENGLISH + GERMAN * 9, JAPANESE + ENGLISH * 9], [KEPT, LANGUAGE]),
        ({"keep": ["ja"], "max_chars": len(JAPANESE)}, [ENGLISH + GERMAN * 9, JAPANESE + ENGLISH * 9], [LANGUAGE, KEPT]),
        ({"keep": ["de"], "max_chars": 100_000}, [ENGLISH + GERMAN * 9, JAPANESE + ENGLISH * 9], [KEPT, LANGUAGE]),
        ({"max_chars": 100}, [ENGLISH * 3 + GERMAN * 3, GERMAN * 3 + ENGLISH * 3], [KEPT, LANGUAGE]),
        ({"min_letters": 7}, SHORTS, [SHORT, SHORT, SHORT, KEPT, LANGUAGE]),
        ({"min_letters": 6, "keep": ["de", "en"], "min_score": 0.0}, ["Wörter.", "Worte."], [KEPT, SHORT]),
    ],
)
def test_language_texts_are_decided_by_rule(options: dict[str, object], texts: list[str], rules: list[int]) -> None:
    assert _process(texts, **options).rule.tolist() == rules


CANONICAL = {
    "ko": "아이들은 학교에서 집까지 걸어가며 그날 무엇을 배웠는지 이야기했다. ",
    "vi": "Bọn trẻ đi bộ từ trường về nhà và kể cho nhau nghe những điều đã học trong ngày hôm ấy. ",
    "fr": "Les élèves rentrèrent à pied de l'école en parlant de ce qu'ils avaient étudié près du théâtre. ",
    "bn": "ছেলেমেয়েরা স্কুল থেকে হেঁটে বাড়ি ফিরল এবং সারাদিন কী শিখেছে তা নিয়ে কথা বলল। ",
}


@pytest.mark.parametrize("max_chars", [24, 25, 26, 80, 800])
@pytest.mark.parametrize("language", CANONICAL)
def test_language_of_every_canonical_form_is_the_same(language: str, max_chars: int) -> None:
    text = normalize("NFC", CANONICAL[language] * 20)
    stage = _opened(keep=[], mode="tag", write=True, max_chars=max_chars, min_letters=0)
    result = stage.process(batch_of([text, normalize("NFD", text)]))
    assert all(len(set(column.to_pylist())) == 1 for column in result.columns.values())
    assert all(np.array_equal(values[0], values[1], equal_nan=True) for values in result.measured)
    assert max_chars < 80 or result.columns["language"].to_pylist() == [language] * 2


def test_language_letters_behind_the_characters_that_are_read_do_not_count_in_any_form() -> None:
    text = CANONICAL["ko"][:7] + CANONICAL["fr"] * 9
    texts = [normalize("NFC", text), normalize("NFD", text)]
    assert _process(texts, min_letters=100, max_chars=7).value.tolist() == [18, 18]


@pytest.mark.medium
def test_language_unsure_is_dropped_by_its_score_or_that_of_its_language() -> None:
    texts, options = [ENGLISH, GERMAN, "ok"], {"keep": ["en", "de"], "min_letters": 0}
    scores = _process(texts, **options, min_score=0.0).value
    assert 0 < scores[2] < 0.99
    for row, name in ((2, "en"), (1, "de")):
        for limit, rule in ((scores[row], KEPT), (min(scores[row] + 1e-4, 1.0), LOW_SCORE)):
            result = _process(texts[row : row + 1], **options, min_score=limit)
            assert (result.rule.tolist(), result.value.tolist()) == ([rule], [scores[row]])
            result = _process(texts, **options, min_score=0.0, min_scores={name: limit})
            assert (result.rule[row], result.value[row]) == (rule, scores[row])
            assert result.limit is not None
            assert result.limit[row] == limit or rule == KEPT


def test_language_newlines_and_end_marks_hide_nothing_and_are_no_words() -> None:
    [score] = set(_process([ENGLISH, ENGLISH.replace(" ", "\n"), "</s> " + ENGLISH]).value.tolist())
    assert score > 0.9
    assert _process(["", " \n\t", "\0", "</s>"], min_letters=0).value.tolist() == [0] * 4


def test_language_own_model_is_an_input_file_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "copy.ftz"
    path.write_bytes(bundled_model().read_bytes())
    assert Language(model=path).input_files() == (str(path),)
    assert Language().input_files() == ()
    assert _process([ENGLISH], model=path).keep.tolist() == [True]
    (tmp_path / "lid.ftz").write_bytes(b"not a model")
    for name in ("lid.ftz", "absent.ftz"):
        with pytest.raises(ValueError, match=name):
            Language(model=tmp_path / name)


WRONG: list[dict[str, object]] = [
    *({"keep": keep} for keep in (["de", "eng"], ["deu_Latn"], ["__label__en"], ["*_Cyrl"], [])),
    *({"min_scores": scores} for scores in ({"eng": 0.5}, {"en": 1.5}, {"de": 0.5}, "fineweb-2")),
    *({"min_score": 1.5}, {"max_chars": 0}, {"languages": ["en"]}, {"top_k": 0}),
]


@pytest.mark.parametrize("options", WRONG)
def test_language_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Language.model_validate(options)


def test_language_wrong_code_names_its_line_of_the_mixture_and_the_nearest(tmp_path: Path) -> None:
    use = parse_stage({"filter.language": {"keep": ["eng"]}}).model_copy(update={"where": "mixture.yaml:7: stages[0]"})
    with pytest.raises(UserError, match=r"^mixture\.yaml:7: .*'eng'.*'en'"):
        build_stage(use)
    path = Recipe(labels=tuple(SENTENCES)).write(tmp_path / "lid.bin")
    for wrong, right in (("de", "deu_Latn"), ("en", "eng_Latn"), ("__label__ru", "rus_Cyrl"), ("bul_Cyrrl", "bul_Cyrl")):
        with pytest.raises(ValueError, match=f"'{wrong}'.*'{right}'"):
            Language(model=path, keep=(wrong,))


def test_language_short_texts_are_dropped_by_their_letters() -> None:
    result = _process(SHORTS, min_letters=7)
    assert result.value[:3].tolist() == [0, 2, 6]
    assert result.limit is not None
    assert result.limit[:3].tolist() == [7, 7, 7]
    assert _process([ENGLISH], min_letters=7, max_chars=6).value.tolist() == [5]  # only what is read counts


LETTERS = {
    "中文的句子很短": 21,
    "日本語のテスト": 9 + 8,
    "ｶﾀｶﾅー": 10,
    "한국어 문장": 15,
    "አማርኛ": 8,
    "हिन्दी भाषा": 10,  # with vowel marks and virama
    "ภาษาไทยนี้": 10,
    "d\u0301e\u0301ja\u0300": 4,
    "עִבְרִית العَرَبِيَّة": 12,
    "Русский язык": 11,
    "123 〇 ①½ ♥。": 0,
}


def test_language_letters_are_weighed_by_script() -> None:
    result = _process(list(LETTERS), min_letters=100)
    assert (result.rule == SHORT).all()
    assert dict(zip(LETTERS, result.value.tolist())) == LETTERS


def test_language_tag_measures_every_rule_of_texts_that_are_classified() -> None:
    result = _process([ENGLISH * 2 + GERMAN * 2, GERMAN], mode="tag", max_chars=80)
    letters, language, low_score = result.measured
    assert letters.tolist() == [sum(character.isalpha() for character in text[:80]) for text in (ENGLISH, GERMAN)]
    assert language.tolist() == low_score.tolist()
    assert all(np.isnan(one).all() for one in _process([ENGLISH], mode="tag", keep=[]).measured)


def test_language_labels_are_written_where_asked() -> None:
    texts = [GERMAN, "", ENGLISH, "ok"]
    assert not _process(texts).columns
    best = _process(texts, keep=[], write=True)
    assert best.keep.all()
    assert best.columns["language"].to_pylist()[:3] == ["de", None, "en"]
    assert best.columns["language_score"].to_pylist()[:3] == [best.value[0], None, best.value[2]]
    several = _process(texts, keep=[], write=True, top_k=3).columns
    languages, scores = (several[name].to_pylist() for name in ("languages", "language_scores"))
    assert [len(one) for one in languages] == [len(one) for one in scores]
    assert (len(languages[1]), len(languages[3])) == (0, 3)
    assert [one[0] if one else None for one in languages] == best.columns["language"].to_pylist()
    assert all(several[name].equals(best.columns[name]) for name in best.columns)
    assert _process(texts, keep=[], top_k=3).columns.keys() == several.keys()
    assert all(one == sorted(one, reverse=True) and sum(one) <= 1.001 and min(one, default=1) > 0 for one in scores)


SENTENCES = {
    "eng_Latn": ENGLISH,
    "deu_Latn": GERMAN,
    "rus_Cyrl": "Дети шли домой из школы и говорили о том, что они узнали в этот день. ",
    "bul_Cyrl": "Децата се прибираха от училище и си говореха за това, което са научили през деня. ",
    "aai_Latn": "Kek sabuw naatu orot boro hina ana bar merar isan iti tur etei hi. ",
}
TEXTS = [f"{text} {number}" for number, text in enumerate([*SENTENCES.values(), JAPANESE] * 5)]


@pytest.mark.parametrize("loss", [SOFTMAX, ONE_VS_ALL])
def test_language_own_labels_of_a_model_are_kept_by_name_and_by_form(tmp_path: Path, loss: int) -> None:
    """With labels as GlotLID names them."""
    model = Recipe(labels=tuple(SENTENCES), loss=loss, seed=3, scale=3.0).write(tmp_path / "lid.bin")
    options = {"model": model, "min_score": 0.0, "min_letters": 0}
    every = _process(TEXTS, **options, keep=["*"], top_k=3)
    labels = every.columns["language"].to_pylist()
    assert every.keep.all() and len(set(labels)) == 3
    assert [listed[0] for listed in every.columns["languages"].to_pylist()] == labels
    for keep in (["deu_Latn"], ["*_Cyrl"], ["aai_Latn", "b*"]):
        kept = _process(TEXTS, **options, keep=keep).keep.tolist()
        assert kept == [any(fnmatchcase(label, pattern) for pattern in keep) for label in labels]
    result = _process(TEXTS, **options | {"min_score": 0.65}, keep=["*"], min_scores="fineweb-2", write=True)
    least = np.array([{"eng_Latn": 0.65, "deu_Latn": 0.821, "aai_Latn": 0.755}.get(label, 0.9) for label in labels])
    assert result.keep.tolist() == (every.value >= least).tolist()
    assert 0 < result.keep.sum() < len(TEXTS)
    assert result.limit is not None
    assert result.limit[~result.keep].tolist() == least[~result.keep].tolist()


def _sentences(real_data: Path) -> tuple[list[str], np.ndarray]:
    """Labelled sentences and their languages, as the model names them."""
    with zstandard.open(real_data / "lang/lingua_sentences.jsonl.zst", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows], np.array([{"nb": "no"}.get(row["lang"], row["lang"]) for row in rows])


@pytest.mark.real
def test_language_sentences_of_any_script_are_long_enough_and_english_is_kept(real_data: Path) -> None:
    texts, languages = _sentences(real_data)
    result = _opened(min_score=0.5).process(batch_of(texts))
    found = _opened(keep=[], write=True).process(batch_of(texts)).columns["language"].to_pylist()
    assert (np.array(found) == languages).mean() > 0.7948  # of all languages that the model may name
    assert result.keep[languages == "en"].mean() > 0.97
    assert result.keep[languages != "en"].mean() < 0.003
    shares = {name: (result.rule == SHORT)[languages == name].mean() for name in ("zh", "ja", "ko", "hi", "th", "en")}
    assert max(shares.values()) < 0.05, shares


def test_fineweb2_settings_of_languages_are_limits_of_options() -> None:
    assert len(languages()) == 1929
    for code in languages():
        one = language_settings(code).options
        limits = [limit for name, limit in one.items() if name not in ("stop_words", "words")]
        assert len(limits) == 15
        assert min(limits) >= 0
        assert one["max_duplicate_lines"] > 0
        assert one["min_ended_lines"] < 0.7
        assert one["min_letter_words"] <= 1
        assert 0 <= one["min_mean_word_length"] < one["max_mean_word_length"]
        assert 7 <= len(one["stop_words"]) == len(set(one["stop_words"]))
        assert all([word] == word.split() and "\\" not in word for word in one["stop_words"])


def _grams(one: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    return [one[f"max_top_{n}_gram"] for n in (2, 3, 4)], [one[f"max_duplicate_{n}_grams"] for n in range(5, 11)]


def test_fineweb2_languages_have_their_names_and_least_scores() -> None:
    codes = {"de": "deu_Latn", "deu": "deu_Latn", "no": "nob_Latn", "est": "ekk_Latn", "ara": "arb_Arab", "zho": "cmn_Hani"}
    assert all(language_settings(name) is language_settings(code) for name, code in codes.items())
    assert set(names_of("de")) == {"de", "deu", "deu_Latn"}
    assert set(names_of("eng_Latn")) == {"en", "eng", "eng_Latn"}
    assert names_of("xx") == names_of("-") == []
    with pytest.raises(UserError, match=r"'deu_Latin'.*'deu_Latn'.*1,930"):
        language_settings("deu_Latin")
    labels = ("aai_Latn", "abk_Cyrl", "eng_Latn", "por_Latn", "xxx_Latn")
    assert [least_score(label, 0.65) for label in labels] == [0.755, 0.812, 0.65, 0.799, 0.3]


def test_fineweb2_languages_have_the_published_values() -> None:
    one = language_settings("pt").options
    assert one["max_duplicate_lines"] == 0.287
    assert _grams(one) == ([0.371, 0.191, 0.163], [0.163, 0.153, 0.141, 0.13, 0.119, 0.108])
    assert (one["min_ended_lines"], one["max_newlines_per_word"]) == (0.077, 0.186)
    assert (one["min_mean_word_length"], one["max_mean_word_length"], one["min_letter_words"]) == (3, 13, 0.814)
    assert " ".join(one["stop_words"]) == "de a e o em do da que um no uma com para na é foi"
    telugu, mandarin = language_settings("te").options, language_settings("zh").options
    assert (telugu["min_mean_word_length"], telugu["max_mean_word_length"], telugu["max_top_2_gram"]) == (4, 68, 0.21)
    assert (mandarin["stop_words"][:3], mandarin["max_newlines_per_word"]) == (("的", "年", "在"), 0.178)

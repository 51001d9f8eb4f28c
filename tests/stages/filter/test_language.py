"""Which languages pass, on generated texts, and the result for texts without words."""

from __future__ import annotations

import json
import pickle
from fnmatch import fnmatchcase
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from datapipe import columns
from datapipe.catalogue import build_stage
from datapipe.classifier.fasttext_training import FastTextTrainer
from datapipe.classifier.training import Examples
from datapipe.config.stage_use import parse_stage
from datapipe.errors import UserError
from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.models.fasttext import LibraryModel, open_model
from datapipe.stage.models.fasttext_file import read_labels
from stages.filter.language import Language, bundled_model
from tests.support.fasttext_files import NEGATIVES, TREE, Recipe

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
    result = stage.process(_batch([text, normalize("NFD", text)]))
    assert all(len(set(column.to_pylist())) == 1 for column in result.columns.values())
    assert all(np.array_equal(values[0], values[1], equal_nan=True) for values in result.measured)
    assert max_chars < 80 or result.columns["language"].to_pylist() == [language] * 2


def test_language_letters_behind_the_characters_that_are_read_do_not_count_in_any_form() -> None:
    text = CANONICAL["ko"][:7] + CANONICAL["fr"] * 9
    stage = _opened(min_letters=100, max_chars=7)
    values = stage.process(_batch([normalize("NFC", text), normalize("NFD", text)])).value.tolist()
    assert values == [18, 18]


def test_language_unsure_is_dropped_by_its_score() -> None:
    batch = _batch(["ok"])
    score = _opened(keep=["en"], min_score=0.0, min_letters=0).process(batch).value[0]
    assert 0 < score < 0.99
    for min_score, kept in ((score, True), (min(score + 0.0001, 1.0), False)):
        result = _opened(keep=["en"], min_score=min_score, min_letters=0).process(batch)
        assert result.keep.tolist() == [kept]
        assert result.rule.tolist() == [-1 if kept else 2]
        assert result.value.tolist() == [score]


def test_language_text_without_words_is_in_no_language() -> None:
    result = _opened(min_letters=0).process(_batch(["", " \n\t\r\n", "\0", "</s>", ENGLISH]))
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
    assert stage.process(batch).keep.tolist() == [False, True]  # pickling leaves the pickled stage open


def test_language_unknown_code_is_refused_with_the_nearest() -> None:
    for options in ({"keep": ["de", "eng"]}, {"min_scores": {"eng": 0.5}}):
        with pytest.raises(
            ValueError,
            match=rf"{next(iter(options))}: the model knows no language 'eng'. Did you mean 'en'\? Expected one of: af,",
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
    "options",
    [
        {"min_scores": {"en": 1.5}},
        {"min_scores": {"de": 0.5}},
        {"min_score": 1.5},
        {"max_chars": 0},
        {"languages": ["en"]},
        {"top_k": 0},
        {"keep": []},
        {"keep": ["__label__en"]},
        {"keep": ["*_Cyrl"]},
        {"min_scores": "fineweb-2"},
    ],
)
def test_language_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Language.model_validate(options)


def test_language_wrong_code_in_a_mixture_names_its_line_of_the_mixture() -> None:
    options = {"filter.language": {"keep": ["eng"]}}
    use = parse_stage(options).model_copy(update={"where": "mixture.yaml:7: stages[0]"})
    with pytest.raises(UserError, match=r"^mixture\.yaml:7: stages\[0\]\.filter\.language: keep: .* Did you mean 'en'\?"):
        build_stage(use)


def test_language_own_scores_of_languages_are_limits() -> None:
    batch = _batch([ENGLISH, GERMAN])
    score = _opened(keep=["en", "de"], min_score=0.0).process(batch).value[1]
    for limit, kept in ((score, True), (score + 1e-4, False)):
        result = _opened(keep=["en", "de"], min_score=0.5, min_scores={"de": min(limit, 1.0)}).process(batch)
        assert result.keep.tolist() == [True, kept]
        assert result.limit is not None
        assert result.limit[1] == min(limit, 1.0) or kept


def test_language_short_texts_are_dropped_or_kept_unclassified() -> None:
    batch = _batch(["", "ok 12345 ###############", "Wörter.", ENGLISH, "日本語"])
    result = _opened(min_letters=7).process(batch)
    assert result.rule.tolist() == [0, 0, 0, -1, 1]
    assert result.value[:3].tolist() == [0, 2, 6]
    assert result.limit is not None
    assert result.limit[:3].tolist() == [7, 7, 7]
    assert _opened(min_letters=7, short="keep").process(batch).rule.tolist() == [-1, -1, -1, -1, 1]
    assert _opened(min_letters=7, max_chars=6).process(_batch([ENGLISH])).value.tolist() == [5]  # only what is read counts


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("中文的句子很短", 21),
        ("日本語のテスト", 9 + 8),
        ("ｶﾀｶﾅー", 10),
        ("한국어 문장", 15),
        ("አማርኛ", 8),
        ("हिन्दी भाषा", 10),  # with vowel marks and virama
        ("ภาษาไทยนี้", 10),
        ("d\u0301e\u0301ja\u0300", 4),
        ("עִבְרִית العَرَبِيَّة", 12),
        ("Русский язык", 11),
        ("123 〇 ①½ ♥。", 0),
    ],
)
def test_language_letters_are_weighed_by_script(text: str, letters: int) -> None:
    result = _opened(min_letters=100).process(_batch([text]))
    assert result.rule.tolist() == [0]
    assert result.value.tolist() == [letters]


def test_language_seven_characters_of_chinese_are_enough() -> None:
    assert _opened(keep=["zh"]).process(_batch(["这是一个中文句子", "这是中文"])).rule.tolist() == [-1, 0]


@pytest.mark.real
def test_language_few_sentences_of_any_script_are_too_short(real_data: Path) -> None:
    texts, gold = _labelled(real_data, "lingua_sentences")
    is_short = _opened().process(_batch(texts)).rule == 0
    shares = {language: is_short[np.array(gold) == language].mean() for language in ("zh", "ja", "ko", "hi", "th", "en")}
    assert max(shares.values()) < 0.05, shares


def test_language_close_second_is_dropped_by_its_lead() -> None:
    batch = _batch([ENGLISH, GERMAN, (ENGLISH + GERMAN) * 3])
    lead = _opened(keep=["en", "de"], mode="tag").process(batch).measured[3]
    result = _opened(keep=["en", "de"], min_score=0.0, min_lead=0.9).process(batch)
    assert result.rule.tolist() == [-1, -1, 3]
    assert result.value[2] == lead[2] < 0.9 < lead[0]


def test_language_other_language_at_the_end_is_dropped() -> None:
    texts = [ENGLISH * 6, ENGLISH * 3 + GERMAN * 3, ENGLISH + GERMAN, GERMAN * 3 + ENGLISH * 3]
    result = _opened(max_chars=100, max_other_score=0.5).process(_batch(texts))
    assert result.rule.tolist() == [-1, 4, -1, 1]  # the third has not twice as many characters
    assert result.value[1] > 0.5
    assert _opened(max_chars=100).process(_batch(texts)).rule.tolist() == [-1, -1, -1, 1]


def test_language_tag_measures_every_rule() -> None:
    result = _opened(mode="tag", max_chars=80).process(_batch([ENGLISH * 2 + GERMAN * 2, GERMAN]))
    letters, language, low_score, lead, other = result.measured
    assert letters.tolist() == [sum(character.isalpha() for character in text[:80]) for text in (ENGLISH, GERMAN)]
    assert language.tolist() == low_score.tolist()
    assert ((lead > 0) & (lead <= language)).all()
    assert other[0] > 0.5
    assert other[1] == 0


def test_language_labels_are_written_where_asked() -> None:
    batch = _batch([GERMAN, "", ENGLISH])
    assert not _opened().process(batch).columns
    result = _opened(keep=[], write=True).process(batch)
    assert result.keep.all()
    assert result.columns["language"].to_pylist() == ["de", None, "en"]
    assert result.columns["language_score"].to_pylist() == [result.value[0], None, result.value[2]]


def test_language_best_languages_are_written_as_lists() -> None:
    batch = _batch([GERMAN, "", ENGLISH, "ok"])
    best = _opened(keep=[], write=True).process(batch).columns
    result = _opened(keep=[], write=True, top_k=3).process(batch).columns
    languages, scores = (result[name].to_pylist() for name in ("languages", "language_scores"))
    assert [len(one) for one in languages] == [len(one) for one in scores]
    assert (len(languages[1]), len(languages[3])) == (0, 3)
    assert [one[0] if one else None for one in languages] == best["language"].to_pylist()
    assert all(result[name].equals(best[name]) for name in best)
    assert _opened(keep=[], top_k=3).process(batch).columns.keys() == result.keys()
    assert all(one == sorted(one, reverse=True) and sum(one) <= 1.001 and min(one, default=1) > 0 for one in scores)


SENTENCES = {
    "eng_Latn": ENGLISH,
    "deu_Latn": GERMAN,
    "rus_Cyrl": "Дети шли домой из школы и говорили о том, что они узнали в этот день. ",
    "bul_Cyrl": "Децата се прибираха от училище и си говореха за това, което са научили през деня. ",
    "aai_Latn": "Kek sabuw naatu orot boro hina ana bar merar isan iti tur etei hi. ",
}


def _trained(path: Path, loss: str, dim: int, buckets: int) -> Path:
    """A small model with labels as GlotLID names them."""
    texts, targets = list[str](), list[float]()
    for number, sentence in enumerate(SENTENCES.values()):
        words = sentence.split()
        texts += [" ".join(words[start : start + 6]) for start in range(len(words) - 5)]
        targets += [float(number)] * (len(words) - 5)
    examples = Examples(
        texts=pa.array(texts, pa.large_string()),
        targets=np.array(targets),
        labels=tuple(SENTENCES),
        weights=np.ones(len(texts)),
    )
    trainer = FastTextTrainer.model_validate(
        {"dim": dim, "epochs": 30, "min_char_ngram": 2, "max_char_ngram": 3, "buckets": buckets, "loss": loss}
    )
    path.write_bytes(trainer.train(examples))
    return path


@pytest.mark.parametrize(("loss", "dim", "buckets"), [("softmax", 8, 500), ("ova", 16, 2000)])
def test_language_own_labels_of_a_trained_model_are_kept_by_name_and_by_form(
    tmp_path: Path, loss: str, dim: int, buckets: int
) -> None:
    model, batch = _trained(tmp_path / "lid.bin", loss, dim, buckets), _batch(list(SENTENCES.values()))
    every = _opened(model=model, keep=["*"], min_score=0.0, top_k=3).process(batch)
    assert every.keep.all()
    assert every.columns["language"].to_pylist() == list(SENTENCES)
    assert [len(listed) for listed in every.columns["languages"].to_pylist()] == [3] * len(SENTENCES)
    for keep in (["deu_Latn"], ["*_Cyrl"], ["aai_Latn", "b*"]):
        kept = _opened(model=model, keep=keep, min_score=0.0).process(batch).keep.tolist()
        assert kept == [any(fnmatchcase(label, pattern) for pattern in keep) for label in SENTENCES]


def test_language_fineweb2_scores_are_the_limits_of_labels(tmp_path: Path) -> None:
    model, batch = _trained(tmp_path / "lid.bin", "softmax", 8, 500), _batch(["the школы", *SENTENCES.values()])
    result = _opened(model=model, keep=["*"], min_score=0.65, min_scores="fineweb-2", min_letters=0, mode="tag").process(batch)
    least = {"eng_Latn": 0.65, "deu_Latn": 0.821, "rus_Cyrl": 0.9, "bul_Cyrl": 0.9, "aai_Latn": 0.755}
    labels, scores = (result.columns[name].to_pylist() for name in ("language", "language_score"))
    assert result.keep.tolist() == [score >= least[label] for label, score in zip(labels, scores)]
    assert not result.keep.all()
    assert result.limit is not None
    assert [limit for limit, keep in zip(result.limit, result.keep) if not keep] == [
        least[label] for label, keep in zip(labels, result.keep) if not keep
    ]


@pytest.mark.parametrize("loss", [TREE, NEGATIVES])
def test_language_models_of_other_losses_give_what_the_library_gives(tmp_path: Path, loss: int) -> None:
    recipe = Recipe(labels=tuple(SENTENCES), loss=loss, dim=5, num_buckets=77, chars=(1, 5), longest_run=2, scale=3.0)
    path, batch = recipe.write(tmp_path / "lid.bin"), _batch([*SENTENCES.values(), "ok"])
    found = _opened(model=path, keep=[], top_k=2, min_letters=0).process(batch).columns
    offsets, data = batch.buffers
    names, scores = LibraryModel(path, read_labels(path), "as the oracle").best(offsets[:-1], offsets[1:].copy(), data, 2)
    assert found["language"].to_pylist() == [read_labels(path)[name] for name in names[:, 0]]
    assert found["language_score"].to_pylist() == scores[:, 0].tolist()


def test_language_codes_of_another_model_are_refused_with_the_right_ones(tmp_path: Path) -> None:
    path = Recipe(labels=tuple(SENTENCES)).write(tmp_path / "lid.bin")
    for wrong, right in (("de", "deu_Latn"), ("en", "eng_Latn"), ("__label__ru", "rus_Cyrl"), ("bul_Cyrrl", "bul_Cyrl")):
        with pytest.raises(ValueError, match=f"no language '{wrong}'. Did you mean '{right}'"):
            Language(model=path, keep=(wrong,))
    with pytest.raises(ValueError, match=r"no language 'deu_Latn'\. Did you mean 'de'"):
        Language(keep=("deu_Latn",))
    with pytest.raises(ValueError, match="fineweb-2 has scores of GlotLID's labels, such as deu_Latn, and the model has 'af'"):
        Language(min_scores="fineweb-2")


REAL_SHARES = {"lingua_sentences": 0.7953, "lingua_single_words": 0.4596, "udhr": 0.731}
"""The share of texts that lid.176.ftz classifies correctly; of the Declaration 800 characters, in languages the model knows."""


def _labelled(real_data: Path, name: str) -> tuple[list[str], list[str]]:
    """Texts and their languages, as the model names them; of the Declaration only those in languages that it knows."""
    with zstandard.open(real_data / "lang" / f"{name}.jsonl.zst", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    gold = [row["bcp47"].partition("-")[0] if name == "udhr" else row["lang"] for row in rows]
    known = set(read_labels(bundled_model())) if name == "udhr" else set(gold)
    pairs = [(row["text"], {"nb": "no"}.get(one, one)) for row, one in zip(rows, gold) if one in known]
    return [text for text, _ in pairs], [one for _, one in pairs]


@pytest.mark.real
@pytest.mark.parametrize("name", REAL_SHARES)
def test_language_labelled_texts_are_classified_as_well_as_before(name: str, real_data: Path) -> None:
    texts, gold = _labelled(real_data, name)
    found = _opened(keep=[], write=True).process(_batch(texts)).columns["language"].to_pylist()
    right = np.mean([one == other for one, other in zip(found, gold, strict=True)])
    assert right > REAL_SHARES[name] - 0.0005


@pytest.mark.real
@pytest.mark.parametrize("name", REAL_SHARES)
def test_language_labelled_texts_get_what_the_library_gives(name: str, real_data: Path) -> None:
    texts, _ = _labelled(real_data, name)
    model = open_model(bundled_model())
    offsets, data = _batch(texts).buffers
    library = LibraryModel(bundled_model(), model.labels, "as the oracle")
    found, expected = (one.best(offsets[:-1], offsets[1:].copy(), data, 1) for one in (model, library))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.real
def test_language_english_is_kept_and_little_else(real_data: Path) -> None:
    texts, gold = _labelled(real_data, "lingua_sentences")
    result = _opened(min_score=0.5).process(_batch(texts))
    is_english = np.array(gold) == "en"
    assert result.keep[is_english].mean() > 0.97
    assert result.keep[~is_english].mean() < 0.003


def test_language_unclassified_texts_have_no_measures():
    short_kept = _opened(mode="tag", short="keep", keep=["en"]).process(_batch(["Hi!", ENGLISH]))
    assert [np.isnan(one).tolist() for one in short_kept.measured] == [[True, True], *[[True, False]] * 4]
    unjudged = _opened(mode="tag", keep=[]).process(_batch([ENGLISH]))
    assert all(np.isnan(one).all() for one in unjudged.measured)

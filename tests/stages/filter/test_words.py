"""The option `words: dictionary` of filters: scripts with spaces as before, others by ICU, which is part of the fingerprint."""

import numpy as np
import pytest

from datapipe.config.catalogue import libraries_of
from datapipe.errors import UserError
from datapipe.kernels.text.words import Words
from datapipe.stage.segmentation.dictionary_words import dictionary_words
from datapipe.stage.segmentation.english_words import english_words
from stages.dedup.minhash import Minhash
from stages.filter.gopher_quality import GopherQuality
from stages.filter.gopher_repetition import GopherRepetition
from tests.support.decisions import decision
from tests.support.global_stages import batch_of

WITH_SPACES = ["Don't stop (so): U.S. 3.5%…", "Ελληνικά, це — «мова»; עברית", "हिन्दी में। e\u0301\u200d", "한국어.", "", " \n"]
SENTENCE = "东京是日本的首都，也是世界上人口最多的城市之一。"


def words_in(words: Words, data: np.ndarray) -> list[str]:
    return [data[start : start + size].tobytes().decode() for start, size in zip(words.starts, words.lengths)]


def test_words_of_scripts_with_spaces_are_those_of_english() -> None:
    batch = batch_of(WITH_SPACES)
    for ours, english in zip(dictionary_words(batch), english_words(batch), strict=True):
        np.testing.assert_array_equal(ours, english)


def test_signs_beside_words_of_a_dictionary_are_words_as_in_english() -> None:
    batch = batch_of(["「はい、don't」 2024年3.5%", SENTENCE])
    assert words_in(dictionary_words(batch), batch.buffers[1]) == [
        *("「", "はい", "、", "do", "n't", "」", "2024", "年", "3.5", "%"),
        *("东京", "是", "日本", "的", "首都", "，", "也是", "世界上", "人口", "最多", "的", "城市", "之一", "。"),
    ]


def test_gopher_rules_count_the_words_of_a_dictionary() -> None:
    chinese = {"language": "zh", "min_words": 12, "max_words": 12}
    assert decision(GopherQuality, chinese, SENTENCE)[0] is None
    assert decision(GopherQuality, {**chinese, "words": "unicode"}, SENTENCE)[0] == "too_many_words"
    repeated = {"words": "dictionary", "max_duplicate_5_grams": 0.5}
    assert decision(GopherRepetition, repeated, SENTENCE * 3)[0] == "top_2_gram"


@pytest.mark.parametrize(
    ("stage", "needs"),
    [
        (GopherQuality.model_validate({"language": "zh"}), True),
        (GopherQuality.model_validate({"language": {"column": "language"}}), True),
        (GopherQuality.model_validate({"language": {"column": "language"}, "words": "english"}), False),
        (GopherQuality.model_validate({"language": "de"}), False),
        (GopherRepetition(words="dictionary"), True),
        (Minhash(), False),
        (Minhash(shingle="dictionary"), True),
    ],
)
def test_stages_that_use_the_dictionaries_need_icu(monkeypatch: pytest.MonkeyPatch, stage: GopherQuality, needs: bool) -> None:
    assert ("icu4py" in libraries_of(stage)) == needs
    monkeypatch.setattr("datapipe.machine.libraries.installed_version", lambda name: "none" if name == "icu4py" else "1")
    if needs:
        with pytest.raises(UserError, match="needs icu4py, which is not installed"):
            libraries_of(stage)

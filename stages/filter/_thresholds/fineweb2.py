"""The settings that FineWeb-2 published for each language, for filters with an option `language`.

    language_settings("de")  ->  {"max_duplicate_lines": 0.263, ..., "stop_words": ("der", ...)}  `fineweb2.txt`
    least_score("deu_Latn", 0.65)  ->  0.821                                                      `fineweb2_scores.txt`

Source: `configs/<code>.yml` of github.com/huggingface/fineweb-2, every value and every stop word as published at commit
05e6729567a5df985fbd814e862c48f796feb09f, or, where a file could not be read there, d331bee82ee206aebbaba04db4283154291c1c74.
The commits c7004ff and baedee4 hold other thresholds, found by another method. Without a file are English, whose settings are
the defaults of the filters, and Turkish. The least scores of 1,929 languages, from 0.3 to 0.9, are `language_score` of all
files at commit d0defb2; a label without a file has 0.3, English that of FineWeb.

The published pipeline (`fineweb-2-pipeline.py`) adds rules that are the same for every language: two stop words, at most 0.1 of
the characters in duplicate lines, no rule on short lines, and of the repetition rules none on paragraphs and none on characters
in duplicate lines. A limit of 0 for lines that end in punctuation switches that rule off. FineWeb-2's names of the options:
`dup_line_frac`, `top_n_grams`, `dup_n_grams`, `line_punct_thr`, `new_line_ratio`, `min_avg_word_length`, `max_avg_word_length`,
and `max_non_alpha_words_ratio`, which is the opposite of its name: `min_letter_words`.

The limits on words were measured with a word segmenter for each language. Words separated by white space replace it in most
languages, but not in cmn, jpn and tha, which write no spaces, and less so in kor, whose stop words are endings inside words.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from datapipe.errors import UserError, suggest

SETTINGS, SCORES = (Path(__file__).with_name(name) for name in ("fineweb2.txt", "fineweb2_scores.txt"))
"""The published numbers and stop words, and the least scores."""

_LIMITS = (
    "max_duplicate_lines",
    *(f"max_top_{n}_gram" for n in range(2, 5)),
    *(f"max_duplicate_{n}_grams" for n in range(5, 11)),
    *("min_ended_lines", "max_newlines_per_word", "min_mean_word_length", "max_mean_word_length", "min_letter_words"),
)
"""The options of filters, in the order of the columns."""

_WITHOUT_SPACES = ("Hani", "Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr")
"""Scripts that separate words by no space: their words are those of Unicode, of others words and signs."""

_LEAST_SCORE = 0.3

_MACROLANGUAGES = {"ara": "arb", "est": "ekk", "lav": "lvs", "msa": "zsm", "no": "nob", "nor": "nob", "zho": "cmn"}
"""Codes of macrolanguages, and the language of the table that each stands for."""
_ENGLISH = ("en", "eng", "eng_Latn")


def language_settings(language: str) -> Mapping[str, Any]:
    """The options that a language ("deu_Latn", "deu" or "de") decides. Raises UserError."""
    known = _codes()
    if language not in known:
        raise UserError(
            f"FineWeb-2 has no settings for the language '{language}'.{suggest(language, known)} "
            f"Expected one of: {', '.join(languages())}; or a code without the script (deu), or of ISO 639-1 (de)."
        )
    return _settings()[known[language]]


def names_of(language: str) -> list[str]:
    """All codes of a language by one of them: for "de" also deu and deu_Latn; none for an unknown code."""
    known = _codes() | dict.fromkeys(_ENGLISH, "")
    return [name for name, code in known.items() if code == known.get(language)]


def languages() -> list[str]:
    """The code of every language in the table, sorted."""
    return sorted(_settings())


@lru_cache(maxsize=1)
def _codes() -> dict[str, str]:
    codes: dict[str, str] = {}
    for code, short, *_ in map(str.split, _lines(SETTINGS)[::2]):
        codes |= dict.fromkeys((code, code.partition("_")[0], short), code)
    return codes | {name: codes[code] for name, code in _MACROLANGUAGES.items()}


@lru_cache(maxsize=1)
def _settings() -> dict[str, Mapping[str, Any]]:
    lines, settings = _lines(SETTINGS), dict[str, Mapping[str, Any]]()
    for numbers, stop_words in zip(lines[::2], lines[1::2], strict=True):
        code, _, *limits = numbers.split()
        words = "unicode" if code.partition("_")[2] in _WITHOUT_SPACES else "english"
        of_limits = dict(zip(_LIMITS, map(float, limits), strict=True))
        settings[code] = {**of_limits, "stop_words": tuple(stop_words.split()), "words": words}
    return settings


def least_score(label: str, english: float) -> float:
    """The least score of a language by its label, ISO 639-3 and script; `english` for English."""
    return english if label == "eng_Latn" else _scores().get(label, _LEAST_SCORE)


@lru_cache(maxsize=1)
def _scores() -> dict[str, float]:
    scores, score = dict[str, float](), _LEAST_SCORE
    for word in " ".join(_lines(SCORES)).split():
        if word[0].isdigit():
            score = float(word)
        else:
            scores[word if "_" in word else word + "_Latn"] = score
    return scores


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]

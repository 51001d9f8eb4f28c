"""The settings that FineWeb-2 published for each language, for filters with an option `language`.

    language_settings("de")  ->  Settings(code="deu_Latn", max_duplicate_lines=0.263, ...)        `fineweb2.txt`
    least_score("deu_Latn", 0.65)  ->  0.821                                                      `fineweb2_scores.txt`

Source: `configs/<code>.yml` of github.com/huggingface/fineweb-2, every value and every stop word as published at commit
05e6729567a5df985fbd814e862c48f796feb09f, or, where a file could not be read there, d331bee82ee206aebbaba04db4283154291c1c74.
The commits c7004ff and baedee4 hold other thresholds, found by another method. English has no file: FineWeb's own settings are
the defaults of the filters. Turkish is missing, since only the other commits could be read. The least scores of 1,929 languages
are `language_score` of all files at commit d0defb2. They lie between 0.3 and 0.9. 1,102 labels of GlotLID have 0.3, and here so
do labels without a file, but for English, which FineWeb holds.

The published pipeline (`fineweb-2-pipeline.py`) adds rules that are the same for every language: two stop words, at most 0.1 of
the characters in duplicate lines, no rule on short lines, and of the repetition rules none on paragraphs and none on characters
in duplicate lines. A limit of 0 for lines that end in punctuation switches that rule off.

The limits on words were measured with a word segmenter for each language. Words separated by white space are a good
replacement for most languages, but not for cmn, jpn and tha, which write no spaces, and less so for kor, whose stop words are
endings inside words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from datapipe.errors import UserError, suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The limits of FineWeb-2 for one language. Shares are fractions of 1; a value equal to a limit passes.

    Attributes:
        code: ISO 639-3 and script, as in GlotLID: "deu_Latn".
        max_duplicate_lines: share of lines that repeat an earlier one (`dup_line_frac`).
        max_top_n_grams: share of characters in the most frequent 2-, 3- and 4-gram (`top_n_grams`).
        max_duplicate_n_grams: share of characters in repeated 5-, 6-, ... 10-grams (`dup_n_grams`).
        min_punctuation_lines: share of lines that end in punctuation (`line_punct_thr`).
        max_newline_ratio: newlines for each word (`new_line_ratio`).
        min_mean_word_length: in characters (`min_avg_word_length`).
        max_mean_word_length: in characters (`max_avg_word_length`).
        min_letter_words: share of words with a letter (`max_non_alpha_words_ratio`, a name for the opposite).
        stop_words: stop words, of which two must occur (`stopwords`).
    """

    code: str
    max_duplicate_lines: float
    max_top_n_grams: tuple[float, float, float]
    max_duplicate_n_grams: tuple[float, float, float, float, float, float]
    min_punctuation_lines: float
    max_newline_ratio: float
    min_mean_word_length: int
    max_mean_word_length: int
    min_letter_words: float
    stop_words: tuple[str, ...]


SETTINGS, SCORES = (Path(__file__).with_name(name) for name in ("fineweb2.txt", "fineweb2_scores.txt"))
"""The published numbers and stop words, and the least scores."""

_LEAST_SCORE = 0.3

_MACROLANGUAGES = {"ara": "arb", "est": "ekk", "lav": "lvs", "msa": "zsm", "no": "nob", "nor": "nob", "zho": "cmn"}
"""Codes of macrolanguages, and the language of the table that each stands for."""
_ENGLISH = ("en", "eng", "eng_Latn")


def language_settings(language: str) -> Settings:
    """The settings of a language by its code: "deu_Latn", "deu" or "de". Raises UserError for an unknown code."""
    known = _by_name()
    if language not in known:
        raise UserError(
            f"FineWeb-2 has no settings for the language '{language}'.{suggest(language, known)} "
            f"Expected one of: {', '.join(languages())}; or a code without the script (deu), or of ISO 639-1 (de)."
        )
    return known[language]


def names_of(language: str) -> list[str]:
    """All codes of a language by one of them: for "de" also deu and deu_Latn; none for an unknown code."""
    known = _by_name() | dict.fromkeys(_ENGLISH)
    return [name for name, settings in known.items() if language in known and settings is known[language]]


def languages() -> list[str]:
    """The code of every language in the table, sorted."""
    return sorted({settings.code for settings in _by_name().values()})


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Settings]:
    """Every language under each of its names."""
    lines = _lines(SETTINGS)
    by_name: dict[str, Settings] = {}
    for numbers, stop_words in zip(lines[::2], lines[1::2], strict=True):
        settings, short = _read(numbers.split(), tuple(stop_words.split()))
        by_name |= {settings.code: settings, settings.code.partition("_")[0]: settings, short: settings}
    return by_name | {name: by_name[code] for name, code in _MACROLANGUAGES.items()}


def _read(fields: Sequence[str], stop_words: tuple[str, ...]) -> tuple[Settings, str]:
    """The settings of one language of the table, and its ISO 639-1 code."""
    code, short, lines, *rest = fields
    top2, top3, top4, dup5, dup6, dup7, dup8, dup9, dup10, punctuation, newlines = map(float, rest[:11])
    shortest, longest, letters = rest[11:]
    settings = Settings(
        code=code,
        max_duplicate_lines=float(lines),
        max_top_n_grams=(top2, top3, top4),
        max_duplicate_n_grams=(dup5, dup6, dup7, dup8, dup9, dup10),
        min_punctuation_lines=punctuation,
        max_newline_ratio=newlines,
        min_mean_word_length=int(shortest),
        max_mean_word_length=int(longest),
        min_letter_words=float(letters),
        stop_words=stop_words,
    )
    return settings, short


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

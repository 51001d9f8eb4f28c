"""The settings that FineWeb-2 published for each language, for filters with an option `language`.

    language_settings("de")        ->  {"max_duplicate_lines": 0.263, ..., "stop_words": ("der", ...)}
    settings_of("sco_Latn")        ->  those of its script: the median of each limit over the languages of the script
    settings_of(None)              ->  the default: the median over all languages
    least_score("deu_Latn", 0.65)  ->  0.821

Source: `configs/<code>.yml` of github.com/huggingface/fineweb-2 (Apache License 2.0) at commit
d0defb24f193bb9a5a11b8b14524a03c4858e1b6, 1,929 languages, and the short names of languages of datatrove's
`tokenizer_assignment.csv` (Apache License 2.0) at a649de79c14a550dc90f48a15c025f2dd3fd3b57. `.ci/fineweb2` writes the table.
English has no file, and here the settings of FineWeb.

The published pipeline (`fineweb-2-pipeline.py`) adds rules that are the same for every language: two stop words, at most 0.1 of
the characters in duplicate lines, no rule on short lines, and of the repetition rules none on paragraphs and none on characters
in duplicate lines. It has no documents of labels without a file: the settings of scripts and the default are ours. They have no
rule on stop words, which are those of one language. As in the pipeline's code, a limit of 0 for duplicate lines switches that
rule off, and so does one of at most 0 for lines that end in punctuation. FineWeb-2's names of the options: `dup_line_frac`,
`top_n_grams`, `dup_n_grams`, `line_punct_thr`, `new_line_ratio`, `min_avg_word_length`, `max_avg_word_length`, and
`max_non_alpha_words_ratio`, which is the opposite of its name: `min_letter_words`.

The limits on words were measured with a word segmenter for each language. spaCy's English tokenizer replaces it in scripts with
spaces, less well in kor, whose stop words are endings inside words, and the dictionaries of ICU in scripts without
(`words: dictionary`). `stages/filter/README.md` has the share of equal decisions.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest

TABLE = Path(__file__).with_name("fineweb2.txt")
"""The published numbers and stop words."""

_LIMITS = (
    "max_duplicate_lines",
    *(f"max_top_{n}_gram" for n in range(2, 5)),
    *(f"max_duplicate_{n}_grams" for n in range(5, 11)),
    *("min_ended_lines", "max_newlines_per_word", "min_mean_word_length", "max_mean_word_length", "min_letter_words"),
)
"""The options of filters, in the order of the columns."""

_OFF = {"max_duplicate_lines": 1.0}
"""What a limit of 0 means, where it switches a rule off."""

_WITHOUT_SPACES = ("Hani", "Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt")
"""Scripts that separate words by no space: a dictionary cuts them."""

ENGLISH = "eng_Latn"
_LEAST_SCORE = 0.3

_FURTHER_NAMES = {"en": ENGLISH, "eng": ENGLISH, "no": "nob_Latn", "nor": "nob_Latn", "tl": "fil_Latn", "tgl": "fil_Latn"}
_SCRIPTS = {"Hans": "Hani", "Hant": "Hani", "Kore": "Hang"}
"""Names of scripts that GlotLID's labels do not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageSettings:
    """The options that a language decides, and whose they are: of the language "deu_Latn", or of the script "Latn". The default
    has no code."""

    level: Literal["language", "script", "default"]
    code: str
    options: Mapping[str, Any]  # empty for English


def language_settings(language: str) -> LanguageSettings:
    """The settings of a language ("deu_Latn", "deu" or "de") that the table has, or English. Raises UserError."""
    known = _codes()
    if language not in known:
        raise UserError(
            f"FineWeb-2 has no settings for the language '{language}'.{suggest(language, known)} Expected one of "
            f"{len(_rows()) + 1:,}: a code such as deu_Latn, one without the script (deu), or of ISO 639-1 (de)."
        )
    return _of_code(known[language])


@lru_cache(maxsize=1 << 14)
def settings_of(label: str | None) -> LanguageSettings:
    """The settings of documents with a label such as "deu_Latn", "de" or "pt-BR": of the language, else of the script that
    the label names, else the default, as for no label."""
    language, *further = (label or "").replace("-", "_").split("_")
    script = next((_SCRIPTS.get(part.title(), part.title()) for part in further if len(part) == 4 and part.isalpha()), "")
    for name in (f"{language.lower()}_{script}", language.lower()):
        code = _codes().get(name, "")
        if code and script in ("", _script_of(code)):
            return _of_code(code)
    return _median("script", script) if script in _scripts() else _median("default", "")


def names_of(language: str) -> list[str]:
    """All codes of a language by one of them: for "de" also deu and deu_Latn; none for an unknown code."""
    known = _codes()
    return [name for name, code in known.items() if code == known.get(language)]


def languages() -> list[str]:
    """The code of every language in the table, sorted."""
    return sorted(_rows())


def least_score(label: str, english: float) -> float:
    """The least score of a language by its label, ISO 639-3 and script; `english` for English."""
    if label == ENGLISH:
        return english
    return _rows()[label].score if label in _rows() else _LEAST_SCORE


@dataclass(frozen=True, slots=True)
class _Row:
    names: tuple[str, ...]
    score: float
    limits: tuple[float, ...]
    stop_words: tuple[str, ...]


@cache
def _rows() -> dict[str, _Row]:
    rows = dict[str, _Row]()
    for line in TABLE.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            code, names, *rest = line.split(" ")
            score, *limits = (float(number) / 1000 for number in rest[: len(_LIMITS) + 1])
            short = () if names == "-" else tuple(names.split(","))
            rows[code] = _Row(short, score, tuple(limits), tuple(rest[len(_LIMITS) + 1 :]))
    return rows


@cache
def _codes() -> dict[str, str]:
    """The code of each name."""
    codes = {ENGLISH: ENGLISH, **{code: code for code in _rows()}}
    return codes | {name: code for code, row in _rows().items() for name in row.names} | _FURTHER_NAMES


@cache
def _scripts() -> frozenset[str]:
    return frozenset(map(_script_of, _rows()))


def _script_of(code: str) -> str:
    return code.partition("_")[2]


@cache
def _of_code(code: str) -> LanguageSettings:
    if code == ENGLISH:
        return LanguageSettings(level="language", code=code, options={})
    row = _rows()[code]
    options = {**_limits_of(row), "stop_words": row.stop_words, **_words_of(_script_of(code))}
    return LanguageSettings(level="language", code=code, options=options)


@cache
def _median(level: Literal["script", "default"], script: str) -> LanguageSettings:
    rows = [_limits_of(row) for code, row in _rows().items() if level == "default" or _script_of(code) == script]
    limits = {name: median(row[name] for row in rows) for name in _LIMITS}
    return LanguageSettings(
        level=level, code=script, options={**limits, "stop_words": (), "min_stop_words": 0, **_words_of(script)}
    )


def _limits_of(row: _Row) -> dict[str, float]:
    limits = {name: max(0.0, limit) for name, limit in zip(_LIMITS, row.limits, strict=True)}
    return limits | {name: off for name, off in _OFF.items() if limits[name] == 0}


def _words_of(script: str) -> dict[str, str]:
    return {"words": "dictionary" if script in _WITHOUT_SPACES else "english"}

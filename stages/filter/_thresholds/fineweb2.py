"""The settings that FineWeb-2 published for each language, for filters with an option `language`.

    language_settings("de")  ->  Settings(code="deu_Latn", max_duplicate_lines=0.263, ...)

Source: `configs/<code>.yml` of github.com/huggingface/fineweb-2, every value and every stop word as published at commit
05e6729567a5df985fbd814e862c48f796feb09f, or, where a file could not be read there, d331bee82ee206aebbaba04db4283154291c1c74.
The commits c7004ff and baedee4 hold other thresholds, found by another method. English has no file: FineWeb's own settings are
the defaults of the filters. Turkish is missing, since only the other commits could be read. Scores of languages are in
`fineweb2_scores.py`.

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


# Two lines a language: its code and ISO 639-1 code, the numbers, and the stop words.
#            lines  top 2   3    4   dup 5   6    7    8    9    10  punct newl word len alpha
_TABLE = """
rus_Cyrl ru  0.322  0.184 0.164 0.146  0.168 0.156 0.145 0.133 0.121 0.109  0.231 0.139  3 11  0.713
  в и на с года по году из был к не от что за для его как а он также до после
deu_Latn de  0.263  0.169 0.153 0.137  0.141 0.134 0.126 0.117 0.108 0.098  0.0   0.152  0 15  0.774
  der und die in von im den des mit das er dem als wurde für
spa_Latn es  0.252  0.156 0.14  0.125  0.145 0.136 0.127 0.117 0.108 0.099  0.182 0.138  3 14  0.825
  de la en el y a que del los se por un con una las su
fra_Latn fr  0.264  0.161 0.149 0.134  0.15  0.141 0.131 0.121 0.111 0.1    0.1   0.185  2 11  0.812
  de la le et à en l' des du les est d' un une il dans par au
ita_Latn it  0.246  0.198 0.156 0.133  0.144 0.136 0.127 0.118 0.109 0.1    0.025 0.2    3 21  0.807
  di e il la in a del che è della un per nel l' con da i una
por_Latn pt  0.287  0.371 0.191 0.163  0.163 0.153 0.141 0.13  0.119 0.108  0.077 0.186  3 13  0.814
  de a e o em do da que um no uma com para na é foi
pol_Latn pl  0.32   0.222 0.198 0.176  0.172 0.16  0.148 0.136 0.123 0.111  0.087 0.158  3 12  0.726
  w i na z do się roku od a jest przez po jako oraz o został był nie
nld_Latn nl  0.296  0.213 0.182 0.158  0.156 0.146 0.136 0.126 0.115 0.104  0.102 0.154  3 17  0.828
  de van in het een en is op voor met door zijn werd hij uit
vie_Latn vi  0.293  0.223 0.197 0.171  0.178 0.163 0.15  0.136 0.124 0.111  0.333 0.103  3 11  0.803
  là và của một được trong năm các có loài này đã người
ces_Latn cs  0.311  0.206 0.183 0.165  0.168 0.157 0.145 0.133 0.121 0.109  0.06  0.182  3 11  0.781
  v a se na je z s do
ukr_Cyrl uk  0.3    0.189 0.172 0.153  0.16  0.148 0.136 0.124 0.113 0.102  0.167 0.175  3 11  0.694
  у в на і з та до року за що
ron_Latn ro  0.289  0.161 0.146 0.131  0.16  0.149 0.138 0.127 0.117 0.106  0.081 0.207  1 14  0.779
  de în a și din la o cu este un pe fost care al
swe_Latn sv  0.292  0.242 0.195 0.174  0.156 0.147 0.136 0.125 0.116 0.105  0.2   0.135  3 12  0.841
  i och är av en som den med på till att för
hun_Latn hu  0.322  0.226 0.198 0.172  0.169 0.159 0.148 0.136 0.124 0.112  0.067 0.231  3 15  0.766
  a az és is egy volt hogy nem meg de magyar első el között
fin_Latn fi  0.293  0.253 0.202 0.179  0.153 0.143 0.133 0.122 0.112 0.101  0.114 0.161  3 14  0.755
  ja on oli hän vuonna myös joka se ei sen ovat sekä mutta että tai vuoden kanssa hänen s. jälkeen the
ell_Grek el  0.31   0.194 0.175 0.156  0.174 0.163 0.153 0.142 0.13  0.119  0.167 0.116  3 11  0.809
  του και το της η την από ο με τον να που των στην για στο σε είναι τη τα οι
dan_Latn da  0.305  0.367 0.297 0.232  0.169 0.158 0.147 0.134 0.123 0.112  0.1   0.182  3 11  0.798
  i og af en til er den at som på for med det blev var der fra de han et
nob_Latn nb  0.283  0.204 0.175 0.15   0.146 0.139 0.128 0.119 0.11  0.099  0.107 0.167  3 12  0.783
  i og av som en er til på for ble med den det var han de å fra
ind_Latn id  0.241  0.194 0.166 0.145  0.166 0.155 0.144 0.133 0.122 0.111  0.111 0.157  3 12  0.805
  dan yang di pada dari ini dengan adalah untuk dalam
zsm_Latn ms  0.331  0.264 0.252 0.225  0.185 0.176 0.166 0.156 0.145 0.134  0.125 0.214  3 11  0.808
  dan di yang pada dalam dengan untuk ini
arb_Arab ar  0.304  0.197 0.172 0.146  0.165 0.153 0.142 0.131 0.12  0.109  0.143 0.189  2 9   0.787
  ، في من على إلى عام أن مع أو هو عن التي كان بين ما كانت هي المتحدة بعد
fas_Arab fa  0.246  0.189 0.164 0.143  0.157 0.147 0.137 0.127 0.117 0.107  0.2   0.15   2 9   0.812
  در و ، به از که است این را با یک
heb_Hebr he  0.34   0.239 0.202 0.173  0.16  0.151 0.14  0.129 0.118 0.108  0.2   0.126  2 9   0.799
  של את על הוא עם בשנת גם היה היא לאחר לא ידי בין או כי
hin_Deva hi  0.206  0.208 0.198 0.161  0.135 0.125 0.116 0.108 0.099 0.09   0.091 0.316  2 21  0.837
  के में है की और से का को एक हैं पर
ben_Beng bn  0.203  0.177 0.158 0.147  0.118 0.108 0.099 0.09  0.082 0.073  0.125 0.171  3 24  0.8
  এবং ও হয় করে একটি তিনি করা থেকে
tam_Taml ta  0.276  0.23  0.212 0.19   0.149 0.14  0.132 0.123 0.114 0.104  0.125 0.195  4 37  0.779
  மற்றும் ஒரு இந்த ஆம் இது என்ற இவர் உள்ள ஆகும் ஆண்டு அல்லது என்பது முதல் உள்ளது என்று இந்திய மக்கள் ஊராட்சி இல் இருந்து மேலும் பல
tel_Telu te  0.256  0.21  0.18  0.162  0.142 0.133 0.122 0.114 0.105 0.096  0.08  0.18   4 68  0.739
  నుండి కి ఉన్నాయి మీ గ్రామం ఉంది దూరంలో ఈ కేంద్రం
tha_Thai th  0.349  0.221 0.197 0.162  0.185 0.168 0.152 0.137 0.124 0.111  0.0   0.153  2 10  0.9
  ใน ที่ และ ของ เป็น มี การ ได้
jpn_Jpan ja  0.328  0.239 0.196 0.172  0.243 0.225 0.207 0.19  0.175 0.159  0.096 0.13   1 6   0.759
  の に を は た て が と で 年 し ・ 月 れ さ
kor_Hang ko  0.374  0.282 0.228 0.185  0.201 0.184 0.168 0.154 0.14  0.127  0.062 0.196  1 6   0.791
  의 다 이 는 에 을 한 년 하 은 를 했 고 에서 가 있 으로 인 월 로 되
cmn_Hani zh  0.287  0.256 0.201 0.171  0.198 0.182 0.167 0.154 0.14  0.127  0.106 0.178  1 5   0.735
  的 年 在 月 是 和 日 了 於 · 為 有 被 人 中 为 他 與 後 也 而 由
bul_Cyrl bg  0.317  0.173 0.157 0.139  0.17  0.158 0.144 0.131 0.12  0.108  0.154 0.142  3 10  0.756
  на и в е от за се г. с през да по
srp_Cyrl sr  0.257  0.176 0.158 0.141  0.147 0.137 0.126 0.116 0.106 0.096  0.156 0.239  3 10  0.8
  у је и на се од су године да за из са насеље
hrv_Latn hr  0.312  0.215 0.19  0.165  0.173 0.162 0.15  0.138 0.126 0.113  0.099 0.198  2 11  0.751
  je u i se na su za od s a
slk_Latn sk  0.319  0.316 0.218 0.171  0.176 0.165 0.152 0.14  0.127 0.115  0.0   0.214  2 11  0.752
  v a na sa je z roku s
cat_Latn ca  0.294  0.216 0.189 0.168  0.159 0.149 0.137 0.126 0.116 0.105  0.154 0.118  2 11  0.832
  de el la a i d l' en d' que va els per un les una amb es
slv_Latn sl  0.317  0.262 0.225 0.189  0.17  0.158 0.146 0.135 0.123 0.111  0.045 0.273  2 12  0.781
  je v in na so se ki za leta z
lit_Latn lt  0.32   0.247 0.21  0.174  0.175 0.163 0.15  0.137 0.126 0.114  0.167 0.19   3 12  0.688
  m ir buvo į nuo iš d su yra lietuvos a iki o kaip kad apie po km
ekk_Latn et  0.363  0.345 0.268 0.215  0.172 0.161 0.15  0.139 0.125 0.113  0.143 0.213  3 13  0.722
  ja on oli ta aastal eesti ka ning et mis kui aasta ei või see oma tema
lvs_Latn lv  0.329  0.526 0.337 0.242  0.173 0.16  0.148 0.135 0.122 0.109  0.125 0.169  2 13  0.727
  un ir no ar gadā gada par bija arī
"""

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
    lines: Sequence[str] = _TABLE.strip().splitlines()
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

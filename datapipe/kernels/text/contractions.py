"""The special cases of spaCy's English tokenizer: contractions; whole abbreviations and emoticons.

    "couldn't"  ->  "could" "n't"        "Mr."  ->  "Mr."        "10am"  ->  "10" "am"

The facts are those of spaCy 3.8, `lang/en`, written as rules; `table()` is their hash table.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from datapipe.kernels.hashing import hash_of, table_of
from datapipe.kernels.tables import stored_table
from datapipe.kernels.types import UInt8Matrix, UInt8s, UInt64s, input_record

_OTHERS = "who what when where why how there"
_ENDINGS = {  # which endings a word takes
    **{word: ["ll", "d", "ve", "re"] for word in ("you", "we", "they")},
    "i": ["ll", "d", "ve", "m"],
    **{word: ["ll", "d", "s"] for word in ("he", "she", "it")},
    **{word: ["ll", "d", "s", "ve", "re"] for word in _OTHERS.split()},
    **{word: ["ll", "d", "s"] for word in ("that", "this")},
    **{word: ["ll", "d", "ve", "re"] for word in ("these", "those")},
}
_KEPT_WHOLE = ("ill", "shed", "hell", "shell", "well", "were", "its", "whore")
"""Words that look like a contraction without its apostrophe, and are not."""
_VERBS = "ca could do does did had may might must need ought sha should wo would"
_VERBS_ALONE = "ai are is was were have has dare"
_MODALS = "could might must should would not"
_SPLIT = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "let's": ("let", "'s"),
    "c'mon": ("c'm", "on"),
    "i'ma": ("i", "'m", "a"),
    "ima": ("i", "m", "a"),
    "how'd'y": ("how", "'d", "'y"),
}
_ABBREVIATIONS = (
    "Adm. Ak. Ala. Apr. Ariz. Ark. Aug. Bros. C++ Calif. Co. Colo. Conn. Corp. D.C. Dec. Del. Dr. E.G. E.g. Feb. Fla. Ga. "
    "Gen. Gov. I.E. I.e. Ia. Id. Ill. Inc. Ind. Jan. Jr. Jul. Jun. Kan. Kans. Ky. La. Ltd. Mar. Mass. Md. Messrs. Mich. "
    "Minn. Miss. Mo. Mont. Mr. Mrs. Ms. Mt. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. Ph.D. "
    "Prof. Rep. Rev. S.C. Sen. Sep. Sept. St. Tenn. Va. Wash. Wis. a.m. and/or co. e.g. i.e. p.m. v.s. vs. w/o"
)
_SPLIT_AS_WRITTEN = {"y'all": ("y'", "all"), "y’all": ("y’", "all"), "yall": ("y", "all")}
_CLIPPED = "doin goin havin lovin nothin nuthin ol somethin Doin Goin Havin Lovin Nothin Nuthin Ol Somethin"
_APOSTROPHED = (
    "' 'bout 'cause 'cos 'coz 'cuz 'Cause 'Cos 'Coz 'Cuz 'd 'em 'll 'nuff 're 's 'S em ll nuff ‘s ‘S — ma'am Ma'am "
    "o'clock O'clock"
)
_EMOTICONS = (
    "'' (-8 (-: (-; (: (; (= ): )-: -_- ._. 0.0 0.o 0_0 0_o 8) 8-) 8-D 8D :'( :') :( :(( :() :) :)) :* :-( :-(( :-) :-)) "
    ":-* :-/ :-0 :-3 :-> :-D :-O :-P :-X :-] :-o :-p :-x :-| :-} :/ :0 :1 :3 :> :D :O :P :X :] :o :o) :p :x :| :} ;) ;-) "
    ";-D ;D ;_; </3 <3 =( =) =/ =3 =D =[ =] =| >.< >.> >:( >:o @_@ O.O O.o O_O O_o V.V V_V XD [-: [: [= ]= ^_^ o.0 o.O "
    "o.o o_0 o_O o_o v.v v_v xD (*_*) (-_-) (._.) (>_<) (^_^) (o: (¬_¬) (ಠ_ಠ) (╯°□°）╯︵┻━┻ -__- "
    ":'-( :'-) :((( :))) :-((( :-))) <.< <33 <333 <space> ><(((*> XDD \\\") \\n \\t ^__^ ^___^ xDD ¯\\(ツ)/¯ ಠ_ಠ ಠ︵ಠ"
)

LONGEST_BYTES = 32
_NUM_PARTS = 4
SIEVE_BITS = 16


def cuts() -> dict[str, tuple[str, ...]]:
    """Every special case with its parts; a single part where the string is kept whole."""
    splits: dict[str, tuple[str, ...]] = dict(_cased(_contractions())) | _SPLIT_AS_WRITTEN
    for word, apostrophe in product(f"{_ABBREVIATIONS} {_EMOTICONS} {_APOSTROPHED}".split(), ("'", "’")):
        splits[word.replace("'", apostrophe)] = (word.replace("'", apostrophe),)
    for word, end in product(_CLIPPED.split(), ("", "'", "’")):
        splits[word + end] = (word + end,)
    for letter in "abcdefghijklmnopqrstuvwxyzäöü":
        splits[f"{letter}."] = (f"{letter}.",)
    for hour, half in product(range(1, 13), ("am", "pm", "a.m.", "p.m.")):
        splits[f"{hour}{half}"] = (str(hour), half)
    for unit in "cfkCFK":
        splits[f"°{unit}."] = ("°", unit, ".")
    return splits


def _contractions() -> dict[str, tuple[str, ...]]:
    """Contractions in lower case, with a straight apostrophe and without one."""
    splits = dict(_SPLIT)
    for word, endings in _ENDINGS.items():
        for ending in endings:
            splits[f"{word}'{ending}"] = (word, f"'{ending}")
            splits[f"{word}{ending}"] = (word, ending)
        for ending in ("ll", "d"):
            splits[f"{word}'{ending}'ve"] = (word, f"'{ending}", "'ve")
            splits[f"{word}{ending}ve"] = (word, ending, "ve")
    for verb in f"{_VERBS} {_VERBS_ALONE}".split():
        splits[f"{verb}n't"], splits[f"{verb}nt"] = (verb, "n't"), (verb, "nt")
    for verb in _VERBS.split():
        splits[f"{verb}n't've"], splits[f"{verb}ntve"] = (verb, "n't", "'ve"), (verb, "nt", "ve")
    for modal in _MODALS.split():
        splits[f"{modal}'ve"], splits[f"{modal}ve"] = (modal, "'ve"), (modal, "ve")
    return {word: parts for word, parts in splits.items() if word not in _KEPT_WHOLE}


def _cased(contractions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The contractions in lower case and capitalised, with both apostrophes."""
    splits: dict[str, tuple[str, ...]] = {}
    for parts in contractions.values():
        for apostrophe, first in product(("'", "’"), (parts[0], parts[0].capitalize())):
            cut = (first, *(part for part in parts[1:]))
            cut = tuple(part.replace("'", apostrophe) for part in cut)
            splits["".join(cut)] = cut
    return splits


class Wholes(NamedTuple):
    """The special cases as a hash table, an input of kernels."""

    keys: UInt64s  # (num_slots,), 0 where free
    sizes: UInt8Matrix  # (num_slots, 4), bytes of the parts, 0 past the last
    sieve: UInt8s  # (2^13,), 2^16 bits by the first bits of a hash, which reject 49 of 50 other words
    # (num_slots,), words into which signs split a special case inside of a chunk; 0 if they do not
    num_tokens: UInt8s
    pairs: UInt8s  # (2^13,), 2^16 bits by the hashes of the first two of these words


@stored_table
def special_cases() -> Wholes:
    """The hash table of `cuts`, without `num_tokens` and `pairs`."""
    entries = cuts()
    keys, slots = table_of([hash_of(word.encode()) for word in entries])
    sizes = np.zeros((len(keys), _NUM_PARTS), np.uint8)
    for slot, parts in zip(slots, entries.values(), strict=True):
        sizes[slot, : len(parts)] = [len(part.encode()) for part in parts]
    sieve = sieve_of(keys[keys != 0])
    return input_record(Wholes, (keys, sizes, sieve, np.zeros(len(keys), np.uint8), np.zeros_like(sieve)))


def sieve_of(hashes: np.ndarray) -> np.ndarray:
    """(2^13,) uint8: bits set by the first `SIEVE_BITS` bits of hashes, (num_hashes,) uint64."""
    sieve = np.zeros(1 << (SIEVE_BITS - 3), np.uint8)
    bits = (hashes >> np.uint64(64 - SIEVE_BITS)).astype(np.int64)
    np.bitwise_or.at(sieve, bits >> 3, (1 << (bits & 7)).astype(np.uint8))
    return sieve

"""What spaCy's English tokenizer treats as wholes: contractions with where they are cut, abbreviations, times, emoticons.

    "couldn't"  ->  "could" "n't"        "Mr."  ->  "Mr."        "10am"  ->  "10" "am"

The facts are those of spaCy 3.8, `lang/en`, written as rules. `table()` packs them for kernels: an open-addressed hash table by
the hashes that `Words` has, each with the sizes of its pieces.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from datapipe.kernels.hashing import hash_of, table_of
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
_KEPT_WHOLE = {"ill", "shed", "hell", "shell", "well", "were", "its", "whore"}
"""Words of their own, though an ending less its apostrophe looks the same."""
_VERBS = "ca could do does did had may might must need ought sha should wo would"
_VERBS_ALONE = "ai are is was were have has dare"
_MODALS = "could might must should would not"
_SPLIT = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "let's": ("let", "'s"),
    "c'mon": ("c'm", "on"),
    "y'all": ("y'", "all"),
    "yall": ("y", "all"),
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
_CLIPPED = "doin goin havin lovin nothin nuthin ol somethin Doin Goin Havin Lovin Nothin Nuthin Ol Somethin"
_APOSTROPHED = "'bout 'cause 'cos 'coz 'cuz 'Cause 'd 'em 'll 'nuff 're 's 'S ma'am Ma'am o'clock O'clock"
_EMOTICONS = (
    "'' (-8 (-: (-; (: (; (= ): )-: -_- ._. 0.0 0.o 0_0 0_o 8) 8-) 8-D 8D :'( :') :( :(( :() :) :)) :* :-( :-(( :-) :-)) "
    ":-* :-/ :-0 :-3 :-> :-D :-O :-P :-X :-] :-o :-p :-x :-| :-} :/ :0 :1 :3 :> :D :O :P :X :] :o :o) :p :x :| :} ;) ;-) "
    ";-D ;D ;_; </3 <3 =( =) =/ =3 =D =[ =] =| >.< >.> >:( >:o @_@ O.O O.o O_O O_o V.V V_V XD [-: [: [= ]= ^_^ o.0 o.O "
    "o.o o_0 o_O o_o v.v v_v xD"
)

LONGEST_BYTES = 20
_NUM_PIECES = 4
SIEVE_BITS = 16


def cuts() -> dict[str, tuple[str, ...]]:
    """Every such string with its pieces; one piece where it is kept whole."""
    found: dict[str, tuple[str, ...]] = dict(_cased(_contractions()))
    for word, apostrophe in product(f"{_ABBREVIATIONS} {_EMOTICONS} {_APOSTROPHED}".split(), ("'", "’")):
        found[word.replace("'", apostrophe)] = (word.replace("'", apostrophe),)
    for word, end in product(_CLIPPED.split(), ("", "'", "’")):
        found[word + end] = (word + end,)
    for letter in "abcdefghijklmnopqrstuvwxyzäöü":
        found[f"{letter}."] = (f"{letter}.",)
    for hour, half in product(range(1, 13), ("am", "pm", "a.m.", "p.m.")):
        found[f"{hour}{half}"] = (str(hour), half)
    return found


def _contractions() -> dict[str, tuple[str, ...]]:
    """Lower-case contractions with a straight apostrophe, with a curly one and with none."""
    found = dict(_SPLIT)
    for word, endings in _ENDINGS.items():
        for ending in endings:
            found[f"{word}'{ending}"] = (word, f"'{ending}")
            found[f"{word}{ending}"] = (word, ending)
        for ending in ("ll", "d"):
            found[f"{word}'{ending}'ve"] = (word, f"'{ending}", "'ve")
            found[f"{word}{ending}ve"] = (word, ending, "ve")
    for verb in f"{_VERBS} {_VERBS_ALONE}".split():
        found[f"{verb}n't"], found[f"{verb}nt"] = (verb, "n't"), (verb, "nt")
    for verb in _VERBS.split():
        found[f"{verb}n't've"], found[f"{verb}ntve"] = (verb, "n't", "'ve"), (verb, "nt", "ve")
    for modal in _MODALS.split():
        found[f"{modal}'ve"], found[f"{modal}ve"] = (modal, "'ve"), (modal, "ve")
    return {word: pieces for word, pieces in found.items() if word not in _KEPT_WHOLE}


def _cased(contractions: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """In lower case and capitalised, with both apostrophes."""
    found: dict[str, tuple[str, ...]] = {}
    for pieces in contractions.values():
        for apostrophe, first in product(("'", "’"), (pieces[0], pieces[0].capitalize())):
            cut = (first, *(piece for piece in pieces[1:]))
            cut = tuple(piece.replace("'", apostrophe) for piece in cut)
            found["".join(cut)] = cut
    return found


class Wholes(NamedTuple):
    """The cuts as a hash table, an input of kernels.

    Attributes:
        keys: (num_slots,) uint64, 0 where free.
        sizes: (num_slots, 4) uint8, bytes of the pieces, 0 past the last.
        sieve: (2^13,) uint8, 2^16 bits by the first bits of a hash, which turn 49 of 50 other words away.
    """

    keys: UInt64s
    sizes: UInt8Matrix
    sieve: UInt8s


@lru_cache(maxsize=1)
def table() -> Wholes:
    """The hash table of `cuts`."""
    entries = cuts()
    keys, slots = table_of([hash_of(word.encode()) for word in entries])
    sizes = np.zeros((len(keys), _NUM_PIECES), np.uint8)
    for slot, pieces in zip(slots, entries.values(), strict=True):
        sizes[slot, : len(pieces)] = [len(piece.encode()) for piece in pieces]
    sieve = np.zeros(1 << (SIEVE_BITS - 3), np.uint8)
    bits = (keys[keys != 0] >> np.uint64(64 - SIEVE_BITS)).astype(np.int64)
    np.bitwise_or.at(sieve, bits >> 3, (1 << (bits & 7)).astype(np.uint8))
    return input_record(Wholes, (keys, sizes, sieve))

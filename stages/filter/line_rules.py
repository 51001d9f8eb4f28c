"""Removes lines that are no text from web pages, and drops the pages of which too much goes, as RefinedWeb (Penedo et al. 2023,
appendix G.2) has it and DCLM-Baseline does it.

    lines  ->  a reason a line: kept, removed or edited  ->  share of the words that went  ->  pages dropped, texts without them

A line is not blank and is taken without the white space around it. It is tried in this order, and removed when

1. it has nothing but the characters of `symbol_lines` and spaces (FineWeb-2 asks this for "|"; off by default);
2. more than half of its characters are capitals;
3. all of its characters are digits;
4. it is a counter: a number, with k, m or b or not, and one of likes, shares, comments, retweets, reposts, quotes, bookmarks,
   upvotes, downvotes, downloads, views, followers, with signs around at most;
5. it has fewer than 2 words.

Of a line of at most 10 words that is still there, "items in cart" is cut out anywhere, "Read more..." at its end and "Sign-in"
at its front, each in any case and with one white space character on its side; a line of nothing else is removed.

`too_much_removed`: more than 5 % of the words that begin with a letter or a digit went. A page without such a word is dropped
too, with the share 1, as in DCLM.

Blank lines stay where they are. A page of which nothing is removed stays as it is, byte for byte; one that is edited loses the
white space around it.

Profiles. `dclm` follows DCLM's program (`baselines/mappers/modifiers.py` and `dclm_baseline_refinedweb.yaml`), whose
"Read more..." is a regular expression: its dots stand for any three characters. `refinedweb` follows the paper's words, where
they are dots; the numbers that the paper leaves open are DCLM's.

DCLM counts the white space around a line among its characters, keeps indented capitals by it, and removes lines of white space
alone. Its rules, written anew by regular expressions over its kind of lines, decide alike on 3,684 of 3,687 real documents, and
give 3,558 of 3,643 kept texts the same lines, blank ones aside.

One core of a 2-core AMD EPYC does 320 MB/s of web text and 500 MB/s of news once the lines are found; see
`datapipe/kernels/filters/line_rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.kernels.filters import line_rules
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from stages.filter._profiles import ProfiledFilter

PROFILES: dict[str, dict[str, Any]] = {"dclm": {}, "refinedweb": {"any_after_read_more": False}}
"""What the options are in each profile where it differs from the defaults."""

_TALLIES = {
    "symbol_lines_removed": (line_rules.SYMBOLS,),
    "uppercase_lines": (line_rules.UPPERCASE,),
    "numeric_lines": (line_rules.NUMERIC,),
    "counter_lines": (line_rules.COUNTER,),
    "short_lines": (line_rules.FEW_WORDS,),
    "phrase_lines": (line_rules.EMPTIED, line_rules.EDITED),
}


class LineRules(ProfiledFilter):
    """Removes lines of capitals, numbers, counters and single words, and drops documents that lose much by it."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = PROFILES

    profile: Literal["dclm", "refinedweb"] = Field(
        default="dclm",
        description="Whose values the options take that are not given. dclm: those of DCLM's program. refinedweb: the "
        "paper's, with any_after_read_more false.",
    )
    max_removed: float = Field(default=0.05, ge=0, le=1, description="Greatest share of the words that may go with the lines.")
    max_uppercase: float = Field(default=0.5, ge=0, le=1, description="Greatest share of capitals in a line.")
    max_numeric: float = Field(
        default=0.999999, ge=0, le=1, description="Greatest share of digits in a line; the default removes digits alone."
    )
    remove_counters: bool = Field(default=True, description='Remove lines such as "12 likes" and "3.4k views".')
    min_words: int = Field(default=2, ge=0, description="Least words of a line.")
    max_phrase_words: int = Field(
        default=10, ge=0, description="Most words of a line that phrases are cut out of; 0: cut out none."
    )
    any_after_read_more: bool = Field(
        default=True, description='Let any three characters stand for the dots of "Read more..."; refinedweb: false.'
    )
    symbol_lines: str = Field(
        default="",
        pattern=r"^[!-/:-@\[-`{-~]*$",
        description="Remove lines of these ASCII signs and spaces alone; FineWeb-2: |. None when empty.",
    )

    counts: ClassVar[tuple[str, ...]] = tuple(_TALLIES)
    """Lines removed from, or edited in, the documents that are kept, by reason."""

    def rules(self) -> Sequence[Rule]:
        return [self.at_most("too_much_removed", "max_removed")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        offsets, data = batch.buffers
        judged = line_rules.judge(batch.lines, data, self._limits(), self.symbol_lines)
        before, after = judged.sums[:, line_rules.WORDS_BEFORE], judged.sums[:, line_rules.WORDS_AFTER]
        removed = np.where(before > 0, (before - after) / np.maximum(before, 1), 1.0)
        result = FilterResult.judged(self.rules(), [removed])
        of_kept = np.where(result.keep[:, np.newaxis], judged.sums, 0)
        new = {name: pa.array(of_kept[:, list(reasons)].sum(axis=1)) for name, reasons in _TALLIES.items()}
        if of_kept[:, line_rules.KEPT + 1 : line_rules.NUM_REASONS].any():
            new["text"] = columns.texts_from(*line_rules.written(offsets, data, batch.lines, judged.edits, result.keep))
        return replace(result, columns=new)

    def _limits(self) -> line_rules.Limits:
        return line_rules.Limits(
            max_uppercase=self.max_uppercase,
            max_numeric=self.max_numeric,
            counters=self.remove_counters,
            min_words=self.min_words,
            max_phrase_words=self.max_phrase_words,
            loose_dots=self.any_after_read_more,
        )

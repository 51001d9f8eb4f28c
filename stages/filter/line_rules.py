"""Removes lines that are not running text from web pages, and drops pages that lose too many words, by the rules of RefinedWeb
(Penedo et al. 2023, appendix G.2) as DCLM-Baseline (Li et al. 2024) applies them.

Blank lines are ignored, and the white space around a line is stripped. A line is removed by the first rule that applies:

| reason | the line |
|---|---|
| `symbol_lines_removed` | has only characters of `symbol_lines` and spaces (FineWeb-2: the vertical bar; off by default) |
| `uppercase_lines` | has more than half of its characters as capitals |
| `numeric_lines` | has only digits |
| `counter_lines` | is a counter: a number, with k, m, b or without, and a word such as likes, shares, comments, retweets, |
| | reposts, quotes, bookmarks, upvotes, downvotes, downloads, views, followers |
| `short_lines` | has fewer than 2 words |

Phrases are cut from the remaining lines of at most 10 words, in any case, with one white space character beside them: "items
in cart" anywhere, "Read more..." at the end, "Sign-in" at the start. A line that is only a phrase is removed.

`too_much_removed` drops a page that loses more than 5 % of its words, or has none, as in DCLM. Words begin with a letter or a
digit. A page without a removed line is unchanged; an edited page loses the white space around it.

`dclm` is DCLM's `baselines/mappers/modifiers.py` with `dclm_baseline_refinedweb.yaml`, where any three characters match the
dots of "Read more..."; `refinedweb` is the text of the paper, with DCLM's numbers where it gives none. DCLM counts the white
space around a line among its characters.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.dataclass import replace
from datapipe.kernels.filters import line_rules
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segmentation.lines import lines
from stages.filter._thresholds.profiles import ProfiledFilter

PROFILES: dict[str, dict[str, Any]] = {"dclm": {}, "refinedweb": {"any_after_read_more": False}}
"""The options of each profile that differ from the defaults."""

_LINE_COUNTS = {
    "symbol_lines_removed": (line_rules.SYMBOLS,),
    "uppercase_lines": (line_rules.UPPERCASE,),
    "numeric_lines": (line_rules.NUMERIC,),
    "counter_lines": (line_rules.COUNTER,),
    "short_lines": (line_rules.FEW_WORDS,),
    "phrase_lines": (line_rules.EMPTIED, line_rules.EDITED),
}


class LineRules(ProfiledFilter):
    """Removes lines of capitals, numbers, counters and single words, and drops documents that lose too many words."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = PROFILES

    profile: Literal["dclm", "refinedweb"] = Field(
        default="dclm", description="dclm: DCLM's program. refinedweb: the paper, with any_after_read_more false."
    )
    max_removed: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Maximum share of the words of a document to remove. Documents that would lose more are dropped.",
    )
    max_uppercase: float = Field(default=0.5, ge=0, le=1, description="Maximum share of capitals in a line.")
    max_numeric: float = Field(
        default=0.999999, ge=0, le=1, description="Maximum share of digits in a line. Default: less than all."
    )
    remove_counters: bool = Field(default=True, description='Remove lines such as "12 likes" and "3.4k views".')
    min_words: int = Field(default=2, ge=0, description="Minimum number of words in a line.")
    max_phrase_words: int = Field(
        default=10, ge=0, description="Maximum number of words in a line from which phrases are cut; 0: cut no phrases."
    )
    any_after_read_more: bool = Field(
        default=True, description='Match any three characters for the dots of "Read more..."; refinedweb: false.'
    )
    symbol_lines: str = Field(
        default="",
        pattern=r"^[!-/:-@\[-`{-~]*$",
        description="Remove lines that consist of these ASCII signs and spaces; FineWeb-2: |. Empty: remove none.",
    )

    counts: ClassVar[tuple[str, ...]] = tuple(_LINE_COUNTS)
    """Lines removed from kept documents, or edited in them, by reason."""

    def rules(self) -> Sequence[Rule]:
        return [self.at_most("too_much_removed", "max_removed")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        offsets, data = batch.buffers
        classified = line_rules.classify(lines(batch), data, self._limits(), self.symbol_lines)
        before, after = classified.sums[:, line_rules.WORDS_BEFORE], classified.sums[:, line_rules.WORDS_AFTER]
        removed = np.where(before > 0, (before - after) / np.maximum(before, 1), 1.0)
        result = FilterResult.from_rules(self.rules(), [removed])
        of_kept = np.where(result.keep[:, np.newaxis], classified.sums, 0)
        new = {name: pa.array(of_kept[:, list(reasons)].sum(axis=1)) for name, reasons in _LINE_COUNTS.items()}
        if of_kept[:, line_rules.KEPT + 1 : line_rules.NUM_REASONS].any():
            new["text"] = columns.texts_from(*line_rules.written(offsets, data, lines(batch), classified.edits, result.keep))
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

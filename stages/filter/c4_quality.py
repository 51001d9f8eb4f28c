"""Keeps the lines of a page that look like sentences, and the pages that have enough of them, by the rules of C4 (Raffel et al.
2020). Kept pages are edited: the lines that pass remain, joined by newlines.

Blank lines are ignored, and the white space around a line is stripped. The rules are tried in this order:

| rule | effect |
|---|---|
| a word has more than 1000 characters | the line is removed |
| citations [12], [], [edit], [citation needed] | the citations are removed |
| the line does not end in . ? ! or ", or ends in three dots ("…" is no end mark) | the line is removed |
| the line has too few words, separated by white space | the line is removed |
| the line contains "lorem ipsum" | the page is dropped |
| the line contains "javascript" | the line is removed, before its `{` is checked |
| the line contains `{` | the page is dropped |
| the line mentions terms of use, privacy policy, cookie policy, or using cookies | the line is removed |
| the remaining lines have too few sentences | the page is dropped |

Phrases match in any case. The published texts and programs differ, so `profile` sets the defaults. `paper` is the authors'
code, TFDS `c4_utils.py`, and the text on arXiv; `datatrove` its `C4QualityFilter`, and the text in JMLR; `fineweb` the same as
FineWeb used it. The authors also drop pages of more than 190,000 characters (`max_chars`), and mC4 pages with few long lines
(`min_long_lines: 3`); both measure the page before it is edited. Sentences are counted as by spaCy's sentencizer, which
datatrove uses (`datapipe/kernels/text/sentences.py`); the authors use NLTK's Punkt.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.dataclass import replace
from datapipe.kernels.filters import c4
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segmentation.lines import lines
from stages.filter._thresholds.profiles import ProfiledFilter

_DATATROVE = {"min_sentences": 5, "min_words_per_line": 3, "words_before_citations": True, "apostrophe_ends_line": True}
PROFILES: dict[str, dict[str, Any]] = {"paper": {}, "datatrove": _DATATROVE, "fineweb": _DATATROVE | {"need_end_mark": False}}
"""The options of each profile that differ from the defaults."""

_LINE_COUNTS = {
    "long_word_lines": c4.LONG_WORD,
    "lines_without_end_mark": c4.NO_END_MARK,
    "short_lines": c4.FEW_WORDS,
    "javascript_lines": c4.JAVASCRIPT,
    "policy_lines": c4.POLICY,
}


class C4Quality(ProfiledFilter):
    """Keeps the lines of a page that look like sentences, and drops pages with few of them, by the rules of C4."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = PROFILES

    profile: Literal["paper", "datatrove", "fineweb"] = Field(
        default="paper",
        description="Defaults of the options below. paper: the authors' code. datatrove: 5 sentences, 3 words counted with "
        "citations, ' ends a line too. fineweb: as datatrove, without need_end_mark. Decisions equal datatrove's only behind "
        "normalize.unicode: datatrove ends lines at CR, form feed and U+2028 too.",
    )
    min_sentences: int = Field(default=3, ge=0, description="Minimum number of sentences in a page; datatrove and fineweb: 5.")
    min_words_per_line: int = Field(
        default=5, ge=0, le=2**31 - 1, description="Minimum number of words in a line; datatrove and fineweb: 3."
    )
    words_before_citations: bool = Field(
        default=False, description="Count the words of a line before its citations are removed; datatrove and fineweb: true."
    )
    need_end_mark: bool = Field(
        default=True, description='Remove lines that do not end in . ? ! or ", or that end in three dots; fineweb: false.'
    )
    apostrophe_ends_line: bool = Field(
        default=False, description="Accept ' as the end of a line too; datatrove and fineweb: true."
    )
    max_word_chars: int = Field(
        default=1000,
        ge=1,
        le=2**31 - 1,
        description="Maximum number of characters in a word. Lines with a longer word are removed.",
    )
    remove_citations: bool = Field(default=True, description="Remove [12], [edit] and [citation needed].")
    remove_javascript: bool = Field(default=True, description='Remove lines that contain "javascript".')
    remove_policies: bool = Field(
        default=True, description="Remove lines that mention terms of use, privacy policies or cookies."
    )
    drop_lorem_ipsum: bool = Field(default=True, description='Drop pages that contain "lorem ipsum".')
    drop_curly_brackets: bool = Field(default=True, description="Drop pages with a { in a line that no earlier rule removed.")
    max_chars: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of characters in the page before it is edited; null: no limit. The authors: 190000.",
    )
    min_long_lines: int = Field(
        default=0, ge=0, description="Minimum number of long lines in the page before it is edited. mC4: 3."
    )
    long_line_chars: int = Field(default=200, ge=0, le=2**31 - 1, description="Minimum number of characters in a long line.")

    counts: ClassVar[tuple[str, ...]] = tuple(_LINE_COUNTS)
    """Lines removed from kept documents, by reason."""

    def rules(self) -> Sequence[Rule]:
        size = [] if self.max_chars is None else [self.at_most("too_many_chars", "max_chars")]
        lorem = [Rule(name="lorem_ipsum", limit=0, side="max")] if self.drop_lorem_ipsum else []
        brackets = [Rule(name="curly_bracket", limit=0, side="max")] if self.drop_curly_brackets else []
        least = self.at_least("too_few_long_lines", "min_long_lines"), self.at_least("too_few_sentences", "min_sentences")
        return [*size, least[0], *lorem, *brackets, least[1]]

    def process(self, batch: DocumentBatch) -> FilterResult:
        offsets, data = batch.buffers
        classified = c4.classify(lines(batch), data, self._limits(), self.remove_citations, self.long_line_chars)
        measured = [
            classified.sums[:, c4.LONG_LINES],
            *([classified.sums[:, c4.LOREM_IPSUM]] if self.drop_lorem_ipsum else []),
            *([classified.sums[:, c4.CURLY_BRACKET]] if self.drop_curly_brackets else []),
            classified.sums[:, c4.SENTENCES],
        ]
        if self.max_chars is not None:
            measured.insert(0, columns.numbers(columns.compute.utf8_length(batch.texts)))
        result = FilterResult.from_rules(self.rules(), measured)
        keep = result.keep
        new = {name: pa.array(np.where(keep, classified.sums[:, reason], 0)) for name, reason in _LINE_COUNTS.items()}
        if (keep & (classified.sums[:, c4.JOINED_BYTES] != np.diff(offsets))).any():
            new["text"] = columns.texts_from(*c4.joined(lines(batch).doc_offsets, classified, keep))
        return replace(result, columns=new)

    def _limits(self) -> c4.Limits:
        return c4.Limits(
            min_words=self.min_words_per_line,
            max_word_chars=self.max_word_chars,
            words_before_citations=self.words_before_citations,
            need_end_mark=self.need_end_mark,
            apostrophe_ends_line=self.apostrophe_ends_line,
            lorem_ipsum=self.drop_lorem_ipsum,
            javascript=self.remove_javascript,
            curly_bracket=self.drop_curly_brackets,
            policy=self.remove_policies,
        )

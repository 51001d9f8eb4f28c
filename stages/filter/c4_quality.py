"""Keeps the lines of a page that look like sentences, and the pages that have enough of them, by the rules of C4 (Raffel et al.
2020). What is kept is edited: only the lines that pass remain, joined by newlines.

    lines  ->  a reason a line: kept, or why it goes  ->  sentences of the kept lines  ->  pages dropped, texts joined

A line is not blank and is taken without the white space around it. It is tried in this order:

1. A word of more than 1000 characters drops it.
2. Citations are taken out of it: [12], [], [edit], [citation needed].
3. It must end in . ? ! or " and not in three dots. "…" is no end mark.
4. It must have enough words, as white space parts them.
5. "lorem ipsum" in it drops the page.
6. "javascript" in it drops it; a line so dropped drops no page by its `{`.
7. `{` in it drops the page.
8. It must not speak of terms of use, privacy policy, cookie policy, or of using cookies.

Phrases are found in any case. A page whose lines have too few sentences in all is dropped.

Profiles. Two texts of the paper and two programs differ; `profile` says whose values the options take that are not given:

    paper      the code of the authors, TFDS `c4_utils.py`, and the text on arXiv: 3 sentences, 5 words without citations
    datatrove  as datatrove's `C4QualityFilter`, and the text in JMLR: 5 sentences, 3 words with citations, ' ends a line too
    fineweb    datatrove's, without the rule about end marks, as FineWeb used it

The authors also drop pages of more than 190,000 characters (`max_chars`), and those of mC4 by paragraphs (`min_long_lines` 3);
both look at the page as it came. Their lists of bad words, their language detector and the removal of lines that occur on other
pages too are stages of their own.

Sentences are counted as spaCy's sentencizer counts them, which datatrove uses, in every profile (`kernels/text/sentences.py`).
The authors' code uses NLTK's Punkt, which a limit of three hardly tells apart.

With the profiles `datatrove` and `fineweb` all of 3,687 real English documents (news, web, books, code, papers) get the
decision that datatrove 0.10.1 gives them, and of 3,057 and 3,304 kept texts all but the same 6 are equal. Those 6 hold
control characters at which `str.splitlines` ends a line; here a line ends at a newline alone. A page with both "lorem ipsum"
and { is dropped for the first of the two rules, not of the two lines. Of 60,000 lines 5 have another number of sentences,
such as "Mon./Wed. at six".

One core of a 2-core AMD EPYC does 300 MB/s of news that is mostly kept, 600 MB/s of web text of which most lines go, and
180 MB/s of the same text with the profile `fineweb`, which keeps most of its short lines; all once the lines are found. See
`datapipe/kernels/filters/c4.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.kernels.filters import c4
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from stages.filter._profiles import ProfiledFilter

_DATATROVE = {"min_sentences": 5, "min_words_per_line": 3, "words_before_citations": True, "apostrophe_ends_line": True}
PROFILES: dict[str, dict[str, Any]] = {"paper": {}, "datatrove": _DATATROVE, "fineweb": _DATATROVE | {"need_end_mark": False}}
"""What the options are in each profile where it differs from the defaults."""

_TALLIES = {
    "long_word_lines": c4.LONG_WORD,
    "lines_without_end_mark": c4.NO_END_MARK,
    "short_lines": c4.FEW_WORDS,
    "javascript_lines": c4.JAVASCRIPT,
    "policy_lines": c4.POLICY,
}


class C4Quality(ProfiledFilter):
    """Keeps lines that end as sentences do and say nothing of policies, and drops pages that have few of them."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = PROFILES

    profile: Literal["paper", "datatrove", "fineweb"] = Field(
        default="paper",
        description="Whose values the options take that are not given. paper: the authors'. datatrove: 5 sentences, "
        "3 words counted with citations, ' ends a line too. fineweb: as datatrove, without need_end_mark.",
    )
    min_sentences: int = Field(default=3, ge=0, description="Least sentences of a page; datatrove and fineweb: 5.")
    min_words_per_line: int = Field(
        default=5, ge=0, le=2**31 - 1, description="Least words of a line; datatrove and fineweb: 3."
    )
    words_before_citations: bool = Field(
        default=False, description="Count the words of a line before its citations are removed; datatrove and fineweb: true."
    )
    need_end_mark: bool = Field(
        default=True, description='Remove lines that do not end in . ? ! or ", or that end in three dots; fineweb: false.'
    )
    apostrophe_ends_line: bool = Field(default=False, description="Let ' end a line too; datatrove and fineweb: true.")
    max_word_chars: int = Field(
        default=1000, ge=1, le=2**31 - 1, description="Most characters of a word; lines with a longer one go."
    )
    remove_citations: bool = Field(default=True, description="Remove [12], [edit] and [citation needed].")
    remove_javascript: bool = Field(default=True, description='Remove lines that say "javascript".')
    remove_policies: bool = Field(default=True, description="Remove lines that speak of terms of use, privacy or cookies.")
    drop_lorem_ipsum: bool = Field(default=True, description='Drop pages that say "lorem ipsum".')
    drop_curly_brackets: bool = Field(default=True, description="Drop pages with a { in a line that is not removed before.")
    max_chars: int | None = Field(
        default=None, ge=0, description="Most characters of the page as it came; no limit when not given. The authors: 190000."
    )
    min_long_lines: int = Field(default=0, ge=0, description="Least long lines of the page as it came. mC4: 3.")
    long_line_chars: int = Field(default=200, ge=0, le=2**31 - 1, description="Least characters of a long line.")

    counts: ClassVar[tuple[str, ...]] = tuple(_TALLIES)
    """Lines removed from the documents that are kept, by reason."""

    def rules(self) -> Sequence[Rule]:
        size = [] if self.max_chars is None else [self.at_most("too_many_chars", "max_chars")]
        lorem = [Rule(name="lorem_ipsum", limit=0, side="max")] if self.drop_lorem_ipsum else []
        brackets = [Rule(name="curly_bracket", limit=0, side="max")] if self.drop_curly_brackets else []
        least = self.at_least("too_few_long_lines", "min_long_lines"), self.at_least("too_few_sentences", "min_sentences")
        return [*size, least[0], *lorem, *brackets, least[1]]

    def process(self, batch: DocumentBatch) -> FilterResult:
        offsets, data = batch.buffers
        judged = c4.judge(batch.lines, data, self._limits(), self.remove_citations, self.long_line_chars)
        measured = [
            judged.sums[:, c4.LONG_LINES],
            *([judged.sums[:, c4.LOREM_IPSUM]] if self.drop_lorem_ipsum else []),
            *([judged.sums[:, c4.CURLY_BRACKET]] if self.drop_curly_brackets else []),
            judged.sums[:, c4.SENTENCES],
        ]
        if self.max_chars is not None:
            measured.insert(0, columns.numbers(columns.compute.utf8_length(batch.texts)))
        result = FilterResult.judged(self.rules(), measured)
        keep = result.keep
        new = {name: pa.array(np.where(keep, judged.sums[:, reason], 0)) for name, reason in _TALLIES.items()}
        if (keep & (judged.sums[:, c4.JOINED_BYTES] != np.diff(offsets))).any():
            new["text"] = columns.texts_from(*c4.joined(batch.lines.doc_offsets, judged, keep))
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

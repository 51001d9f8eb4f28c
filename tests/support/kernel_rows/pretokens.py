"""Rows of `datapipe/kernels/tokens/pretokens.py`, compared with `tokenizers`; see also `test_published_patterns.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.tokens import pretokens
from datapipe.tokens.character_classes import cl100k_table, deepseek_table, gpt2_table, o200k_table
from datapipe.tokens.published_patterns import PATTERNS, Family, Flags
from tests.oracles.pretokens import ends_of_case
from tests.support.kernel_table import Case, Row


def _row(kernel: Any, family: Family, flags: Flags, arguments: Sequence[Any], variant: str = "") -> Row:
    """A row of the pattern that has these flags."""
    expressions = next(pattern for pattern, known in PATTERNS.items() if (known.family, known.flags) == (family, flags))

    def expected(case: Case) -> tuple[int, list[list[int]]]:
        ends = ends_of_case(expressions, case.offsets, case.texts)
        return len(ends), [ends]

    return Row(
        kernel=kernel,
        arguments=lambda case: [case.offsets, case.data, *arguments, np.zeros(len(case.data), np.int64)],
        oracle=expected,
        variant=variant,
        valid_only=True,
        from_case=True,
    )


ROWS = [
    _row(pretokens.cut_gpt2, "gpt2", Flags(), [gpt2_table(), 0]),
    _row(pretokens.cut_gpt2, "gpt2", Flags(longest_number=1, numbers_apart=True), [gpt2_table(digits_apart=True), 1], "digits"),
    _row(pretokens.cut_cl100k, "cl100k", Flags(longest_number=3), [cl100k_table(), 3, False]),
    _row(pretokens.cut_cl100k, "cl100k", Flags(whole_tail=True), [cl100k_table(), 0, True], "tail"),
    _row(pretokens.cut_o200k, "o200k", Flags(longest_number=3, contractions=True), [o200k_table(), 3, True]),
    _row(pretokens.cut_o200k, "o200k", Flags(longest_number=1), [o200k_table(), 1, False], "tekken"),
    _row(pretokens.cut_deepseek, "deepseek", Flags(longest_number=3), [deepseek_table()]),
]

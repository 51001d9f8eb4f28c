"""Every kernel equals its oracle on every case of the kernel table, with inputs that may be read-only and may be writable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.kernels import KernelByType
from tests.support.kernel_table import (
    CASES,
    PARAMETER,
    Case,
    Row,
    Steps,
    all_rows,
    declared_name,
    huge_line,
    kernel_names,
    rows_by_kernel,
)

COMPARED_WHOLE = {
    "models/test_train_models.py": """
        text_features.feature_rows fasttext_training.list_grams
        fasttext_training.randomise fasttext_training.train_epoch
    """,
    "loader/test_batches.py": """
        batch.borders batch.positions batch.segments batch.unshifted_labels
    """,
    "loader/test_batches_loss_mask.py": "batch.count_ignored batch.ignore_runs",
    "loader/test_context_slices.py": "batch.split_runs",
    "stage/models/test_models.py": """
        fasttext_labels.flat_labels fasttext_labels.tree_labels fasttext_labels.flat_scores fasttext_labels.tree_scores
    """,
    "loader/order/test_cells.py": "cells.find_in_cells",
    "loader/order/test_source_order.py": "windows.find_addresses",
    "kernels/text/test_text.py": "sentences.find_ends",
    "kernels/text/test_spaced_words.py": "icu_breaks.write_breaks spaced_words.cut_at_breaks spaced_words.write_spaces",
    "kernels/tokens/test_permute.py": "permute.feistel permute.shuffle_table",
    "../stages/dedup/test_substring.py": "substring.hash_windows substring.select_grams",
    "tokens/test_packing.py": """
        pack.best_fit pack.by_row pack.fill_rows pack.split_by_powers
        split_to_fill.open_rows split_to_fill.split_to_fill
    """,
    "tokens/test_patterns.py": "pretokens.cut_words",
    "tokens/test_segments.py": "borders.learn_tokens",
    "tokens/test_tokens.py": "bpe_training.join_pairs word_sums.sum_words",
}
"""Kernels without a row: what they make together is compared with a definition or a library, or its bytes are pinned."""

SLOW_ORACLES = """
assignments.match_names copies.find_copies english_words.cut_words
fasttext.embed keywords.find_keywords line_rules.classify_lines line_rules.write_texts linear_scores.weigh_texts
minhash.sign normalize.rewrite normalize.survey quality.count_stop_words repetition.measure_ngrams
sentences.sum_sentences tokens.match_forms unicode_words.split_unicode_words
words.split_words
"""
"""Kernels whose oracles take half a second or more over all cases."""

WITHOUT_ROWS = {name for names in COMPARED_WHOLE.values() for name in names.split()}
KERNELS = [
    pytest.param(name, marks=[pytest.mark.medium] * (name in SLOW_ORACLES.split()))
    for name in kernel_names()
    if name not in WITHOUT_ROWS
]


@pytest.mark.parametrize(PARAMETER, KERNELS)
def test_kernel_equals_its_oracle_on_every_case(kernel_name: str) -> None:
    rows = rows_by_kernel().get(kernel_name, [])
    assert rows, f"{kernel_name} has no row in tests/support/kernel_rows"
    differences = [line for row in rows for line in [*differences_of(row), *differences_by_access(row)]]
    assert not differences, "\n".join([f"{kernel_name} differs from its oracle in {len(differences)} cases", *differences])


@pytest.mark.slow
@pytest.mark.parametrize(PARAMETER, KERNELS)
def test_kernel_equals_its_oracle_on_lines_of_many_blocks(kernel_name: str) -> None:
    for row in rows_by_kernel()[kernel_name]:
        assert row.compare(huge_line(100_000)).difference is None, row.name


def differences_of(row: Row) -> list[str]:
    """A line for each case in which the kernel and its oracle differ. Fails where no case has a value to compare."""
    differences, num_values = [], 0
    for name, case in row.cases.items():
        try:
            comparison = row.compare(case)
        except Exception as error:
            error.add_note(f"row {row.name!r}, case {name!r}")
            raise
        num_values += comparison.num_values
        if comparison.difference is not None:
            differences.append(f"row {row.name!r}, case {name!r}: {comparison.difference}")
    assert num_values, f"row {row.name!r} compares no value in any of its {len(row.cases)} cases"
    return differences


def differences_by_access(row: Row) -> list[str]:
    """A line if the kernel and its oracle differ where the inputs are all read-only, or all writable."""
    from datapipe.kernels.types import read_only

    changed = [(access, replace(row, steps=partial(_with_inputs, row, access))) for access in (read_only, np.ndarray.copy)]
    found = [(access.__name__, other.compare(CASES["lines"]).difference) for access, other in changed]
    return [f"row {row.name!r}, {name} inputs: {difference}" for name, difference in found if difference is not None]


def _with_inputs(row: Row, change: Callable[[np.ndarray], np.ndarray], case: Case) -> Steps:
    """The steps of a row with its input arrays changed."""

    def is_input(kind: Any) -> bool:
        return getattr(kind, "ndim", 0) > 0 and not kind.mutable

    steps = row.steps(case)
    inputs, outputs = next(steps)
    kernel = next(iter(row.kernel.kernels.values())) if isinstance(row.kernel, KernelByType) else row.kernel
    kinds = kernel.signature.args
    yield [change(value) if is_input(kind) else value for value, kind in zip(inputs, kinds)], outputs
    yield next(steps)


def test_kernel_refuses_a_read_only_output() -> None:
    from datapipe.kernels.text.unicode_classes import prefix_stops
    from datapipe.kernels.types import read_only

    with pytest.raises((TypeError, ValueError)):
        prefix_stops(np.array([0, 1]), np.zeros(1, np.uint8), 1, read_only(np.zeros(1, np.int64)))


def test_kernels_have_at_most_eight_parameters() -> None:
    from datapipe.kernels import all_kernels

    counts = {name: len(inspect.signature(kernel.function).parameters) for name, kernel in all_kernels().items()}
    assert {name: count for name, count in counts.items() if count > 8} == {}


def test_kernel_table_no_row_is_written_twice_or_of_a_kernel_compared_elsewhere() -> None:
    names = [row.name for row in all_rows()]
    assert len(set(names)) == len(names)
    assert not WITHOUT_ROWS & set(rows_by_kernel())
    assert set(kernel_names()) >= WITHOUT_ROWS
    assert all((Path(__file__).parents[1] / path).is_file() for path in COMPARED_WHOLE)


@pytest.mark.medium
def test_kernel_table_knows_every_kernel_by_its_name() -> None:
    from datapipe.kernels import all_kernels

    assert kernel_names() == sorted(set(map(declared_name, all_kernels().values())))

"""What a command says while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from datapipe.classifier.annotation.counts import Counts
from datapipe.classifier.annotation.progress import Progress
from datapipe.classifier.annotation.spending import Prices, Spending, Tokens
from tests.support.annotation_jobs import FakeClock


def test_line_has_rate_time_left_tokens_and_the_cost_to_come():
    clock, counts = FakeClock(), Counts()
    spending = Spending(Prices(prompt=1.0, completion=3.0), None, None)
    counts.scores[2.0] = 20  # of an earlier command
    progress = Progress(Console(file=io.StringIO()), clock, 100, counts, spending)
    assert "20 of 100" in progress.line()
    clock.time += 10
    counts.scores[3.0] += 35
    counts.unparsed["no_score"] += 5
    counts.num_failed_attempts = 1
    spending.end(Tokens(), Tokens(prompt=400_000, completion=200_000))
    line = progress.line()
    for fact in ("60 of 100", "55 scored", "5 without", "4.0/s", "0:10 left", "600,000", "1.00 of about 2.00", "1 attempt"):
        assert fact in line

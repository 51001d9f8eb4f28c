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
    assert progress.line() == "20 of 100 documents (20 scored), 0.0/s, time left unknown, 0 tokens"
    clock.time += 10
    counts.scores[3.0] += 35
    counts.unparsed["no_score"] += 5
    counts.num_failed_attempts = 1
    spending.end(Tokens(), Tokens(prompt=400_000, completion=200_000))
    assert progress.line() == (
        "60 of 100 documents (55 scored, 5 without a score), 4.0/s, 0:10 left, 600,000 tokens, cost 1.00 of about 2.00, "
        "1 attempt failed"
    )

"""The `tokenizer` entry of report.json: bytes per token, tokens per word and unused ids, from the tokenize steps.

The numbers come from the records of the tasks. The used ids of each task are a file of one bit an id (12.5 kB at 100,000 ids),
read once at the end of a run.
"""

from __future__ import annotations

from typing import Any

from datapipe.exchange.partitions import committed_bytes
from datapipe.plan.compile import Plan
from datapipe.plan.outputs import TokenizerFile
from datapipe.storage import Root
from datapipe.token_counts import Fertility
from datapipe.tokens.fertility import described, merged_ids, unused_tokens


def tokenizer_report(root: Root, plan: Plan) -> dict[str, Any] | None:
    """The `tokenizer` entry; None before there is a tokenizer. `unused` is None until every document is tokenized."""
    tokenizer = next((output for step in plan.of_kind("train") for output in step.outputs("tokenizer", TokenizerFile)), None)
    if tokenizer is None:
        return None
    steps = plan.of_kind("tokenize")
    sources: dict[str, Fertility] = {}
    total = Fertility()
    for step in steps:
        fertility = sources.setdefault(step.source, Fertility())
        for record in step.records:
            fertility.add(record.metrics.fertility)
        total.add(fertility)
    unused = None
    if all(step.is_committed for step in steps):
        parts = (committed_bytes(root, output) for step in steps for output in step.outputs("used_ids"))
        unused = unused_tokens(committed_bytes(root, tokenizer), merged_ids(tokenizer.vocab_size, parts))
    return {
        "vocab_size": tokenizer.vocab_size,
        "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "total": described(total),
        "sources": {name: described(fertility) for name, fertility in sources.items()},
        "unused": unused,
    }

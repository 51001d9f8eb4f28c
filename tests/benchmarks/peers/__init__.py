"""Beside peers: ratios of alternating pairs, each library in an environment of its own with pinned versions.

environments.toml ─▶ uv ─▶ programs/*.py, ours and a peer's in turn ─▶ peers.json ─▶ tables, sentences of READMEs

python -m tests.benchmarks peers --write               all of it: 12 minutes, on a machine with nothing else to do
python -m tests.benchmarks peers --only grain          comparisons with this in their name
python -m tests.benchmarks peers --against COMMIT      beside the results of a commit, or of a file
python -m tests.benchmarks peers --figures tests/benchmarks/peers.json --against COMMIT      the same, measuring nothing
"""

from tests.benchmarks.peers.comparisons import tables

__all__ = ["tables"]

"""What an addition costs: a fixed time, so much for each new document, and so much for each document that is there already.

    python -m tests.benchmarks.following --additions 100 --documents 1000 4000

Additions of so many documents each, alternately, to one output, with exact and MinHash deduplication; in one process, so that
the start of workers is not in it. The times are fitted by least squares: seconds = a + b * new + c * old.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from datapipe.api import execute
from datapipe.card.whole import whole_report
from datapipe.composing.additions import begin_addition
from datapipe.config import Mixture, load_mixture
from datapipe.engine.prepare import Only
from datapipe.engine.run import Run
from datapipe.following.additions import mixture_of, publish_addition
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs

_STAGES = "stages:\n  - normalize.unicode\n  - filter.gopher_quality\n  - dedup.exact\n  - dedup.minhash: {}\n"
_TAIL = "tokenizer: {train: {vocab_size: 4096}}\npack: {sequence_length: 512}\nexecution: {check_disk: false}\n"


def measure(num_additions: int, counts: list[int]) -> np.ndarray:
    """(num_additions, 3): new documents, documents before, seconds of each addition."""
    folder = Path(tempfile.mkdtemp(prefix="following-"))
    try:
        path = runs.write_mixture(folder, f"  web:\n    path: {folder}/in/*.jsonl\n", _STAGES, _TAIL)
        corpora.write_jsonl(folder / "in/000.jsonl", corpora.documents(0, counts[0]))
        root, mixture, old, rows = Root(str(folder / "out")), load_mixture(path), counts[0], []
        _run(mixture, None)
        for number in range(1, num_additions + 1):
            new = counts[number % len(counts)]
            corpora.write_jsonl(folder / f"in/{number:03}.jsonl", corpora.documents(number, new))
            snapshot = read_snapshot(root)
            assert isinstance(snapshot, Snapshot)
            started = time.perf_counter()
            addition = begin_addition(root, snapshot.fingerprint, {"web": (f"{number:03}.jsonl",)})
            one = mixture_of(mixture, root, addition)
            _run(one, addition.files)
            publish_addition(root, mixture, addition, whole_report)
            rows.append((new, old, time.perf_counter() - started))
            old += new
        return np.array(rows)
    finally:
        shutil.rmtree(folder)


def _run(mixture: Mixture, only: Only | None) -> None:
    problem = execute(Run(mixture, runs.InProcess, runs.Watcher(), only=only))
    if problem is not None:
        raise problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--additions", type=int, default=100)
    parser.add_argument("--documents", type=int, nargs="+", default=[1000, 4000], help="of each addition, in turn")
    arguments = parser.parse_args()
    measured = measure(arguments.additions, arguments.documents)
    new, old, seconds = measured.T
    (a, b, c), *_ = np.linalg.lstsq(np.stack([np.ones_like(new), new, old], axis=1), seconds, rcond=None)
    for count in (1, 10, 100):
        if count <= len(measured):
            print(f"additions {count}  seconds {seconds[count - 1]:.2f}  new {new[count - 1]:.0f}  old {old[count - 1]:.0f}")
    print(f"a {a:.3f} s  b {1e6 * b:.1f} us a new document  c {1e6 * c:.2f} us an old one  b / c {b / c:.0f}")


if __name__ == "__main__":
    main()

"""Finished outputs that many tests read: each is made once by a run in this process, and no test changes it.

    plain         one source, filters, exact and near duplicates, redaction, tokens, held-out rows
    deduplicated  documents of every fate: all of dedup, tags, a stage that raises, unreadable lines (`browsed.py`)
    lengths       the inputs of plain, packed into rows of 64 and of 32
    documents     two sources with licences, without a tokenizer
    grown         a source to which two additions were made, and one run over all of it beside
    composed      rows of plain, drawn beside its own source

The workers of pytest-xdist share them: the first that asks makes one, under a lock in the folder above their own.
"""

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from datapipe.config import Mixture, load_mixture
from datapipe.engine.following.follow import Follower
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from tests.support import browsed, corpora, runs

GROWN_TAIL = (
    "tokenizer: {path: %s, eos: <|endoftext|>}\npack: {sequence_length: 64}\nmixture: {tokens: 40000}\n"
    "execution: {split_bytes: 16KiB, check_disk: false, cost_per_core_hour: 2.0}\n"
)
LICENSED = r"""
  web: {path: FOLDER/web.jsonl, license_field: terms, license: CC-BY-4.0, homepage: https://example.org, collected: 2024-05}
  made: {path: FOLDER/made.jsonl, license: LicenseRef-our-terms, synthetic: {model: "m|`x`\n---\n<script>"}}
"""


def finish(mixture: Path | Mixture, generation: Any = None) -> runs.Finished:
    """Runs a mixture in this process to its end, with its report, page and card."""
    loaded = mixture if isinstance(mixture, Mixture) else load_mixture(mixture)
    run = Run(loaded, runs.Watcher(), make_engine=runs.InProcess, generation=generation)
    run_and_report(run).raise_problem()
    assert run.plan is not None and run.snapshot is not None
    return runs.Finished(mixture=loaded, snapshot=run.snapshot, watcher=runs.Watcher(), plan=run.plan)  # type: ignore[arg-type]


def _plain(folder: Path, others: Callable[[str], Path], tail: str = runs.TAIL) -> None:
    corpora.write_jsonl(folder / "web/a.jsonl", corpora.documents(1, 120))
    finish(runs.write_mixture(folder, f"  web:\n    path: {folder}/web/*.jsonl\n", tail=tail))


def _lengths(folder: Path, others: Callable[[str], Path]) -> None:
    _plain(folder, others, runs.TAIL.replace("sequence_length: 64", "sequence_length: [64, 32]"))


def _deduplicated(folder: Path, others: Callable[[str], Path]) -> None:
    sys.path.append(str(folder))
    finish(browsed.write(folder))


def write_licensed(folder: Path) -> str:
    """Two sources with licences, of which a model with a hostile name wrote one; returns the `sources:` part of a mixture."""
    for seed, name in enumerate(("web", "made")):
        rows: list[dict[str, Any]] = list(corpora.documents(seed, 60))
        for number, row in enumerate(rows):
            row["text"] += f"\nWrite to joe{number}@example.org." if number % 5 == 0 else ""
            row["terms"] = ["mit", None][number % 2]
        corpora.write_jsonl(folder / f"{name}.jsonl", rows)
    return LICENSED.replace("FOLDER", str(folder))


def _documents(folder: Path, others: Callable[[str], Path]) -> None:
    stages = "stages: [normalize.unicode, filter.gopher_quality, dedup.exact, redact.pii]"
    finish(runs.write_mixture(folder, write_licensed(folder), stages, "tokenizer: none"))


def _grown_mixture(folder: Path, texts: Path, tokenizer: Path) -> Path:
    folder.mkdir(exist_ok=True)
    sources = f"  web: {{path: {texts}/web/*.jsonl, license_field: license, homepage: https://web.example}}\n"
    sources += f"  code: {{path: {texts}/code/*.jsonl, license: MIT, synthetic: true, cost: {{usd: 5}}}}\n"
    stages = "stages:\n  - filter.gopher_quality\n  - dedup.exact: {keep: first}\n"
    return runs.write_mixture(folder, sources, stages, GROWN_TAIL % tokenizer)


def _grown(folder: Path, others: Callable[[str], Path]) -> None:
    """Texts are dropped in the order of their files, which is that of the additions; documents of one file have one licence."""
    tokenizer = others("plain") / "out/tokenizer.json"
    path = _grown_mixture(folder, folder / "in", tokenizer)
    for number, names in enumerate([("web", "code"), ("web",), ("web", "code")]):
        for name in names:
            documents = corpora.documents(number, 40) + corpora.documents(max(0, number - 1), 12)
            licensed = [{**document, "license": ["MIT", "0BSD"][row % 2]} for row, document in enumerate(documents)]
            corpora.write_jsonl(folder / f"in/{name}/{number}.jsonl", licensed)
        follow(path)
    finish(_grown_mixture(folder / "whole", folder / "in", tokenizer))


def follow(path: Path) -> None:
    """Lists the sources twice, so that files that no snapshot has are added."""

    def ignore(*anything: Any) -> None: ...

    follower: Any = Follower(load_mixture(path), 1.0, finish, ignore, wait=ignore)  # type: ignore
    follower.follow(num_listings=2)


def _composed(folder: Path, others: Callable[[str], Path]) -> None:
    corpora.write_jsonl(folder / "own.jsonl", corpora.documents(7, 60))
    sources = f"  old: {{snapshot: {others('plain')}/out, weight: 0.4}}\n  own: {{path: {folder}/own.jsonl, weight: 0.6}}\n"
    tail = "pack: {sequence_length: 64}\nshards: {target_bytes: 64KiB}\n"
    finish(runs.write_mixture(folder, sources, "stages: [filter.gopher_quality, dedup.exact]", tail))


MAKERS: dict[str, Callable[[Path, Callable[[str], Path]], None]] = {
    "plain": _plain,
    "deduplicated": _deduplicated,
    "lengths": _lengths,
    "documents": _documents,
    "grown": _grown,
    "composed": _composed,
}


def finished_output(name: str, factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished output: its inputs, `mixture.yaml`, and the output `out`. Made if no one has."""
    above = factory.getbasetemp()
    above = above.parent if os.environ.get("PYTEST_XDIST_WORKER") else above
    folder = above / f"finished_{name}"
    with open(above / f"finished_{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "is-whole").exists():
            rmtree(folder, ignore_errors=True)
            folder.mkdir()
            MAKERS[name](folder, lambda other: finished_output(other, factory))
            (folder / "is-whole").touch()
    if name == "deduplicated" and str(folder) not in sys.path:
        sys.path.append(str(folder))  # its functions
    return folder


def _fixture(name: str) -> Callable[[pytest.TempPathFactory], Path]:
    def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return finished_output(name, tmp_path_factory)

    return pytest.fixture(scope="session", name=name)(made)


plain, deduplicated, lengths, documents, grown, composed = map(_fixture, MAKERS)

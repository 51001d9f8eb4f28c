"""Toxicity by lists of words, by a classifier, and by both; and the speed of the matcher of lists.

    python -m tests.benchmarks.toxicity ../shared/data

Comments of Wikipedia talk pages are split into five folds by a hash of the text, HateCheck by its templates, so that no case is
scored by a model that saw another case of its template. The model is `linear` with n-grams of characters, and scores what it
was not trained on. "List" is LDNOOBW's English list. A document counts as toxic by the list with one hit and a density above
`max_density`, by the model with a score above 0.5, and by both where both say so.

Speeds are of one thread on lower-cased English web pages; ahocorasick-rs is measured where it is installed.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.classifier.linear_trainer import LinearTrainer
from datapipe.classifier.metrics import at_threshold, ranking
from datapipe.classifier.training import Examples
from datapipe.columns import text_buffers
from datapipe.kernels.filters.word_lists import count_listed
from datapipe.rng import mix64
from datapipe.stage.models.classifier import open_classifier
from stages.filter._lists.word_lists import read_lists
from tests.benchmarks.tables import NOT_MEASURED, Table

_FOLDS = 5
_DENSITY = 0.01
_RUNS = 5
_ALL = (1 << 64) - 1


def read_set(path: Path) -> list[dict[str, str]]:
    """The records of a CSV file."""
    csv.field_size_limit(1 << 30)
    with pa.input_stream(str(path), compression="detect") as stream:
        return list(csv.DictReader(io.StringIO(stream.read().decode())))


def labelled(folder: Path) -> dict[str, tuple[list[str], np.ndarray, list[str]]]:
    """By name of the set: texts, whether each is toxic, and the group that no fold splits."""
    talk = read_set(folder / "wikipedia_talk_toxicity.csv.zst")
    hate = read_set(folder / "hatecheck_all_cases.csv.zst")
    return {
        "Wikipedia talk": (
            [row["comment"] for row in talk],
            np.array([row["toxic"] == "True" for row in talk]),
            [row["comment"] for row in talk],
        ),
        "HateCheck": (
            [row["test_case"] for row in hate],
            np.array([row["label_gold"] == "hateful" for row in hate]),
            [row["templ_id"] for row in hate],
        ),
    }


def model_scores(texts: list[str], is_toxic: np.ndarray, groups: list[str]) -> np.ndarray:
    """The score of each text by a model that was trained on the other folds."""
    import xxhash

    fold = np.array([xxhash.xxh3_64_intdigest(group.encode()) for group in groups], np.uint64) % np.uint64(_FOLDS)
    scores = np.empty(len(texts))
    for number in range(_FOLDS):
        held_out = fold == np.uint64(number)
        order = np.flatnonzero(~held_out)
        order = order[np.argsort(mix64(order.astype(np.uint64)), kind="stable")]
        examples = Examples(
            texts=pa.array([texts[row] for row in order], pa.large_string()),
            targets=is_toxic[order].astype(np.float64),
            labels=("0", "1"),
            weights=np.ones(len(order)),
        )
        with tempfile.NamedTemporaryFile() as file:
            file.write(LinearTrainer(characters=True).train(examples))
            file.flush()
            model = open_classifier(Path(file.name))
            offsets, data = text_buffers(pa.array([texts[row] for row in np.flatnonzero(held_out)], pa.large_string()))
            scores[held_out] = model.scores(offsets[:-1], offsets[1:], data)[:, 1]
    return scores


def densities(texts: list[str], path: Path) -> np.ndarray:
    """The share of words in hits of a list, for each text."""
    table = read_lists({"en": path}).table
    column = pa.array(texts, pa.large_string())
    found = count_listed(*text_buffers(column), table, np.full(len(texts), _ALL, np.uint64))
    return found.listed / np.maximum(found.words, 1)


def quality(folder: Path, english: Path) -> Table:
    """Every set by every way."""
    rows: list[tuple[str, ...]] = []
    for name, (texts, is_toxic, groups) in labelled(folder).items():
        density, scores = densities(texts, english), model_scores(texts, is_toxic, groups)
        ways = {
            "list, any hit": ((density > 0).astype(float), density),
            f"list, density above {_DENSITY}": ((density > _DENSITY).astype(float), density),
            "model": ((scores > 0.5).astype(float), scores),
            "both": (((density > _DENSITY) & (scores > 0.5)).astype(float), None),
            "either": (((density > _DENSITY) | (scores > 0.5)).astype(float), None),
        }
        for way, (decided, ordered) in ways.items():
            told = at_threshold(is_toxic, decided, 0.5)
            area = "" if ordered is None else f"{ranking(is_toxic, ordered).auc.value:.3f}"
            hits = f"{decided[is_toxic].mean():.1%}", f"{decided[~is_toxic].mean():.1%}"
            figures = (f"{told.f1.value:.3f}", f"{told.precision.value:.3f}", f"{told.recall.value:.3f}")
            rows.append((f"{name}, {len(texts):,}", way, area, *figures, *hits))
    header = ("set", "by", "AUC", "F1", "precision", "recall", "of the toxic", "of the others")
    return Table(title="Toxicity", note=(__doc__ or "").split("\n\n")[2], header=header, rows=rows)


def speed(texts: list[str], entries: dict[str, list[str]]) -> Table:
    """MB/s of the matcher and of ahocorasick-rs, with the English list and with all."""
    column = pa.array([text.lower() for text in texts], pa.large_string())
    lowered = column.to_pylist()
    num_bytes = sum(len(text.encode()) for text in lowered)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in {
            "English": entries["en"],
            "28 languages": [word for own in entries.values() for word in own],
        }.items():
            path = Path(folder, "list.txt")
            path.write_text("\n".join(words), encoding="utf-8")
            table, masks = read_lists({"all": path}).table, np.full(len(lowered), _ALL, np.uint64)

            work = partial(count_listed, *text_buffers(column), table, masks)
            measured = [_rate(work, num_bytes), _peer_rate(words, lowered, num_bytes)]
            cells = (NOT_MEASURED if rate is None else f"{rate:,.1f}" for rate in measured)
            rows.append((f"{name}, {len(words):,} entries", *cells))
    note = f"MB/s of one thread on {num_bytes / 1e6:,.0f} MB of lower-cased English web pages."
    return Table(title="Lists of words", note=note, header=("list", "here", "ahocorasick-rs"), rows=rows)


def _peer_rate(words: list[str], texts: list[str], num_bytes: int) -> float | None:
    try:
        import ahocorasick_rs  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    matcher = ahocorasick_rs.AhoCorasick(words, implementation=ahocorasick_rs.Implementation.DFA)
    return _rate(lambda: [matcher.find_matches_as_indexes(text) for text in texts], num_bytes)


def _rate(work: Callable[[], object], num_bytes: int, num_runs: int = _RUNS) -> float:
    """MB/s of the best of some runs, by the process's CPU time."""
    work_s = []
    for _ in range(num_runs + 1):
        began = time.process_time()
        work()
        work_s.append(time.process_time() - began)
    return num_bytes / 1e6 / min(work_s)


def main(data: Path) -> None:
    with pa.input_stream(str(data / "toxicity" / "ldnoobw.jsonl.zst"), compression="detect") as stream:
        listed = [json.loads(line) for line in stream.read().decode().splitlines()]
    entries: dict[str, list[str]] = {}
    for row in listed:
        entries.setdefault(row["lang"], []).append(row["word"])
    texts: list[str] = []
    for name in ("cleaneval_web", "govuk_news"):
        with pa.input_stream(str(data / "prose" / f"{name}.jsonl.zst"), compression="detect") as stream:
            texts += [json.loads(line)["text"] for line in stream.read().decode().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        english = Path(folder, "en.txt")
        english.write_text("\n".join(entries["en"]), encoding="utf-8")
        print(quality(data / "toxicity", english).to_markdown())
    print(speed(texts, entries).to_markdown())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

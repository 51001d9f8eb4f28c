"""What decontamination finds and misses.

Items of the benchmarks of the real corpora are planted into its prose, each into its own document, in several forms: a
document is found if the stage would drop or cut it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from datapipe.stage.documents import DocumentBatch
from stages.decontaminate._evaluation_files import Benchmark, EvaluationSet, Item, read_set
from stages.decontaminate.ngram import Ngram
from tests.benchmarks.tables import Bound, Settings, Table, both_best_s
from tests.benchmarks.texts import made_up_texts
from tests.support.evaluation_files import batch

PROFILES = ("gpt3", "strict", "coverage")
MOST_OF_BENCHMARK = 300
AROUND_CHARS = 1500


def _whole(item: Item) -> str:
    return f"{item.question} {item.answer}"


def _edited(item: Item) -> str:
    """Question and answer with a letter more in the middle word of the question."""
    words = item.question.split()
    middle = len(words) // 2
    return " ".join([*words[:middle], f"{words[middle]}s" if words else "", *words[middle + 1 :], item.answer])


FORMS: Mapping[str, Callable[[Item], str]] = {
    "question and answer": _whole,
    "capitals": lambda item: _whole(item).upper(),
    "no punctuation": lambda item: re.sub(r"[^\w\s]", "", _whole(item)),
    "a word a line": lambda item: "\n".join(_whole(item).split()),
    "Q: … A: …": lambda item: f"Q: {item.question}\nA: {item.answer}",
    "one word edited": _edited,
    "question alone": lambda item: item.question,
}


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Documents with an item each: the number of its benchmark, and the text."""

    sets: Sequence[int]
    texts: Sequence[str]


def prose(folder: Path) -> list[str]:
    """The texts of the prose corpora."""
    texts = []
    for path in sorted((folder / "prose").glob("*.jsonl.zst")):
        with zstandard.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return texts


def planted(sets: Sequence[EvaluationSet], texts: Sequence[str], form: Callable[[Item], str]) -> Planted:
    """A sample of the items of each benchmark, each between two pieces of prose."""
    rng, long = random.Random(7), [text for text in texts if len(text) > 3 * AROUND_CHARS]
    numbers, documents = [], []
    for number, evaluation in enumerate(sets):
        for item in rng.sample(evaluation.items, min(len(evaluation.items), MOST_OF_BENCHMARK)):
            text = rng.choice(long)
            place = rng.randrange(AROUND_CHARS, len(text) - AROUND_CHARS)
            before, after = text[place - AROUND_CHARS : place], text[place : place + AROUND_CHARS]
            numbers.append(number)
            documents.append(f"{before}\n{form(item)}\n{after}")
    return Planted(sets=numbers, texts=documents)


def found_by(stage: Ngram, texts: Sequence[str]) -> set[int]:
    """The documents in which a stage finds something."""
    findings = stage.process(batch(texts)).findings
    assert findings is not None
    return set(findings.column("row").to_pylist())


def _write(path: Path, records: Iterator[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def tables(settings: Settings) -> Iterator[Table]:
    against = tuple(sorted((settings.data / "benchmarks").iterdir()))
    sets = [read_set(benchmark) for benchmark in Benchmark(path=against).sets()]
    texts = prose(settings.data)[: 200 if settings.quick else None]
    stages = {profile: Ngram(against=against, profile=profile) for profile in PROFILES}
    yield from _found(stages, sets, texts)


def bounds(folder: Path) -> Iterator[Bound]:
    texts = made_up_texts(500).to_pylist()
    items = [Item(name=str(n), question=text[n : n + 200], answer="", choices=()) for n, text in enumerate(texts[:100])]
    paths = {name: folder / f"{name}.jsonl" for name in ("few", "many")}
    _write(paths["few"], ({"question": item.question} for item in items))
    _write(paths["many"], ({"question": f"{item.question} {number}"} for number in range(20) for item in items))
    clean = [batch(made_up_texts(3_000).to_pylist()[500:])]
    few, many = (Ngram(against=(path,), profile="strict") for path in paths.values())
    few_s, many_s = both_best_s(lambda: _process(few, clean), lambda: _process(many, clean), 3)
    yield Bound(name="decontaminate.ngram, twenty times the items", ratio=many_s / few_s, most=3)
    yield Bound(name="decontaminate.ngram, planted items found", ratio=len(found_by(few, texts[:100])) / 100, least=1)


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _found(stages: Mapping[str, Ngram], sets: Sequence[EvaluationSet], texts: Sequence[str]) -> Iterator[Table]:
    """What is found by form and by benchmark, and documents of clean prose that are taken for contaminated."""
    rows, of_forms = [], []
    for name, form in FORMS.items():
        plants = planted(sets, texts, form)
        found = {f"`{profile}`": found_by(stage, plants.texts) for profile, stage in stages.items()}
        rows.append([name, *(share(len(each), len(plants.texts)) for each in found.values())])
        of_forms.append((plants, found))
    plants, found = of_forms[0]
    clean = [text for text in texts if text.strip()]
    wrong = [str(len(found_by(stage, clean))) for stage in stages.values()]
    rows.append([f"found in clean prose, {len(clean):,} documents", *wrong])
    header = (f"{len(plants.texts):,} items, planted as", *found)
    note = "Shares of the planted items that are found."
    kept_in = "stages/decontaminate/README.md"
    yield Table(title="Decontamination by form", note=note, header=header, rows=rows, kept_in=kept_in)
    header, rows = ("benchmark", "items", "undetectable", *found), _by_set(stages, sets, plants, found)
    yield Table(title="Decontamination by benchmark", note=note, header=header, rows=rows, kept_in=kept_in)


def _by_set(
    stages: Mapping[str, Ngram], sets: Sequence[EvaluationSet], plants: Planted, found: Mapping[str, set[int]]
) -> list[list[str]]:
    undetectable = {listed.name: len(listed.undetectable) for listed in stages["strict"].searched_lists()}
    rows = []
    for number, evaluation in enumerate(sets):
        own = {document for document, of_set in enumerate(plants.sets) if of_set == number}
        cells = [share(len(own & each), len(own)) for each in found.values()]
        rows.append([evaluation.name, f"{len(evaluation.items):,}", f"{undetectable[evaluation.name]:,}", *cells])
    return rows


def _process(stage: Ngram, batches: Sequence[DocumentBatch]) -> None:
    for each in batches:
        stage.process(each)

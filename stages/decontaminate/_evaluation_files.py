"""Evaluation files: JSONL or Parquet, with any compression, become items of question, answer and choices.

    files  ─▶  records  ─▶  fields by role  ─▶  items

The roles of fields are those that the mixture names, or the first names of `_FIELDS` that the first records have; a field has
one role. Choices may also be option1, option2 …, choice1 …, sol1 …, ending0 …, and gold an answer that is a number or a letter.
A list under the question, such as `context_options` of WinoGrande, holds one question for each choice. Of several answers the
first one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.stage.decoding import BOM, COMPRESSION_OF_ENDING, BrokenStreamError, decoded

_JSON_ENDINGS, _PARQUET_ENDINGS = (".jsonl", ".json", ".ndjson"), (".parquet", ".pq")
_PROBED_RECORDS = 100  # Records whose fields are read
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "question": (
        *("question", "query", "problem", "prompt", "goal", "premise", "sentence", "ctx", "input", "instruction"),
        "question_stem",
        *("context_options", "context", "text"),
    ),
    "context": ("passage", "article", "support", "story", "background", "context"),
    "choices": ("choices", "options", "endings"),
    "gold": ("gold", "label", "answerKey", "answer_index", "correct_option"),
    "answer": (
        *("answer", "continuation", "canonical_solution", "solution", "best_answer", "target", "output", "completion"),
        *("code", "response", "correct_answer", "answers"),
    ),
    "id": ("id", "task_id", "doc_id", "question_id", "qid", "ind"),
}
_NUMBERED = re.compile(r"(option|choice|sol|ending)(\d)")
_LABEL = re.compile(r"\s*(question|q)\s*[:：]\s*", re.IGNORECASE)
_ANSWER_LABEL = re.compile(r"\s*(answer|a)\s*[:：]\s*$", re.IGNORECASE)
_BLANK = re.compile(r"_+")


class Benchmark(BaseModel):
    """An evaluation set, and the fields that count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path | tuple[Path, ...] = Field(
        description="Files, URLs or patterns (* and **): .jsonl or .parquet, also .gz, .zst, .lz4, .bz2, .xz."
    )
    name: str = Field(
        default="", description="Its name in tables and reports, for all files together. Default: each file is a set."
    )
    question: str = Field(default="", description="Field of the question. Without any of these fields they are recognised.")
    context: str = Field(default="", description="Field of a passage that the question is about.")
    answer: str = Field(default="", description="Field of the answer.")
    choices: str = Field(default="", description="Field of the list of choices.")
    gold: str = Field(default="", description="Field with the right choice: a number from 0, a letter or its text.")
    id: str = Field(default="", description="Field of the name of an item. Default: recognised, else the row.")

    def files(self) -> tuple[Path, ...]:
        """The files, each once, in the order of the mixture: copies on other machines sort otherwise."""
        return tuple(dict.fromkeys((self.path,) if isinstance(self.path, Path) else self.path))

    def sets(self) -> tuple[Benchmark, ...]:
        """The set that it names, or a set for each file."""
        if self.name:
            return (self,)
        return tuple(self.model_copy(update={"path": path, "name": _stem(path)}) for path in self.files())


def _refusal(text: str) -> UserError:
    return UserError(f"decontaminate.ngram: against: {text}")


def _stem(path: Path) -> str:
    name = path.name
    return re.split(r"\.(?:jsonl|json|ndjson|parquet|pq)\b", name)[0] or name


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """An item of an evaluation set: its id, or its row; the question behind its passage; the right
    answer, empty where the file has none; the other choices."""

    name: str
    question: str
    answer: str
    choices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSet:
    """The items of a benchmark, and its fields by role."""

    name: str
    fields: Mapping[str, str]
    items: tuple[Item, ...]

    def summary(self) -> str:
        """The fields in words: "question: query, answer: choices at gold"."""
        roles = [f"{role} from {field}" for role, field in self.fields.items() if role != "id"]
        return f"{self.name}: {len(self.items):,} items; {', '.join(roles)}"


def read_set(benchmark: Benchmark) -> EvaluationSet:
    """The items of a benchmark. Raises UserError."""
    records: list[Mapping[str, Any]] = []
    for path in benchmark.files():
        records += _records(str(path))
    if not records:
        raise _refusal(f"{benchmark.name}: {', '.join(map(str, benchmark.files()))}: no record.")
    fields = _fields(benchmark, records)
    items = [_item(record, fields, row) for row, record in enumerate(records)]
    if len({item.name for item in items}) < len(items):
        items = [_item(record, {**fields, "id": ""}, row) for row, record in enumerate(records)]
    return EvaluationSet(name=benchmark.name, fields=fields, items=tuple(items))


def _records(path: str) -> Iterator[Mapping[str, Any]]:
    compression = next((name for ending, name in COMPRESSION_OF_ENDING.items() if path.lower().endswith(ending)), None)
    plain = path.lower() if compression is None else path.lower().rpartition(".")[0]
    if not plain.endswith(_JSON_ENDINGS + _PARQUET_ENDINGS):
        raise _refusal(f"{path}: expected a .jsonl or .parquet file, perhaps compressed.")
    try:
        content = b"".join(decoded(pa.OSFile, path, compression))
        is_parquet = plain.endswith(_PARQUET_ENDINGS)
        yield from pq.read_table(pa.BufferReader(content)).to_pylist() if is_parquet else _of_json(content, path)
    except (OSError, BrokenStreamError, pa.ArrowException) as error:
        raise _refusal(f"cannot read {path}: {error}") from error


def _of_json(content: bytes, path: str) -> Iterator[Mapping[str, Any]]:
    content = content.removeprefix(BOM)
    is_array = content.lstrip()[:1] == b"["
    for row, line in enumerate([content] if is_array else content.split(b"\n")):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise _refusal(f"{path}, line {row + 1}: {error}. Expected a JSON object.") from error
        for record in value if is_array else [value]:
            if not isinstance(record, dict):
                raise _refusal(f"{path}, line {row + 1}: found {type(record).__name__}, expected an object.")
            yield record


def _fields(benchmark: Benchmark, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    known = list(dict.fromkeys(field for record in records[:_PROBED_RECORDS] for field in record))
    roles = ("question", "context", "answer", "choices", "gold")
    options = benchmark.model_dump()
    named = {role: options[role] for role in (*roles, "id") if options[role]}
    for role, field in named.items():
        if not any(field in record for record in records):
            raise _refusal(
                f"{benchmark.name}: no record has the field '{field}' that is named under `{role}`. Found: {', '.join(known)}"
            )
    chosen = dict(named) if named.keys() & set(roles) else {**_recognised(known, records), **named}
    if not chosen.keys() & {"question", "answer", "context", "choices"}:
        raise _refusal(
            f"{benchmark.name}: no field is recognised as the question. Found: {', '.join(known)}. Name it: "
            "{path: …, question: FIELD, answer: FIELD}"
        )
    return chosen


def _recognised(known: Sequence[str], records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    by_role: dict[str, str] = {}
    for role, names in _FIELDS.items():
        field = next((name for name in names if name in known and name not in by_role.values()), "")
        if field:
            by_role[role] = field
    numbered = sorted(field for field in known if _NUMBERED.fullmatch(field))
    if "choices" not in by_role and numbered:
        by_role["choices"] = ", ".join(numbered)
    answers = [record.get(by_role.get("answer", "")) for record in records[:_PROBED_RECORDS]]
    if "choices" in by_role and "gold" not in by_role and answers and all(_is_choice(answer) for answer in answers):
        by_role["gold"] = by_role.pop("answer")
    return by_role if "question" in by_role else {}


def _is_choice(answer: Any) -> bool:
    return isinstance(answer, int) or (isinstance(answer, str) and len(answer.strip()) == 1)


def _item(record: Mapping[str, Any], fields: Mapping[str, str], row: int) -> Item:
    name = record.get(fields.get("id", "")) if fields.get("id") else None
    choices, labels = _choices(record, fields.get("choices", ""))
    gold = _gold(record.get(fields.get("gold", "")), choices, labels)
    question = record.get(fields.get("question", ""))
    if isinstance(question, list) and all(isinstance(part, str) for part in question):
        options = tuple(question)
        chosen = _gold(record.get(fields.get("gold", "")), options, ())
        texts = _without_labels(options[chosen] if chosen is not None else "\n".join(options))
    else:
        texts = _without_labels(_text(question))
    answer = _answer(record.get(fields.get("answer", "")))
    if gold is not None:
        answer = choices[gold]
        if fields.get("question") == "sentence" and "_" in texts:
            texts, answer = _BLANK.sub(answer.replace("\\", r"\\"), texts, count=1), ""
    passage = _text(record.get(fields.get("context", "")))
    return Item(
        name=str(row if name is None else name),
        question=f"{passage}\n{texts}".strip(),
        answer=answer,
        choices=tuple(choice for number, choice in enumerate(choices) if number != gold),
    )


def _answer(value: Any) -> str:
    """The answer as text: of several the first, of objects their field `text` or `value`."""
    if isinstance(value, Mapping):
        value = next((value[name] for name in ("text", "value") if name in value), list(value.values()))
    return _answer(value[0] if value else "") if isinstance(value, (list, tuple)) else _text(value)


def _text(value: Any) -> str:
    """A value as text: of lists the members, of objects their field `text` or all of them."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, (list, tuple)):
        return "\n".join(_text(member) for member in value)
    if isinstance(value, Mapping):
        return _text(value["text"] if "text" in value else list(value.values()))
    return str(value)


def _choices(record: Mapping[str, Any], field: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The choices of an item and their labels: those that the file gives, the numbers of fields, or none."""
    if ", " in field:
        names = [name for name in field.split(", ") if name in record]
        return tuple(_text(record[name]) for name in names), tuple(name[-1] for name in names)
    value = record.get(field) if field else None
    if isinstance(value, Mapping):
        texts, labels = value.get("text", list(value.values())), value.get("label", list(value))
        return tuple(map(_text, texts)), tuple(map(str, labels))
    return (tuple(map(_text, value)), ()) if isinstance(value, (list, tuple)) else ((), ())


def _gold(gold: Any, choices: Sequence[str], labels: Sequence[str]) -> int | None:
    """The number of the right choice; None where the file does not have it."""
    text = "" if gold is None else str(gold).strip()
    if not isinstance(gold, int) and text in labels:
        return labels.index(text)
    if text in choices and text:
        return list(choices).index(text)
    number = int(text) if text.isdecimal() else ord(text.upper()) - ord("A") if len(text) == 1 and text.isalpha() else -1
    return number if 0 <= number < len(choices) else None


def _without_labels(question: str) -> str:
    return _ANSWER_LABEL.sub("", _LABEL.sub("", question, count=1) if _LABEL.match(question) else question)

"""Labelled texts to learn from: a bounded sample without duplicates, split into training and held-out documents.

    batches of texts with labels  ─▶  by label: the texts of lowest hash that fit  ─▶  each text once  ─▶  training | held out

Hashes of the texts decide which ones are in the sample, their order and their side, so neither the order of batches nor the
number of workers matters. With groups, such as the site of a page, a group is on one side. A text with two labels is left
out and counted; one with several numbers has their mean. Memory: for each label three times `Limits.sample_bytes`.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import BaseModel, ConfigDict, Field

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.columns import text_buffers, text_lengths
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.dedup.text_hashes import hash_texts
from datapipe.models.labelled_files import LabelledBatch, as_text
from datapipe.rng import GOLDEN, below_fraction, mix64, seed_for

MOST_LABELS = 100
_ABOVE_ALL = 1 << 64

_SCHEMA = pa.schema(
    {"hash": pa.uint64(), "digest": pa.uint64(), "group": pa.uint64(), "target": pa.float64(), "text": pa.large_string()}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Texts to learn from, in an order that follows from their content alone."""

    texts: pa.Array  # (num_docs,) large_string without nulls
    # (num_docs,) float64: the number of the label in `labels`, or the value where `predicts_number`
    targets: np.ndarray
    labels: tuple[str, ...]  # the names of the classes; one name where a number is predicted
    weights: np.ndarray  # (num_docs,) float64, how much each counts; 1 is usual
    predicts_number: bool = False  # whether the targets are values of a scale, and not numbers of labels

    def __len__(self) -> int:
        return len(self.targets)


class Trainer(BaseModel):
    """A kind of model, with the options of its training as fields. Equal examples, order and options give equal bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    predicts_numbers: ClassVar[bool] = False
    """Whether the kind can predict a number; if not, its examples always have labels."""

    seed: int = Field(default=0, ge=0, lt=1 << 63, description="Of the order of the examples and all random numbers.")

    @abstractmethod
    def train(self, examples: Examples) -> bytes:
        """The bytes of a model file, which `open_classifier` reads. Raises UserError where the examples do not suffice."""


class LowestHashes:
    """The documents of lowest hash whose texts together have at most `limit_bytes`; at least one. The order in which they
    come does not matter, since those before a dropped one fill the limit. Memory: three times the limit. `schema` has the
    columns `hash`, uint64, and `text`, large_string; `identity` names columns of 64-bit numbers, `hash` first: of rows
    equal in all of them the first counts."""

    def __init__(self, limit_bytes: int, schema: pa.Schema, identity: Sequence[str] = ("hash",)) -> None:
        self.limit_bytes, self.identity = limit_bytes, identity
        self._below = _ABOVE_ALL
        self._held = [schema.empty_table()]
        self._held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether documents were left out for the limit."""
        return self._below < _ABOVE_ALL

    def add(self, table: pa.Table) -> None:
        if self.is_full:
            table = table.filter(pc.less(table["hash"], pa.scalar(self._below, pa.uint64())))
        self._held.append(table)
        self._held_bytes += int(pc.sum(pc.binary_length(table["text"])).as_py() or 0)
        if self._held_bytes > 2 * self.limit_bytes:
            self.table()

    def table(self) -> pa.Table:
        """The sample, in the order of the hashes."""
        table = pa.concat_tables(self._held).sort_by([(name, "ascending") for name in self.identity])
        table = table.filter(pa.array(is_first(table, self.identity))).combine_chunks()
        ends = np.cumsum(text_lengths(table["text"].combine_chunks()))
        number = max(int(np.searchsorted(ends, self.limit_bytes, "right")), min(1, len(table)))
        if number < len(table):
            self._below = int(table["hash"][number].as_py())
            number = int(np.searchsorted(table["hash"].to_numpy(), np.uint64(self._below)))
        self._held, self._held_bytes = [table[:number]], int(ends[number - 1]) if number else 0
        return self._held[0]


def is_first(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Whether each row of a sorted table differs from the one before in these columns of 64-bit numbers: (num_rows,) bool."""
    return columns.is_first(*(table[name].to_numpy().view(np.uint64) for name in names))


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelling:
    label_field: str = ""  # the field or column with the label; "" where the source is the label
    # whose values the split keeps together; "" for none. A document without a value is a group
    group_field: str = ""
    is_number: bool = False  # whether labels are numbers on a scale
    # of two labels, the one whose score counts; it comes last. None: by its name.
    positive: str | None = None
    # positives, negatives: names of sources; without negatives all others are
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    sample_bytes: int  # text of each label at most, of all documents where numbers are predicted
    max_chars: int | None = None  # characters of the start of each text; None for all
    held_out: float = 0.2  # share of the documents, or of the groups, that is not trained on
    seed: int = 0
    balanced: bool = False  # whether the documents of each label count as much as those of any other


@dataclass(kw_only=True, slots=True)
class Counts:
    read: int = 0  # with a label; `empty` of them, of white space alone, are left out
    empty: int = 0
    # different texts, each label's counted apart; the others are copies, or beyond the sample
    kept: int = 0
    conflicting: int = 0  # texts with several labels, left out; with numbers: that have the mean
    is_full: bool = False  # whether a sample has reached its limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Documents to train on and to measure with, in the order of their hashes, and a digest of all."""

    training: Examples
    held_out: Examples
    counts: Counts
    digest: str


def prepare(batches: Iterable[LabelledBatch], limits: Limits, labelling: Labelling) -> Prepared:
    """Reads all batches. Raises UserError where nothing can be learned from them."""
    samples, counts = dict[str, LowestHashes](), Counts()
    for batch in batches:
        _add(batch, limits, labelling, samples, counts)
    labels = ("number",) if labelling.is_number else _in_order(list(samples), labelling.positive)
    if not labelling.is_number and len(labels) < 2:
        raise UserError(
            f"all {counts.read:,} documents have the label '{labels[0]}'. Expected at least two labels: give files or sources "
            f"of other documents too"
            if labels
            else "no document with a label and a text. Name the fields: --text FIELD --label FIELD"
        )
    tables = [samples[label].table() for label in labels if label in samples]
    counts.kept, counts.is_full = sum(map(len, tables)), any(sample.is_full for sample in samples.values())
    table = _merged(tables, counts, labelling.is_number)
    is_held_out = below_fraction(_keyed(table["group"], seed_for(limits.seed, "classifier", "held out")), limits.held_out)
    order = np.argsort(_keyed(table["hash"], seed_for(limits.seed, "classifier", "order")), kind="stable")
    table, is_held_out = table.take(pa.array(order)), is_held_out[order]
    sides = [_examples(table.filter(pa.array(side)), labels, labelling, limits) for side in (~is_held_out, is_held_out)]
    _check(sides[0], limits)
    digest = xxhash.xxh3_128()
    for name in ("hash", "digest", "target"):
        digest.update(table[name].to_numpy().tobytes())
    return Prepared(training=sides[0], held_out=sides[1], counts=counts, digest=digest.hexdigest())


def _add(batch: LabelledBatch, limits: Limits, labelling: Labelling, samples: dict[str, LowestHashes], counts: Counts) -> None:
    texts = batch.texts if limits.max_chars is None else pc.utf8_slice_codeunits(batch.texts, 0, limits.max_chars)
    table = _hashed(texts, batch, labelling)
    has_text = pc.not_equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    counts.read += len(texts)
    counts.empty += len(texts) - (pc.sum(has_text).as_py() or 0)
    parts = {"number": has_text}
    if not labelling.is_number:
        labels = as_text(batch.values)
        parts = {label: pc.and_(has_text, pc.equal(labels, label)) for label in pc.unique(labels).to_pylist()}
    for label, chosen in parts.items():
        if label not in samples and len(samples) == MOST_LABELS:
            raise UserError(
                f"the labels have more than {MOST_LABELS} different values, such as {', '.join(sorted(samples)[:3])}. Expected "
                f"a few classes; for numbers on a scale give --number, and for text --text FIELD and --label FIELD"
            )
        sample = samples.setdefault(label, LowestHashes(limits.sample_bytes, _SCHEMA, ("hash", "digest", "target")))
        sample.add(table.filter(chosen))


def _hashed(texts: pa.Array, batch: LabelledBatch, labelling: Labelling) -> pa.Table:
    hashes, digests = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint64)
    hash_texts(*text_buffers(texts), hashes, digests)
    groups = hashes
    if labelling.group_field:
        names, of_groups = as_text(batch.others[labelling.group_field]), np.empty(len(texts), np.uint64)
        hash_texts(*text_buffers(pc.fill_null(names, "")), of_groups, np.empty_like(of_groups))
        groups = np.where(pc.is_valid(names).to_numpy(zero_copy_only=False), of_groups, hashes)
    targets = batch.numbers() if labelling.is_number else np.zeros(len(texts))
    return pa.table([pa.array(hashes), pa.array(digests), pa.array(groups), pa.array(targets), texts], schema=_SCHEMA)


def _keyed(column: pa.ChunkedArray, seed: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return mix64(mix64(column.to_numpy() ^ np.uint64(seed)) + GOLDEN)


def _in_order(labels: list[str], positive: str | None) -> tuple[str, ...]:
    """Labels by name; of two the positive one last."""
    from datapipe.stage.models.classifier import positive_label

    labels = sorted(labels)
    if positive is not None and positive not in labels:
        raise UserError(f"--positive {positive}: no document has this label. Expected one of: {', '.join(labels[:20])}")
    number = labels.index(positive) if positive is not None else positive_label(labels)
    if len(labels) == 2 and number is not None:
        labels = [labels[1 - number], labels[number]]
    return tuple(labels)


def _merged(tables: list[pa.Table], counts: Counts, predicts_number: bool) -> pa.Table:
    """All samples in the order of hashes, each text once; targets are numbers of labels."""
    for number, table in enumerate([] if predicts_number else tables):
        tables[number] = table.set_column(3, "target", pa.array(np.full(len(table), float(number))))
    table = pa.concat_tables([_SCHEMA.empty_table(), *tables]).sort_by([("hash", "ascending"), ("digest", "ascending")])
    starts = np.flatnonzero(is_first(table, ("hash", "digest")))
    sizes = np.diff(np.append(starts, len(table)))
    counts.conflicting += int((sizes > 1).sum())
    if not predicts_number:
        return table.take(pa.array(starts[sizes == 1]))
    targets = table["target"].to_numpy()
    means = [math.fsum(targets[start : start + size]) / size for start, size in zip(starts.tolist(), sizes.tolist())]
    return table.take(pa.array(starts)).set_column(3, "target", pa.array(means, pa.float64()))


def _examples(table: pa.Table, labels: tuple[str, ...], labelling: Labelling, limits: Limits) -> Examples:
    targets, weights = table["target"].to_numpy().copy(), np.ones(len(table))
    if limits.balanced and not labelling.is_number and len(table):
        numbers = np.bincount(targets.astype(np.int64), minlength=len(labels))
        weights = (len(table) / (len(labels) * np.maximum(numbers, 1)))[targets.astype(np.int64)]
    texts = table["text"].combine_chunks()
    return Examples(texts=texts, targets=targets, labels=labels, weights=weights, predicts_number=labelling.is_number)


def _check(training: Examples, limits: Limits) -> None:
    if not len(training):
        raise UserError(f"no document is left to train on; {limits.held_out:.0%} are held out. Give more documents")
    if training.predicts_number:
        return
    missing = [label for number, label in enumerate(training.labels) if not (training.targets == number).any()]
    if missing:
        raise UserError(
            f"no document of label '{missing[0]}' is left to train on, of {len(training):,}: copies, texts with several labels "
            f"and {limits.held_out:.0%} of the documents are held back. Give more documents of it, or a smaller --held-out"
            f"{', or --number, as the labels are numbers' if are_numbers(training.labels) else ''}"
        )


def are_numbers(labels: Sequence[str]) -> bool:
    """Whether more than two labels are all numbers, so that they may be a scale."""
    try:
        return len(labels) > 2 and all(math.isfinite(float(label)) for label in labels)
    except ValueError:
        return False

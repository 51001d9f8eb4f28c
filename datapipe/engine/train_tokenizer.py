"""Trains a tokenizer from files, without a mixture: `datapipe tokenizer train`.

    files ─▶ documents ─┬▶ one in twenty, by keyed hash ─▶ held out: lowest hashes of each source ─▶ table of fertility
                        └▶ the others: lowest hashes, until `sample_bytes` are full ─▶ train ─▶ tokenizer.json

Inputs of one folder are one source. Every document has the same chance, so sources are sampled in proportion to their text;
only mixtures have weights. This process reads all files, once. The hashes of documents alone decide which are taken, so the
order of the inputs does not matter. Memory: twice the sample, and the memory of training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import text_lengths
from datapipe.errors import UserError
from datapipe.inputs.discovery import discover
from datapipe.inputs.planned_input import PlannedInput, damages
from datapipe.lowest_hashes import LowestHashes
from datapipe.metrics import UnreadableFile, by_file, rate_mb_per_s
from datapipe.plan.splits import file_hash
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import FieldNames, InputFile, ReadBatch, Reader
from datapipe.token_counts import Fertility
from datapipe.tokens.encoder import Encoder, slices_of
from datapipe.tokens.fertility import Meter, described, unused_tokens
from datapipe.tokens.training import check_training, train_tokenizer

HELD_OUT = 0.05

_SLICE_BYTES = 4 << 20
_WHOLE_FILE = 1 << 62
_SAMPLED = pa.schema({"hash": pa.uint64(), "text": pa.large_string()})

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A tokenizer, and the numbers of its training.

    Attributes:
        content: the tokenizer.json.
        read_bytes, read_s: text of all documents, and the time that reading them took.
        sample_bytes, train_s: text trained on, and the time that took.
        rejected: documents that could not be read.
        unreadable_files: damaged files, each with its first damage.
        tokenizer: its fertility on the held-out documents, in the form of a report's `tokenizer`; None where there are none.
    """

    content: bytes
    read_bytes: int
    read_s: float
    sample_bytes: int
    train_s: float
    rejected: int
    unreadable_files: tuple[UnreadableFile, ...]
    tokenizer: dict[str, Any] | None


def train_tokenizer_from_files(
    inputs: Sequence[str], *, vocab_size: int, pattern: str, eos: str, sample_bytes: int, text_field: str, say: Say
) -> Trained:
    """Trains on about `sample_bytes` of the documents in `inputs` (paths or globs); `say` gets lines about the progress."""
    check_training(vocab_size, eos, pattern)
    reading = _Reading(_sources(inputs), text_field, sample_bytes, say)
    reading.read()
    texts, held_out = _texts(reading.training), {name: _texts(hashes) for name, hashes in reading.held_out.items()}
    if len(texts) == 0:  # so few documents that none was left
        texts, held_out = pa.concat_arrays(list(held_out.values())), {}
    if len(texts) == 0:
        raise UserError(
            f"no document with text in the field {text_field!r} in {', '.join(inputs)}. Give its name: --text FIELD"
        )
    started, size = perf_counter(), int(text_lengths(texts).sum())
    content = train_tokenizer(_watched(texts, size, say), vocab_size, eos, pattern)
    return Trained(
        content=content,
        read_bytes=reading.read_bytes,
        read_s=reading.read_s,
        sample_bytes=size,
        train_s=perf_counter() - started,
        rejected=reading.rejected,
        unreadable_files=by_file(reading.unreadable_files),
        tokenizer=_measured(content, eos, {name: texts for name, texts in held_out.items() if len(texts)}, say),
    )


def _sources(inputs: Sequence[str]) -> dict[str, list[tuple[InputFile, Reader]]]:
    """The files of every folder that an input names, with their readers."""
    mixtures = [path for path in inputs if path.endswith((".yaml", ".yml"))]
    if mixtures:
        raise UserError(
            f"{mixtures[0]}: a mixture, not text. `datapipe run` trains its tokenizer on the documents that its stages keep, "
            f"by its weights: write `tokenizer: {{train: {{vocab_size: …}}}}` there"
        )
    patterns: dict[str, list[str]] = {}
    for pattern in inputs:
        patterns.setdefault(str(Path(re.split(r"[*?\[]", pattern)[0] + "x").parent), []).append(pattern)
    return {
        name: discover(name, listed, lambda path: catalogue.reader_for(path, "INPUT"), "stat", "INPUT")
        for name, listed in patterns.items()
    }


class _Reading:
    """Reads all files once; keeps the sample to train on and the held-out documents."""

    def __init__(
        self, sources: dict[str, list[tuple[InputFile, Reader]]], text_field: str, sample_bytes: int, say: Say
    ) -> None:
        self.sources, self.fields, self.say = sources, FieldNames(text=text_field), say
        self.training = LowestHashes(sample_bytes, _SAMPLED)
        share = max(1, int(sample_bytes * HELD_OUT) // len(sources))
        self.held_out = {name: LowestHashes(share, _SAMPLED) for name in sources}
        self.read_bytes = self.rejected = 0
        self.unreadable_files: list[UnreadableFile] = []
        self.read_s = 0.0

    def read(self) -> None:
        started = perf_counter()
        for name, files in self.sources.items():
            for file, reader in files:
                self._read_file(name, file, reader)
                self.read_s = perf_counter() - started
                self.say(f"reading {name}: {_amount(self.read_bytes, self.read_s)}")

    def _read_file(self, name: str, file: InputFile, reader: Reader) -> None:
        if reader.gives != "text":
            raise UserError(
                f"{file.url}: the file holds pages, and a tokenizer learns from text. Run a mixture with extract.html and "
                f"`tokenizer: none` first, and train on its documents; or let the mixture train the tokenizer itself."
            )
        hashed = np.uint64(file_hash(Path(name).name, file.path))
        with PlannedInput(file) as planned:
            for split in reader.cut(file, _WHOLE_FILE):
                for batch in reader.read(split, self.fields, planned.open):
                    self._add(name, hashed, batch)
                    self.unreadable_files += damages(replace(file, path=file.url), batch.rejected)

    def _add(self, name: str, hashed: np.uint64, batch: ReadBatch) -> None:
        halves = (np.full(len(batch.positions), hashed), batch.positions.astype(np.uint64))
        is_held_out = below_fraction(keyed_hash(halves, seed_for(0, "tokenizer", "held out")), HELD_OUT)
        hashes = pa.array(keyed_hash(halves, seed_for(0, "tokenizer", "sample")))
        documents = pa.table([hashes, batch.content], schema=_SAMPLED)
        self.training.add(documents.filter(pa.array(~is_held_out)))
        self.held_out[name].add(documents.filter(pa.array(is_held_out)))
        self.read_bytes += int(text_lengths(batch.content).sum())
        self.rejected += len(batch.rejected)


def _texts(sample: LowestHashes) -> pa.Array:
    return sample.table()["text"].combine_chunks()


def _watched(texts: pa.Array, size: int, say: Say) -> Iterator[pa.Array]:
    """The texts in slices, with a line about the progress after each."""
    started, done = perf_counter(), 0
    for part in slices_of(texts, _SLICE_BYTES):
        yield part
        done += int(text_lengths(part).sum())
        say(f"counting words: {_amount(done, perf_counter() - started)}, {done / size:.0%}")
    say("joining pairs …")


def _amount(num_bytes: int, seconds: float) -> str:
    rate = rate_mb_per_s(num_bytes, seconds)
    return f"{num_bytes / 1e6:,.1f} MB" + ("" if rate is None else f" at {rate:,.1f} MB/s")


def _measured(content: bytes, eos: str, held_out: dict[str, pa.Array], say: Say) -> dict[str, Any] | None:
    """The `tokenizer` of a report, over the held-out documents."""
    if not held_out:
        return None
    say("measuring on held-out documents …")
    encoder, total = Encoder(content, eos=eos), Fertility()
    used = np.zeros(encoder.vocab_size, np.bool_)
    sources: dict[str, Any] = {}
    for name, texts in held_out.items():
        meter = Meter(encoder.vocab_size)
        for part in slices_of(texts, _SLICE_BYTES):
            meter.add(DocumentBatch(pa.record_batch([part], names=["text"])), *encoder.encode(part))
        used |= meter.used
        total.add(meter.fertility)
        sources[name] = described(meter.fertility)
    return {
        "vocab_size": encoder.vocab_size,
        "eos_token": encoder.eos_token,
        "total": described(total),
        "sources": sources,
        "unused": unused_tokens(content, used),
    }

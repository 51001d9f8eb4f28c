"""Trains a tokenizer from files, without a mixture: `datapipe tokenizer train`.

    files ─▶ documents ─▶ a share by keyed hash ─┬▶ one in twenty: held out ─▶ table of fertility
                                                 └▶ the others ─▶ counted words ─▶ merges ─▶ tokenizer.json

Inputs of one folder are one source. Every document has the same chance, so sources are sampled in proportion to their text.
The share is that of `sample_bytes` in the text that the files have by their sizes. This process reads all files, once. The
keys of documents alone decide which are taken, so the order of the inputs does not matter. Memory: the distinct words of the
sample, the held-out texts, and the memory of training.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from datapipe.columns import text_lengths
from datapipe.config import catalogue
from datapipe.errors import UserError
from datapipe.inputs.discovery import discover
from datapipe.inputs.planned_input import PlannedInput
from datapipe.metrics import UnreadableFile, by_file
from datapipe.quantities import rate_mb_per_s
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.reader import FieldNames, InputFile, ReadBatch, Reader
from datapipe.steps.splits import file_hash
from datapipe.token_counts import Fertility
from datapipe.tokens.encoder import Encoder, slices_of
from datapipe.tokens.fertility import Meter
from datapipe.tokens.figures import TokenizerFigures, unused_tokens
from datapipe.tokens.training import Trained, check_training, train_on_words
from datapipe.tokens.word_counts import WordCounts, counted_words

HELD_OUT = 0.05

_SLICE_BYTES = 4 << 20

Emit = Callable[[str], None]
Files = list[tuple[InputFile, Reader]]


def train_tokenizer_from_files(
    inputs: Sequence[str], *, vocab_size: int, pattern: str, eos: str, sample_bytes: int, text_field: str, emit: Emit
) -> Trained:
    """Trains on about `sample_bytes` of the documents in `inputs` (paths or globs); `emit` gets lines about the progress."""
    check_training(vocab_size, eos, pattern)
    reading = _Reading(_sources(inputs), text_field, sample_bytes, pattern, emit)
    reading.read()
    held_out = {name: pa.chunked_array(texts, pa.large_string()).combine_chunks() for name, texts in reading.held_out.items()}
    if reading.sample_bytes == 0:  # so few documents that none was left
        for texts in held_out.values():
            reading.count(texts)
        held_out = {}
    if reading.sample_bytes == 0:
        raise UserError(
            f"no document with text in the field {text_field!r} in {', '.join(inputs)}. Give its name: --text FIELD"
        )
    emit("joining pairs …")
    started = perf_counter()
    encoder = train_on_words(reading.words.total(), vocab_size, eos, pattern)
    train_s = reading.count_s + perf_counter() - started
    shown = {reading.shown(name): texts for name, texts in held_out.items() if len(texts)}
    return Trained(
        content=encoder.to_json(),
        read_bytes=reading.read_bytes,
        read_s=reading.read_s,
        sample_bytes=reading.sample_bytes,
        train_s=train_s,
        rejected=reading.rejected,
        unreadable_files=by_file(reading.unreadable_files),
        tokenizer=_measured(encoder, shown, emit),
    )


def _sources(inputs: Sequence[str]) -> dict[str, Files]:
    """The files of every folder that an input names, with their readers."""
    patterns: dict[str, list[str]] = {}
    for pattern in inputs:
        patterns.setdefault(str(Path(re.split(r"[*?\[]", pattern)[0] + "x").parent), []).append(pattern)
    return {
        name: discover(listed, lambda path: catalogue.reader_for(path, "INPUT"), "stat", "INPUT")
        for name, listed in patterns.items()
    }


class _Reading:
    """Reads all files once; counts the words of the sample and keeps the held-out documents."""

    def __init__(self, sources: dict[str, Files], text_field: str, sample_bytes: int, pattern: str, emit: Emit) -> None:
        self.sources, self.fields, self.pattern, self.emit = sources, FieldNames(text=text_field), pattern, emit
        self.share = min(1.0, sample_bytes / sum(file.text_bytes for files in sources.values() for file, _ in files))
        self.words = WordCounts()
        self.held_out: dict[str, list[pa.Array]] = {name: [] for name in sources}
        self.read_bytes = self.sample_bytes = self.rejected = 0
        self.unreadable_files: list[UnreadableFile] = []
        self.read_s = self.count_s = 0.0

    def shown(self, name: str) -> str:
        files = self.sources[name]
        return files[0][0].url if len(files) == 1 else name

    def read(self) -> None:
        started = perf_counter()
        for name, files in self.sources.items():
            for file, reader in files:
                self._read_file(name, file, reader)
                self.read_s = perf_counter() - started - self.count_s
                rate = rate_mb_per_s(self.read_bytes, self.read_s)
                speed = "" if rate is None else f" at {rate:,.1f} MB/s"
                self.emit(f"reading {self.shown(name)}: {self.read_bytes / 1e6:,.1f} MB{speed}")

    def _read_file(self, name: str, file: InputFile, reader: Reader) -> None:
        if reader.gives != "text":
            raise UserError(
                f"{file.url}: the file holds pages, and a tokenizer learns from text. Run a mixture with extract.html and "
                f"`tokenizer: none` first, and train on its documents; or let the mixture train the tokenizer itself."
            )
        hashed = np.uint64(file_hash(Path(name).name, file.path))
        for batch, damages in PlannedInput(file).read(reader, self.fields):
            self._add(name, hashed, batch)
            self.unreadable_files += damages

    def _add(self, name: str, hashed: np.uint64, batch: ReadBatch) -> None:
        halves = (np.full(len(batch.positions), hashed), batch.positions.astype(np.uint64))
        is_sampled = below_fraction(keyed_hash(halves, seed_for(0, "tokenizer", "sample")), self.share)
        is_held_out = below_fraction(keyed_hash(halves, seed_for(0, "tokenizer", "held out")), HELD_OUT)
        self.held_out[name].append(batch.content.filter(pa.array(is_sampled & is_held_out)))
        self.count(batch.content.filter(pa.array(is_sampled & ~is_held_out)))
        self.read_bytes += int(text_lengths(batch.content).sum())
        self.rejected += len(batch.rejected)

    def count(self, texts: pa.Array) -> None:
        started = perf_counter()
        for counted in counted_words(texts, self.pattern):
            self.words.add(counted)
        self.sample_bytes += int(text_lengths(texts).sum())
        self.count_s += perf_counter() - started


def _measured(encoder: Encoder, held_out: dict[str, pa.Array], emit: Emit) -> TokenizerFigures | None:
    if not held_out:
        return None
    emit("measuring on held-out documents …")
    used = np.zeros(encoder.vocab_size, np.bool_)
    sources: dict[str, Fertility] = {}
    for name, texts in held_out.items():
        meter = Meter(encoder.vocab_size)
        for part in slices_of(texts, _SLICE_BYTES):
            meter.add(DocumentBatch(pa.record_batch([part], names=["text"])), *encoder.encode(part))
        used |= meter.used
        sources[name] = meter.fertility
    about = {"vocab_size": encoder.vocab_size, "eos_token": encoder.eos_token, "bos_token": None}
    return TokenizerFigures.of(sources, unused=unused_tokens(encoder.to_json(), used), **about)

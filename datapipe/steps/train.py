"""The tokenizer of a run: trained on the words of samples of all sources, or the user's own, in its canonical form.

    documents ─▶ sample, one task for each file of documents ─▶ counted words ─▶ train, one task ─▶ tokenizer.json

The documents that train it, and those held out for validation, are chosen by thresholds on keyed
hashes of their keys, or of the ids of repositories, so neither choice depends on how the input was split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from datapipe.columns import key_halves, text_buffers
from datapipe.dataclass import dataclass, field, replace
from datapipe.exchange.tables import TableWriter, read_documents, read_table
from datapipe.kernels.dedup.text_hashes import hash_texts
from datapipe.machine.activity import at_place
from datapipe.metrics import TaskMetrics
from datapipe.quantities import counted
from datapipe.records.names import TOKENIZER
from datapipe.records.outputs import Outputs, TableFile, TokenizerFile
from datapipe.records.versions import UNICODE
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.repositories import FILES
from datapipe.steps.costs import DOCUMENTS, StepCost, Texts, seconds_of
from datapipe.steps.fold import FOLDED, fewest, fold, num_folded
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import LEFT_OUT, WHERE_GIVEN, Plan, Planning, Step, Task, documents_of, entering, file_checksums
from datapipe.steps.weighting import BYTES_PER_TOKEN, sample_fractions, shares_of
from datapipe.storage.root import Root

if TYPE_CHECKING:
    from datapipe.tokens.encoder import Encoder

ENCODERS = ("fastokens", "tokenizers")  # the libraries whose versions decide ids
_OF_WORDS = (UNICODE, "pyarrow")  # those that decide which words there are, and their order
_BATCH_ROWS = 1 << 16  # of counted words
_SAMPLE_MB_PER_S, _COUNT_MB_PER_S, _TRAIN_MB_PER_S = 300.0, 60.0, 40.0
"""For reading all text; of the sample, for counting its words, and for joining pairs. The last two take a sixth of the 35 s
that the trainer of `tokenizers` takes for 140 MB (DECISIONS.md)."""


def is_validation(keys: pa.Array, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which documents are held out by their keys: (num_docs,) bool."""
    return below_fraction(keyed_hash(key_halves(keys), seed_for(seed, "validation")), fraction)


def is_held_out(batch: DocumentBatch, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which documents are held out, (num_docs,) bool: by their keys, and those of repositories by their ids, which all
    documents of a repository share."""
    if FILES not in batch.record.schema.names or not fraction:
        return is_validation(batch.keys, seed, fraction)
    hashes, digests = (np.empty(batch.num_docs, np.uint64) for _ in range(2))
    hash_texts(*text_buffers(batch.record.column("id")), hashes, digests)
    return below_fraction(keyed_hash((hashes, digests), seed_for(seed, "validation")), fraction)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTask(Task):
    """Counts the words, by `pattern`, of the documents whose keyed hash is below `fraction`, except those held out."""

    kind, version, of_tokens, libraries = "sample", 1, True, _OF_WORDS
    options = ("seed", "tokenizer", "mixture", "sources.*.weight", "sources.*.max_tokens")

    before: str  # fingerprint of the task that wrote `documents`
    documents: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # they follow from `before`
    fraction: float
    validation: float
    pattern: str

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        from datapipe.tokens.word_counts import WordCounts, counted_words

        metrics, words = TaskMetrics(), WordCounts()
        seed = seed_for(self.seed, "tokenizer", "sample")
        for batch in read_documents(root, self.documents, metrics):
            with metrics.timed("sample") as work:
                chosen = below_fraction(keyed_hash(key_halves(batch.keys), seed), self.fraction)
                chosen &= ~is_held_out(batch, self.seed, self.validation)
                sampled = batch.filter(chosen)
                for counted in counted_words(sampled.texts, self.pattern):
                    words.add(counted)
                work.bytes, work.documents = sampled.text_bytes, sampled.num_docs
        with metrics.timed("sample"):
            writer = TableWriter(root, f"{folder}/sample.arrow")
            for batch in words.total().to_batches(max_chunksize=_BATCH_ROWS):
                writer.add(batch)
            return {"sample": writer.finish()}, metrics

    @classmethod
    def plan(cls, planning: Planning) -> None:
        """Samples every source in proportion to its share (`weighting.py`), once the text of all is known."""
        mixture, training = planning.mixture, planning.mixture.tokenizer.train
        if planning.request.tokenizer_content or training is None:
            return
        cleaned = [planning.cleaned(name) for name in planning.request.sources]
        kept = {step.source: step.totals.documents.kept_bytes for step in cleaned}
        tokens = {name: math.ceil(size / BYTES_PER_TOKEN) for name, size in kept.items()}
        shares = shares_of(
            mixture, {name: min(size, mixture.sources[name].max_tokens or size) for name, size in tokens.items()}
        )
        fractions = sample_fractions(kept, shares, training.sample_bytes, mixture.validation)
        ready = all(step.is_committed for step in cleaned)
        for step in cleaned:
            documents = map(documents_of, step.records) if ready else None
            common = {"source": step.source, "fraction": fractions[step.source], "pattern": training.pattern}
            label = "sample text for the tokenizer"
            sampled = planning.add(cls, f"{step.source}/sample", label, documents, validation=mixture.validation, **common)
            fold(planning, sampled, FOLDED[cls.kind])

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        read, sampled = texts.cleaned[step.source], texts.sampled[step.source]
        yield StepCost(sampled * DOCUMENTS, seconds_of(read, _SAMPLE_MB_PER_S) + seconds_of(sampled, _COUNT_MB_PER_S))

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        """All text is read. What is counted and written grows with the sample."""
        tasks, factor = growth.sources[step.source].tasks, growth.sources[step.source].factor
        grown = growth.add(step, tasks, growth.documents(step.source), factor=growth.sample_factor)
        before, after = (1 / _SAMPLE_MB_PER_S + share / _COUNT_MB_PER_S for share in growth.sampled)
        growth.steps[step.id] = replace(grown, seconds=step.seconds * factor * after / before)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTask(Task):
    """Trains the tokenizer on the words of all samples, or takes the user's own (`content`) into the run."""

    kind, version, of_tokens, libraries = "train", 1, True, (*_OF_WORDS, *ENCODERS)
    options = ("tokenizer",)

    samples: tuple[TableFile, ...] = field(default=(), metadata=entering(file_checksums))
    vocab_size: int = 0
    pattern: str = ""
    eos: str | None
    bos: str | None = None
    control_tokens: tuple[str, ...] = field(default=(), metadata=WHERE_GIVEN)  # of a trained one, beside `eos`
    content: bytes = field(default=b"", metadata=entering(xxhash.xxh3_128_hexdigest))

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        from datapipe.tokens.encoder import Encoder

        metrics, path = TaskMetrics(), f"{folder}/{TOKENIZER}"
        with metrics.timed("train tokenizer", sum(sample.row_bytes for sample in self.samples)):
            encoder = Encoder(self.content, eos=self.eos, bos=self.bos) if self.content else _train(self, root)
            choice = encoder.proof.choice
            with root.open_output(path) as stream:
                stream.write(encoder.to_json())
        names = ("vocab_size", "eos_id", "eos_token", "fingerprint", "bos_id", "bos_token")
        output = TokenizerFile(
            path=path,
            rows=encoder.vocab_size,
            bytes=stream.num_bytes,
            checksum=stream.checksum,
            library=choice.library,
            library_version=choice.version,
            battery=choice.battery,
            fallback_reason=choice.reason,
            **{name: getattr(encoder, name) for name in names},
        )
        return {"tokenizer": (output,)}, metrics

    @classmethod
    def plan(cls, planning: Planning) -> None:
        """Files that are added have the tokenizer of the first run (`tokenizer_content`)."""
        spec, training = planning.mixture.tokenizer, planning.mixture.tokenizer.train
        if planning.request.tokenizer_content:
            first = planning.plan.tokenizer
            eos, bos = (spec.eos, spec.bos) if first is None else (first.eos_token, first.bos_token)
            content = {"content": planning.request.tokenizer_content, "eos": eos, "bos": bos}
            planning.add(cls, "tokenizer/load", "load the tokenizer", [content])
            return
        assert training is not None
        steps = planning.plan.of_kind("sample")
        samples = tuple(output for step in steps for output in fewest(planning.plan, step, "sample", TableFile))
        ready = all(step.is_committed for step in (*steps, *planning.plan.of_kind("fold")))
        files = [{"samples": samples}] if ready else None
        common = {"vocab_size": training.vocab_size, "pattern": training.pattern, "eos": training.eos}
        common["control_tokens"] = training.control_tokens
        planning.add(cls, "tokenizer/train", "train the tokenizer", files, ["tokenizer/train"], **common)

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        yield StepCost(0.0, seconds_of(sum(texts.sampled.values()), _TRAIN_MB_PER_S))

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        samples = [each.writes.get("sample", Files()) for each in growth.steps.values() if each.kind == SampleTask.kind]
        folded = (replace(files, number=num_folded(files.number)) for files in samples)
        growth.add(step, 1, *map(Reads.whole, folded), factor=growth.sample_factor)


def _train(task: TrainTask, root: Root) -> Encoder:
    from datapipe.tokens.training import check_training, train_on_words
    from datapipe.tokens.word_counts import WordCounts

    assert task.eos is not None
    check_training(task.vocab_size, task.eos, task.pattern)
    words = WordCounts()
    for number, output in enumerate(task.samples):
        at_place(f"adding up the words of sample {number + 1:,} of {len(task.samples):,}")
        for batch in read_table(root, output):
            words.add(batch)
    total = words.total()
    at_place(f"joining pairs of {counted(len(total), 'word')} into {task.vocab_size:,} tokens")
    return train_on_words(total, task.vocab_size, task.eos, task.pattern, task.control_tokens)

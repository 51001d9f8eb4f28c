"""The mixture file as frozen models. The descriptions are its documentation, its help text and its JSON Schema.

    Mixture ── sources: {name: Source}      where documents come from, and how much each counts
            ── stages: [StageUse]           what is done to them, in order
            ── tokenizer, pack, shards      how they become rows of tokens on disk
            ── mixture                      how much is drawn, and from which source when (`drawing.py`)
            ── execution                    how the work is cut; never what comes out

`load.py` makes one of a file. Numbers are exact and text is never taken for a number. Equality ignores where things were
written, so a mixture equals its own resolved form.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator
from ruamel.yaml import YAML

from datapipe.config.fields import ByteSize, Globs, Lengths, Paths, Record, Share, Texts, Weight
from datapipe.config.interpolation import escaped
from datapipe.config.mixture_schedule import MixtureSpec, StrataSpec, WeightPhase, linear_problems, stretches
from datapipe.config.origins import Origins
from datapipe.config.problems import ProblemsError
from datapipe.config.stage_use import NAME_PATTERN, StageList, StageUse
from datapipe.config.yaml import KeyPath
from datapipe.errors import suggest
from datapipe.own_columns import OWN_COLUMNS

PatternName = Literal["gpt2", "cl100k", "o200k", "llama3", "qwen2"]
"""The names of `datapipe.tokens.patterns.PATTERNS`, a floor that this one does not see."""


def _source_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError("expected a name of letters, digits, '_', '.' and '-' that begins with a letter or digit")
    return name


def _kept(names: tuple[str, ...]) -> tuple[str, ...]:
    taken = [name for name in names if name in OWN_COLUMNS]
    if taken:
        raise ValueError(f"'{taken[0]}' cannot be kept: every document has a column of that name already")
    if len(set(names)) < len(names):
        raise ValueError("expected each field once")
    return names


def _shard_format(value: Any) -> Any:
    if value == "megatron":
        raise ValueError(
            "megatron files cannot be streamed by the loader, since they hold no rows and no documents' names. "
            "Expected one of: arrow, parquet; then `datapipe export OUTPUT --format megatron --to URL` writes them"
        )
    return value


class Source(Record):
    """One corpus: its files, its share of the mixture, and what is done to it."""

    path: Paths = Field(
        description="Glob or list of globs of the input files, local or URLs (s3://…). Relative: from the working directory."
    )
    exclude: Globs = Field(default=(), description="Globs of files to leave out, like `path`: '**/site-packages/**'.")
    format: str = Field(
        default="auto", min_length=1, description="Format of the files: a reader's name, or auto to tell by their endings."
    )
    text: str = Field(default="text", min_length=1, description="Input field with the text; dots reach into objects.")
    id: str = Field(default="id", min_length=1, description="Input field with the id; where it is missing, path:place is.")
    keep: Annotated[Texts, AfterValidator(_kept)] = Field(default=(), description="Other input fields to carry along.")
    weight: Weight = Field(
        default=Fraction(1),
        description="Share of the training tokens, relative to the other sources: 0.7, 70%, 1/3. 0: prepared, never drawn.",
        json_schema_extra={"default": 1},
    )
    max_epochs: float | None = Field(
        default=None, gt=0, description="How often the source may be repeated at most; no limit by default."
    )
    strata: StrataSpec | None = Field(
        default=None, description="Parts of the source by a number of each document: how often and in which order they come up."
    )
    license: str | None = Field(default=None, description="License of the corpus, noted in the snapshot.")
    synthetic: bool = Field(default=False, description="Whether a model wrote it, noted in the snapshot.")
    stages: StageList | None = Field(default=None, description="Stages of this source instead of the mixture's list.")
    fingerprint: Literal["stat", "content"] = Field(
        default="stat", description="How a changed file is noticed: by size and time (stat), or by reading it (content)."
    )


class TokenizerTraining(Record):
    """A byte-level BPE tokenizer trained on the mixture itself."""

    vocab_size: int = Field(default=32_000, ge=257, description="Tokens in all: 256 bytes, merges, and the end-of-text token.")
    sample_bytes: ByteSize = Field(
        default=256 << 20,
        description="Text to train on, of every source by its weight (over all phases) as far as it has it.",
    )
    pattern: PatternName = Field(default="gpt2", description="How text is cut into words that merges stay within.")
    eos: str = Field(default="<|endoftext|>", min_length=1, description="The end-of-text token that closes every document.")


class TokenizerSpec(Record):
    """A tokenizer: trained here, or one that exists."""

    train: TokenizerTraining | None = Field(default=None, description="Train one on this mixture, with these options.")
    path: str | None = Field(
        default=None, min_length=1, description="A tokenizer.json to use, or ranks of tiktoken; local or a URL."
    )
    eos: str | None = Field(
        default=None, min_length=1, description="The end-of-text token of the tokenizer at `path`, where it cannot be inferred."
    )

    pattern: PatternName | None = Field(
        default=None, description="How text is cut into words, for ranks of tiktoken at `path` that are not OpenAI's own."
    )
    special_tokens: dict[str, int] | None = Field(
        default=None, min_length=1, description="Special tokens with their ids, for such ranks: {'<|endoftext|>': 100257}."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> TokenizerSpec:
        if (self.train is None) == (self.path is None):
            found = "none" if self.train is None else "both"
            raise ProblemsError([((), f"found {found}, expected exactly one of: train, path")])
        if self.train is not None and self.eos is not None:
            raise ProblemsError([(("eos",), "goes with path. Write the token of a trained tokenizer as train.eos")])
        if self.train is not None and self.pattern is not None:
            raise ProblemsError([(("pattern",), "goes with path. Write the pattern of a trained tokenizer as train.pattern")])
        if self.train is not None and self.special_tokens is not None:
            raise ProblemsError([(("special_tokens",), "goes with path. A trained tokenizer has one: train.eos")])
        return self


class PackSpec(Record):
    """How documents are laid into rows of equal length."""

    sequence_length: Lengths = Field(
        default=(2048,),
        description="Tokens per row. A list makes a snapshot of each: the first in the output, the others in length-N/ there.",
        json_schema_extra={"default": 2048},
    )
    method: Literal["best_fit", "concat", "buckets"] = Field(
        default="best_fit",
        description="best_fit: whole documents where they fit best, almost no padding. concat: end to end, cut anywhere. "
        "buckets: documents cut into powers of two, each row and shard of pieces of one length.",
    )
    pool_documents: int = Field(default=10_000, ge=1, description="Documents packed together by best_fit; bounds its memory.")
    min_piece: int = Field(default=1, ge=1, description="With buckets, shorter pieces are dropped, and counted; 1 keeps all.")

    @model_validator(mode="after")
    def _suits_method(self) -> PackSpec:
        problems: list[tuple[KeyPath, str]] = []
        if self.method == "buckets":
            odd = [length for length in self.sequence_length if length & (length - 1)]
            if odd:
                problems.append((("sequence_length",), f"found {odd[0]}, expected a power of two, as buckets need"))
            if self.min_piece > min(self.sequence_length):
                text = f"found {self.min_piece}, expected at most the sequence length, {min(self.sequence_length)}"
                problems.append((("min_piece",), text))
        elif self.min_piece > 1:
            problems.append((("min_piece",), f"goes with method: buckets; {self.method} drops nothing"))
        if problems:
            raise ProblemsError(problems)
        return self

    def folder(self, sequence_length: int) -> str:
        """Where the snapshot of a length is, below the output: "" for the first one, or "length-8192"."""
        return "" if sequence_length == self.sequence_length[0] else f"length-{sequence_length}"


class ShardsSpec(Record):
    """The files that trainers read."""

    format: Annotated[Literal["arrow", "parquet"], BeforeValidator(_shard_format)] = Field(
        default="arrow", description="arrow: memory-mapped, fastest. parquet: smaller, compressed."
    )
    target_bytes: ByteSize = Field(default=256 << 20, ge=4096, description="Size at which a shard is closed.")


class Resources(Record):
    """What a task asks of a Ray node while a stage runs in it. The local engine gives every task one core."""

    num_cpus: float = Field(default=1.0, ge=0, description="Cores.")
    num_gpus: float = Field(default=0.0, ge=0, description="GPUs, or a part of one.")
    memory: ByteSize | None = Field(default=None, description="Memory that Ray sets aside.")


class ExecutionSpec(Record):
    """How the work is cut into tasks. Speed and memory depend on it, the documents that are kept do not."""

    split_bytes: ByteSize = Field(default=32 << 20, ge=1024, description="Input text per task.")
    bucket_bytes: ByteSize = Field(
        default=256 << 20, ge=1024, description="Rows exchanged per task; it holds them in memory, and a giant group in pieces."
    )
    max_retries: int = Field(default=3, ge=0, description="How often a task that raises is tried again before the run fails.")
    max_infrastructure_retries: int = Field(
        default=20, ge=0, description="The same for lost workers, full memory, and failing disks or networks."
    )
    resources: dict[str, Resources] = Field(
        default_factory=dict,
        description="By stage (its name in the run), or tokenize, pack, tokenizer/train: what its tasks ask of Ray.",
    )

    def resources_for(self, uses: Sequence[str]) -> tuple[tuple[str, float], ...]:
        """The most that any of the stages in a task asks for, as (resource, amount); empty where none does."""
        asked = [self.resources[name] for name in uses if name in self.resources]
        if not asked:
            return ()
        memory = max(one.memory or 0 for one in asked)
        most = {"num_cpus": max(one.num_cpus for one in asked), "num_gpus": max(one.num_gpus for one in asked)}
        return tuple({**most, **({"memory": float(memory)} if memory else {})}.items())


class Mixture(Record):
    """A whole mixture file."""

    name: str = Field(min_length=1, description="What the snapshot and the report are called.")
    seed: int = Field(default=0, ge=0, description="Every random choice follows from it.")
    output: str = Field(
        min_length=1, description="Folder of the snapshot: a path or URL (s3://…). Relative: from the working directory."
    )
    max_quarantined: Share = Field(
        default=0.001, description="Part of a source's documents that may be unreadable before the run fails: 0.1% or 0.001."
    )
    validation: Share = Field(
        default=0.0, lt=1, description="Part of each source's kept documents held out into shards of their own: 0.1% or 0.001."
    )
    sources: dict[Annotated[str, AfterValidator(_source_name)], Source] = Field(
        min_length=1, description="The corpora by name; at least one."
    )
    stages: StageList = Field(
        default=(), description="What is done to the documents, in order. `datapipe stages` lists all stages and options."
    )
    tokenizer: TokenizerSpec = Field(
        default=TokenizerSpec(train=TokenizerTraining()), description="A tokenizer to train or to use: train or path."
    )
    pack: PackSpec = Field(default=PackSpec(), description="How documents are laid into rows.")
    shards: ShardsSpec = Field(default=ShardsSpec(), description="Format and size of the files that trainers read.")
    mixture: MixtureSpec = Field(default=MixtureSpec(), description="How many tokens are drawn, and from which sources when.")
    execution: ExecutionSpec = Field(default=ExecutionSpec(), description="How the work is cut into tasks.")

    _origins: Origins = PrivateAttr(default_factory=Origins)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_sections(cls, data: Any) -> Any:
        """A section whose every line is commented out is a section that is not there."""
        optional = ("stages", "tokenizer", "pack", "shards", "mixture", "execution")
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in optional}

    @model_validator(mode="after")
    def _weights_name_sources(self) -> Mixture:
        problems: list[tuple[KeyPath, str]] = []
        for index, phase in enumerate(self.mixture.phases):
            path = ("mixture", "phases", index, "weights")
            for name in sorted(phase.weights.keys() - self.sources.keys()):
                text = f"unknown source.{suggest(name, self.sources)} Expected one of: {', '.join(self.sources)}"
                problems.append(((*path, name), text))
            if not any(phase.weights.values()):
                problems.append((path, "every weight is 0. Expected at least one above 0"))
        if not self.mixture.phases and not any(source.weight for source in self.sources.values()):
            problems.append((("sources",), "every weight is 0. Expected at least one source with a weight above 0"))
        problems += [(("mixture", *path), text) for path, text in linear_problems(self.mixture, self._own_weights())]
        problems += [*self._weighting_problems(), *self._strata_problems()]
        if problems:
            raise ProblemsError(problems)
        return self

    def _strata_problems(self) -> Iterator[tuple[KeyPath, str]]:
        for name, source in self.sources.items() if self.pack.method == "buckets" else ():
            if source.strata is not None:
                text = "cannot be combined with pack.method: buckets, whose shards are parts of their own. Leave one out"
                yield ("sources", name, "strata"), text

    def _weighting_problems(self) -> Iterator[tuple[KeyPath, str]]:
        weighting = self.mixture.weighting
        for name, source in self.sources.items() if weighting != "given" else ():
            if source.weight not in (0, 1):
                yield (
                    ("sources", name, "weight"),
                    f"goes with weighting: given; {weighting} makes the weights. Leave it out, or write 0 to draw nothing",
                )
            if weighting == "unimax" and source.weight and self.max_epochs_of(name) is None:
                yield (
                    ("sources", name, "max_epochs"),
                    "missing, and mixture.max_epochs too. Expected: how often it may be repeated, for weighting: unimax",
                )

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if isinstance(other, Mixture) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def stages_of(self, source: str) -> tuple[StageUse, ...]:
        """The stages of a source: its own list, or else the mixture's."""
        own = self.sources[source].stages
        return self.stages if own is None else own

    def weight_phases(self) -> tuple[WeightPhase, ...]:
        """The weights over the run as they were given, every source named in each stretch; one where nothing changes."""
        return stretches(self.mixture, self._own_weights())

    def average_shares(self) -> dict[str, Fraction]:
        """The part of all tokens that comes from each source, over all phases, by the weights as they were given."""
        total, start = self.mixture.tokens, 0
        shares = dict.fromkeys(self.sources, Fraction(0))
        for phase in self.weight_phases():
            stop = total if phase.until_tokens is None else phase.until_tokens
            part = Fraction(1) if total is None or stop is None else Fraction(stop - start, total)
            for name, weight in phase.weights.items():
                shares[name] += part * Fraction(weight, sum(phase.weights.values()))
            start = stop or 0
        return shares

    def max_epochs_of(self, source: str) -> float | None:
        """How often a source may be repeated at most: what it says itself, or else the mixture."""
        own = self.sources[source].max_epochs
        return self.mixture.max_epochs if own is None else own

    def _own_weights(self) -> dict[str, Fraction]:
        return {name: source.weight for name, source in self.sources.items()}

    def where(self, *path: str | int) -> str:
        """File, line and path for an error message: `mixture.where("sources", "web", "path")`."""
        return self._origins.where(path)

    def with_origins(self, origins: Origins) -> Mixture:
        """This mixture, knowing where each of its values was written."""

        def placed(uses: tuple[StageUse, ...], *path: str | int) -> tuple[StageUse, ...]:
            return tuple(use.model_copy(update={"where": origins.where((*path, index))}) for index, use in enumerate(uses))

        sources = {
            name: source
            if source.stages is None
            else source.model_copy(update={"stages": placed(source.stages, "sources", name, "stages")})
            for name, source in self.sources.items()
        }
        copy = self.model_copy(update={"sources": sources, "stages": placed(self.stages, "stages")})
        copy._origins = origins
        return copy

    def resolved_yaml(self) -> str:
        """This mixture with every default written out and every reference filled in; loading it gives an equal one."""
        writer = YAML(typ="safe", pure=True)
        writer.default_flow_style, writer.width, writer.allow_unicode = False, 10_000, True
        writer.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
        stream = io.StringIO()
        writer.dump(_plain(self.model_dump(exclude_none=True)), stream)
        return stream.getvalue()


def _plain(data: Any) -> Any:
    """Dumped data as YAML takes it: tuples are lists, and text that looks like a reference is escaped."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return escaped(data) if isinstance(data, str) else data

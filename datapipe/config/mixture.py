"""The mixture file as frozen models. The descriptions are its documentation, its help text and its JSON Schema.

    Mixture ── sources: {name: Source}      input files, or another output, with the weight of each source
            ── stages: [StageUse]           the stages that process documents, in order
            ── tokenizer, pack, shards      how documents become rows of tokens on disk
            ── documents                    or, without a tokenizer, files of text
            ── mixture                      how many tokens training draws, and from which source when (`mixture_schedule.py`)
            ── publish                      when a run that follows its sources publishes what is new
            ── execution                    how the work is cut into tasks; it does not change the output (`execution.py`)

`load.py` reads one from a file. Numbers are exact, and text is never converted to a number.
Equality ignores locations, so a mixture equals its resolved form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from datapipe.cell_names import source_of
from datapipe.config.execution import ExecutionSpec
from datapipe.config.fields import ByteSize, Count, Duration, Lengths, Record, Share
from datapipe.config.interpolation import Origins, written_yaml
from datapipe.config.mixture_schedule import MixtureSpec, WeightPhase, Weights, linear_schedule_problems, weight_phases
from datapipe.config.problems import Problem
from datapipe.config.sources.amount import amount_problems, sampled_stages
from datapipe.config.sources.arrangement import control_token_problems
from datapipe.config.sources.chat import chat_stages, stage_problems
from datapipe.config.sources.provenance import AllowedLicenses, licensed_stages, licensing_problems, synthetic_problems
from datapipe.config.sources.repository import join_problems, repository_stages
from datapipe.config.sources.source import AnySource, SnapshotSource, Source
from datapipe.config.sources.split import cell_problems
from datapipe.config.stage_use import NAME_PATTERN, StageList, StageUse
from datapipe.config.tokenizer_spec import TokenizerOrNone, TokenizerSpec, TokenizerTraining
from datapipe.config.yaml import KeyPath, dotted
from datapipe.errors import suggest
from datapipe.weights import changed_shares, integer_weights


def _source_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError("expected a name of letters, digits, '_', '.' and '-' that begins with a letter or digit")
    return name


def _shard_format(value: Any) -> Any:
    if value == "megatron":
        raise ValueError(
            "the loader cannot stream megatron files, because they hold neither rows nor document keys. Expected one of: "
            "arrow, parquet. After the run, `datapipe export OUTPUT --format megatron --to URL` writes them"
        )
    return value


_SHARE_NOISE = Fraction(1, 100)
"""Weights that are meant to add up to 1 may differ by so much, as thirds that are written 0.33 do."""

MAX_PADDING = 0.02
"""Default of `pack.max_padding`. Best fit pads web pages, books and code by less than 0.1 %: such
sources keep all documents whole. It pads lengths that crowd above S / 2 or S / 3 by 10 to 50 %."""


class PackSpec(Record):
    """How documents are packed into rows of equal length."""

    sequence_length: Lengths = Field(
        default=(2048,),
        description="Tokens per row. A list packs all documents once for each length; loaders take the first by default.",
        json_schema_extra={"default": 2048},
    )
    method: Literal["best_fit", "concat", "buckets"] = Field(
        default="best_fit",
        description="best_fit: put whole documents into the row with the least space left; almost no padding. concat: join "
        "documents end to end and cut anywhere. buckets: cut documents into pieces whose lengths are powers of two; each row "
        "and shard holds pieces of one length.",
    )
    pool_documents: int = Field(
        default=10_000, ge=1, description="Number of documents that best_fit packs at a time. It bounds the memory."
    )
    max_padding: Share = Field(
        default=MAX_PADDING,
        description="Maximum share of padding in rows of best_fit: 2%, 0.02. Above it, documents are split to fill the "
        "rows. The emptiest row of a pool is not counted, and a document is split only if that saves a "
        "row. 100%: documents that fit into a row are never split.",
    )
    min_piece: int = Field(default=1, ge=1, description="buckets drops and counts pieces shorter than this. 1 keeps all.")
    bos_aligned: bool = Field(
        default=False,
        exclude_if=lambda is_aligned: not is_aligned,  # mixtures of outputs of the version before lack it
        description="With best_fit, every row begins with the bos of the tokenizer, and holds only beginnings of "
        "documents. The part of a document that does not fit is dropped and counted.",
    )

    @property
    def layout(self) -> Literal["best_fit", "bos_aligned", "concat", "buckets"]:
        """The method of `tokens.packing`."""
        return "bos_aligned" if self.bos_aligned else self.method

    def problems(self) -> Iterator[Problem]:
        if self.method == "buckets":
            odd = [length for length in self.sequence_length if length & (length - 1)]
            if odd:
                yield ("sequence_length",), f"found {odd[0]}, expected a power of two for method: buckets"
            if self.min_piece > min(self.sequence_length):
                yield (
                    ("min_piece",),
                    f"found {self.min_piece}, expected at most the sequence length, {min(self.sequence_length)}",
                )
        elif self.min_piece > 1:
            yield ("min_piece",), f"needs method: buckets; {self.method} drops nothing. Leave it out"
        if self.max_padding != MAX_PADDING and self.method != "best_fit":
            yield ("max_padding",), f"needs method: best_fit; {self.method} fills its rows anyway. Leave it out"
        if self.bos_aligned and self.method != "best_fit":
            yield ("bos_aligned",), f"needs method: best_fit; {self.method} begins rows within documents. Leave it out"


class ShardsSpec(Record):
    """The shards, which are the files that trainers read."""

    format: Annotated[Literal["arrow", "parquet"], BeforeValidator(_shard_format)] = Field(
        default="arrow", description="arrow: memory-mapped, fastest. parquet: compressed, smaller."
    )
    target_bytes: ByteSize = Field(default=256 << 20, ge=4096, description="Size at which a shard is complete.")


class DocumentsSpec(Record):
    """The documents that a run without a tokenizer writes."""

    format: Literal["parquet", "jsonl.zst"] = Field(
        default="parquet", description="parquet: columns, zstd. jsonl.zst: one JSON object a line."
    )
    target_bytes: ByteSize = Field(default=256 << 20, ge=4096, description="Bytes of text at which a file is complete.")


class PublishSpec(Record):
    """When a run that follows its sources (`--follow`) publishes new documents. Without keys: as soon as there are any."""

    min_tokens: Count | None = Field(
        default=None,
        description="Publish after this number of new tokens: 1B. It is estimated from the bytes of the new files.",
    )
    or_every: Duration | None = Field(
        default=None, description="Publish fewer tokens after this time since the last snapshot: 30min, 6h, 2d."
    )


class Mixture(Record):
    """A whole mixture file."""

    name: str = Field(min_length=1, description="Name of the snapshot and of the report.")
    seed: int = Field(default=0, ge=0, description="Seed of all random choices.")
    output: str = Field(min_length=1, description="Folder of the snapshot: a path or URL (s3://…).")
    max_quarantined: Share = Field(
        default=0.001, description="Maximum share of unreadable documents in a source: 0.1% or 0.001. The run fails above it."
    )
    max_unreadable_files: int = Field(
        default=0,
        ge=0,
        description="Maximum number of input files of a source that are damaged, cut off or of another format. The run "
        "fails above it.",
    )
    validation: Share = Field(
        default=0.0, lt=1, description="Share of each source's kept documents that go to validation shards: 0.1%, 0.001."
    )
    all_sources: dict[Annotated[str, AfterValidator(_source_name)], AnySource] = Field(
        alias="sources", min_length=1, description="The corpora by name; at least one."
    )
    licenses: AllowedLicenses = Field(
        default=(),
        description="Allowed licences of sources, and of documents with a `license_field`: [CC0-1.0, MIT, unknown]. "
        "unknown: no licence is given. Default: all.",
    )
    stages: StageList = Field(
        default=(), description="Stages that process the documents, in order. `datapipe stages` lists all stages and options."
    )
    tokenizer: TokenizerOrNone = Field(
        default=TokenizerSpec(train=TokenizerTraining()),
        description="The tokenizer: train a new one, or use the one at path. none: the run ends with cleaned documents.",
    )
    pack: PackSpec = Field(default=PackSpec(), description="How documents are packed into rows.")
    shards: ShardsSpec = Field(default=ShardsSpec(), description="Format and size of the files that trainers read.")
    documents: DocumentsSpec = Field(
        default=DocumentsSpec(), description="With tokenizer: none, format and size of the files of documents."
    )
    mixture: MixtureSpec = Field(default=MixtureSpec(), description="How many tokens training draws, and when.")
    takedown: str | None = Field(
        default=None,
        min_length=1,
        description="A file that lists documents to leave out, one a line: SOURCE/PATH:POSITION or a key.",
    )
    publish: PublishSpec = Field(default=PublishSpec(), description="With --follow, when new documents become a snapshot.")
    execution: ExecutionSpec = Field(default=ExecutionSpec(), description="How the work is cut into tasks.")

    _origins: Origins = PrivateAttr(default_factory=Origins)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_sections(cls, data: Any) -> Any:
        """Removes sections without keys: a section whose lines are all commented out takes its defaults."""
        optional = ("stages", "tokenizer", "pack", "shards", "documents", "mixture", "publish", "execution")
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in optional}

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        for index, phase in enumerate(self.mixture.phases):
            path = ("mixture", "phases", index, "weights")
            for name in sorted(phase.weights.keys() - self.all_sources.keys()):
                if "/" in name:
                    problems += cell_problems((*path, name), name, self.all_sources)
                    continue
                text = f"unknown source.{suggest(name, self.all_sources)} Expected one of: {', '.join(self.all_sources)}"
                problems.append(((*path, name), text))
            if not any(phase.weights.values()):
                problems.append((path, "every weight is 0. Expected at least one above 0"))
        is_drawn = not self.tokenizer.is_none and not self.mixture.phases
        if is_drawn and not any(source.weight for source in self.all_sources.values()):
            problems.append((("sources",), "every weight is 0. Expected at least one source with a weight above 0"))
        problems += linear_schedule_problems(self.mixture, self._source_weights())
        of_tokens = control_token_problems(self.sources, self.tokenizer)
        problems += [*self._weighting_problems(), *self._snapshot_problems(), *of_tokens]
        if self.pack.method == "buckets":
            text = "cannot be combined with pack.method: buckets, which divides the source by length. Leave one out"
            problems += [(("sources", name, "strata"), text) for name, source in self.sources.items() if source.strata]
        if self.pack.bos_aligned and self.tokenizer.bos is None and not self.tokenizer.is_none and not self._takes_tokenizer:
            text = "needs tokenizer.bos, the token that begins every document, such as <s>, and tokenizer.path"
            problems.append((("pack", "bos_aligned"), text))
        own, listed = self.sources, {name: self._listed(name) for name in self.sources}
        problems += [*licensing_problems(self.licenses, own, listed), *stage_problems(own, listed), *join_problems(listed)]
        problems += amount_problems(own, listed, has_tokens=not self.tokenizer.is_none)
        if not problems:
            is_known = self.mixture.weighting == "given" and not self.tokenizer.is_none
            problems += synthetic_problems(self.mixture, self.sources, self.average_shares() if is_known else {})
        return problems

    def _snapshot_problems(self) -> Iterator[Problem]:
        """The snapshots that cannot be taken: their rows are packed, with their tokenizer."""
        paths: list[KeyPath] = [("sources", name) for name in self.snapshot_sources]
        paths += [] if self.mixture.replay is None else [("mixture", "replay")]
        for path in paths if self.tokenizer.is_none else ():
            yield path, "needs a tokenizer: a snapshot has tokens, and tokenizer: none writes text. Leave the source out"
        for path in paths if "tokenizer" in self.model_fields_set and self.tokenizer.train is not None else ():
            yield (
                ("tokenizer", "train"),
                f"cannot be combined with {dotted(path)}, whose rows have a tokenizer. Leave the tokenizer out to use that one",
            )

    @property
    def _takes_tokenizer(self) -> bool:
        """Whether the tokenizer is left out, for that of a snapshot."""
        takes_rows = bool(self.snapshot_sources) or self.mixture.replay is not None
        return takes_rows and "tokenizer" not in self.model_fields_set

    def _weighting_problems(self) -> Iterator[Problem]:
        weighting = self.mixture.weighting
        for name, source in self.all_sources.items() if weighting != "given" else ():
            if source.weight not in (0, 1):
                yield (
                    ("sources", name, "weight"),
                    f"needs weighting: given; {weighting} computes the weights. Leave it out, or write 0 to draw nothing",
                )
            if weighting == "unimax" and source.weight and self.max_epochs_of(name) is None:
                yield (
                    ("sources", name, "max_epochs"),
                    "missing, as is mixture.max_epochs. Expected: the largest number of repetitions, for weighting: unimax",
                )

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if isinstance(other, Mixture) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def sources(self) -> Mapping[str, Source]:
        return {name: source for name, source in self.all_sources.items() if isinstance(source, Source)}

    @property
    def snapshot_sources(self) -> Mapping[str, SnapshotSource]:
        return {name: source for name, source in self.all_sources.items() if isinstance(source, SnapshotSource)}

    def stages_of(self, source: str) -> tuple[StageUse, ...]:
        """The stages of a source: its own list, or the mixture's, with those that its options and `licenses` ask for."""
        own = self.sources[source]
        uses = chat_stages(own, self._listed(source), self.where("sources", source, "messages"))
        uses = repository_stages(own, uses, self.where("sources", source, "repository"))
        return sampled_stages(own, licensed_stages(self.licenses, own, uses))

    def _listed(self, source: str) -> tuple[StageUse, ...]:
        own = self.sources[source].stages
        return self.stages if own is None else own

    def with_sources(self, sources: Mapping[str, Source | SnapshotSource], weights: Mapping[str, Weights]) -> Mixture:
        """This mixture with `sources` in the place of its snapshots and of its replay, in every phase. `weights`: by the source
        that was there, the shares of those in its place; "": of the replay."""
        replay = self.mixture.replay

        def divided(given: Weights) -> dict[str, Fraction]:
            whole = sum(given.values(), Fraction(0))
            parts = {**given, **({} if replay is None else {"": whole * replay.share / (1 - replay.share)})}
            return {
                name: weight * share
                for source, weight in parts.items()
                for name, share in weights.get(source, {source: Fraction(1)}).items()
            }

        of_sources = divided(self._source_weights())
        phases = tuple(phase.model_copy(update={"weights": divided(phase.weights)}) for phase in self.mixture.phases)
        changed = {name: source.model_copy(update={"weight": of_sources[name]}) for name, source in sources.items()}
        spec = self.mixture.model_copy(update={"phases": phases, "replay": None})
        return self.model_copy(update={"all_sources": changed, "mixture": spec})

    def with_source_values(self, key: str, values: Mapping[str, Any]) -> Mixture:
        """This mixture with other values of a key of its sources, also where they were written as references."""
        changed = {name: self.all_sources[name].model_copy(update={key: value}) for name, value in values.items()}
        copy = self.model_copy(update={"all_sources": {**self.all_sources, **changed}})
        paths = {("sources", name, key) for name in values}
        copy._origins = self._origins.without_references(paths)
        return copy

    def weight_phases(self) -> tuple[WeightPhase, ...]:
        """The given weights over the run. Each phase names every source; there is one phase if the weights do not change."""
        return weight_phases(self.mixture, self._source_weights())

    def rounded_shares(self) -> dict[str, tuple[float, float]]:
        """By source whose given share cannot be counted exactly, that share and the one that counts; noise is left out."""
        drawn = [weights for _, weights in self._given_weights() if any(weights.values())]
        return {name: shares for given in drawn for name, shares in changed_shares(given, integer_weights(given)).items()}

    def incomplete_shares(self) -> Iterator[tuple[str, dict[str, Fraction]]]:
        """Weights of which none is above 1 and some are fractions, and that do not add up to about 1, each with its key."""
        for key, given in self._given_weights() if self.mixture.weighting == "given" else ():
            weights = {name: weight for name, weight in given.items() if weight}
            are_shares = max(weights.values(), default=0) <= 1 and any(weight < 1 for weight in weights.values())
            if are_shares and abs(sum(weights.values()) - 1) > _SHARE_NOISE:
                yield key, weights

    def _given_weights(self) -> Sequence[tuple[str, Weights]]:
        phases = [(f"mixture.phases[{number}].weights", phase.weights) for number, phase in enumerate(self.mixture.phases)]
        return phases or [("the weights of the sources", self._source_weights())]

    def average_shares(self) -> dict[str, Fraction]:
        """The share of all tokens that each source contributes over all phases, by the given weights."""
        total, start = self.mixture.tokens, 0
        shares = dict.fromkeys(self.all_sources, Fraction(0))
        for phase in self.weight_phases():
            stop = total if phase.until_tokens is None else phase.until_tokens
            part = Fraction(1) if total is None or stop is None else Fraction(stop - start, total)
            for name, weight in phase.weights.items():
                shares[source_of(name)] += part * Fraction(weight, sum(phase.weights.values()))
            start = stop or 0
        return shares

    def max_epochs_of(self, source: str) -> float | None:
        """The largest number of repetitions of a source: its own option, or the mixture's."""
        own = self.all_sources[source].max_epochs
        return self.mixture.max_epochs if own is None else own

    def _source_weights(self) -> dict[str, Fraction]:
        return {name: source.weight for name, source in self.all_sources.items()}

    def unused_keys(self) -> list[str]:
        """The keys that are set, and read by no step of a run without a tokenizer, or with one."""
        if not self.tokenizer.is_none:
            return [] if self.documents == DocumentsSpec() else ["documents"]
        is_set = {
            "validation": self.validation > 0,
            "pack": self.pack != PackSpec(),
            "shards": self.shards != ShardsSpec(),
            "mixture": self.mixture != MixtureSpec(),
            "takedown": self.takedown is not None,
            **{f"sources.{name}.strata": source.strata is not None for name, source in self.sources.items()},
            **{f"sources.{name}.split": source.split is not None for name, source in self.sources.items()},
            **{
                f"sources.{name}.max_document_tokens": source.max_document_tokens is not None
                for name, source in self.sources.items()
            },
        }
        return [key for key, value in is_set.items() if value]

    def where(self, *path: str | int) -> str:
        """File, line and path for an error message: `mixture.where("sources", "web", "path")`."""
        return self._origins.where(path)

    def with_origins(self, origins: Origins) -> Mixture:
        def located(uses: tuple[StageUse, ...], *path: str | int) -> tuple[StageUse, ...]:
            return tuple(use.model_copy(update={"where": origins.where((*path, index))}) for index, use in enumerate(uses))

        sources = {
            name: source
            if not isinstance(source, Source) or source.stages is None
            else source.model_copy(update={"stages": located(source.stages, "sources", name, "stages")})
            for name, source in self.all_sources.items()
        }
        copy = self.model_copy(update={"all_sources": sources, "stages": located(self.stages, "stages")})
        copy._origins = origins
        return copy

    def resolved_yaml(self) -> str:
        """This mixture as YAML, with all defaults and without credentials. References to environment variables stay. Loading it
        where the variables have the same values gives an equal mixture, but for credentials that were written out. A tokenizer
        that is left out stays so beside snapshots, whose tokenizer the run uses."""
        left_out = {"tokenizer"} if self._takes_tokenizer else None
        return written_yaml(self.model_dump(exclude_none=True, exclude=left_out), self._origins.references)

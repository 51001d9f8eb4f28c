"""The arguments of a loader, for `Loader`, a dataset of torch, and the requests of a client to a service."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, ValidationError, model_validator

from datapipe.errors import UserError, suggest
from datapipe.loader.field_table import FIELDS, Labels
from datapipe.loader.order.layout import Split
from datapipe.loader.order.recipe import Override
from datapipe.loader.order.steps import merged
from datapipe.loader.share import Mesh
from datapipe.loader.world import rank_and_world_size

OnCorrupt = Literal["raise", "replace"]

MOST_FIELDS = 32


def _names(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("expected texts")
    return names


def _field_names(value: Any) -> tuple[str, ...]:
    fields = _names(value)
    if len(fields) > MOST_FIELDS:
        raise ValueError(f"expected at most {MOST_FIELDS}")
    for field in fields:
        if field not in FIELDS:
            raise ValueError(f"no field '{field[:64]}'.{suggest(field[:64], FIELDS)} Expected names of {', '.join(FIELDS)}")
    return fields


def _steps(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, Sequence):
        raise ValueError("expected ranges (start, stop) of steps")
    return merged(value)


def _plain_mixture(mixture: Any) -> Any:
    """A mixture as JSON has it: with integers, floats and texts as weights. `recipe.py` checks the weights themselves."""
    if mixture is None:
        return None
    if isinstance(mixture, Mapping):
        return {str(name): _plain_weight(weight) for name, weight in mixture.items()}
    phases: list[tuple[int | None, Any]] = []
    for phase in mixture if isinstance(mixture, Sequence) and not isinstance(mixture, str) else (mixture,):
        until, weights = phase if isinstance(phase, Sequence) and len(phase) == 2 else (None, None)
        if not isinstance(weights, Mapping) or not isinstance(until, Integral | None):
            raise ValueError("expected weights by source, or phases of (token at which the phase ends, weights)")
        phases.append((None if until is None else int(until), _plain_mixture(weights)))
    return phases


def _plain_weight(weight: Any) -> int | float | str:
    return weight if type(weight) is int else float(weight) if isinstance(weight, float) else str(weight)


def _dtype_name(dtype: Any) -> str:
    name = np.dtype(dtype).name
    if name not in ("int64", "int32"):
        raise ValueError("expected int64 or int32")
    return name


_Names = Annotated[Sequence[str], PlainValidator(_names)]
_Rows = Annotated[int, Field(ge=1, lt=1 << 31)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]


class LoaderOptions(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The comments are the reference: `.ci/reference` prints them."""

    # A fingerprint of `datapipe snapshots`, or its first digits. Default: the newest snapshot.
    snapshot: str | None = None
    # Tokens of a row, for an output with several lengths. Default: the first length of the mixture.
    sequence_length: _Rows | None = None
    # Rows over all ranks. Give exactly one of `global_batch_size` and `batch_size`.
    global_batch_size: _Rows | None = None
    # Rows of each rank. The global batch has `batch_size * world_size` rows.
    batch_size: _Rows | None = None
    # Number of this trainer, from 0. Default: that of `torch.distributed` or of the environment (`world.py`), else 0.
    rank: int | None = None
    # Number of trainers that share each global batch. Default: as for `rank`, else 1.
    world_size: int | None = None
    # Replaces rank and world size where several ranks read the same rows, or parts of them.
    mesh: Mesh | None = None
    # "train" or "validation". Validation gives every held-out sequence once, in order; its last batch may be smaller.
    split: Split = "train"
    fields: Annotated[Sequence[str], PlainValidator(_field_names)] = ("input_ids", "labels")  # Names of the fields below.
    # "shifted": the next token. "unshifted": for models that shift labels themselves, as Hugging Face's do.
    labels: Labels = "shifted"
    # int64 or int32, the type of the fields with one number per token.
    dtype: Annotated[npt.DTypeLike, PlainValidator(_dtype_name)] = "int64"
    # Seed of the permutations, from -2^63 to 2^64 - 1. Default: the seed of the snapshot.
    seed: Seed | None = None
    # Number of shards of a source whose rows are mixed at a time; 0: all. Default: that of the snapshot.
    window: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    # False: the rows of each source come in the order of its shards. Sources are mixed in any case.
    shuffle: bool = True
    # Number of neighbouring rows that come from one source. 1: sources are mixed row by row. The global batch size: every
    # batch has one source. The number of rows of a rank: the part of every rank has one source.
    group_rows: _Rows = 1
    # Weights in place of the snapshot's: {source: weight}, or phases [(token at which the phase ends, weights), …]. The last
    # phase ends at None.
    mixture: Annotated[Override | None, PlainValidator(_plain_mixture), PlainSerializer(lambda mixture: mixture)] = None
    # Half-open ranges (start, stop) of steps to leave out. All other steps keep their batches.
    skip: Annotated[Sequence[tuple[int, int]], PlainValidator(_steps)] = ()
    # Documents whose tokens become padding, each as SOURCE/PATH:POSITION or as the 32 hex digits of its key.
    skip_documents: _Names = ()
    # Paths of shards, with or without the digest. Other rows of the source replace their rows.
    skip_shards: _Names = ()
    # Accepts states of another mixture, or of other sources. Each source continues after its samples so far.
    migrate: bool = False
    restart: _Names = ()  # With `migrate`: sources that hold other rows than before and start over.
    # What happens to rows that are damaged in storage. "raise": an error. "replace": other rows of their source replace them,
    # with a warning that names the shard. States do not record the replacement, as they do for `skip_shards`.
    on_corrupt: OnCorrupt = "raise"
    # Number of runs (documents, and the padding of rows) that `cu_seqlens` has room for (see `most_runs`). Its length and
    # `max_seqlen` are then the same in every batch, as CUDA graphs and torch.compile need.
    pad_cu_seqlens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    # What happens to the last rows of a run, where they do not fill a batch. False: they make a smaller batch, in which a rank
    # may have no row. True: they are left out. Default: they are left out with a warning. Validation always keeps them.
    drop_last: bool | None = None
    # Bytes of the local cache of whole shards, for snapshots on object stores; 0: no cache. Default: 16 GiB, and at most half
    # of the free disk space. A service has a separate cache.
    cache_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    # Folder of that cache, which the ranks and runs of a machine share. Default: $XDG_CACHE_HOME/datapipe/shards.
    cache_folder: str | Path | None = None
    # Number of batches to build ahead; 0: the caller builds them. Default: 4 to 32, as many as fit into 6 MiB, or into 8 MiB
    # from a service or a store.
    prefetch: Annotated[int, Field(ge=0, le=1 << 16)] | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.drop_last and self.split == "validation":
            raise UserError(
                "drop_last=True with split='validation': a validation gives every held-out row once, and its last batch may be "
                "smaller. Leave drop_last out; where all batches need one shape, pad the last with rows of label -100."
            )
        if self.group_rows > 1 and self.split == "validation":
            raise UserError(
                "group_rows: only the training split mixes sources; the validation split reads one after the other."
            )
        if self.restart and not self.migrate:
            raise UserError(
                f"restart={list(self.restart)} without migrate=True: set migrate=True to accept the state of a run with other "
                f"rows."
            )
        return self

    def with_rank(self) -> Self:
        """These options with the mesh of this process and the rows of a global batch: those of a copy in another process."""
        own = {"mesh": self.own_mesh, "global_batch_size": self.num_rows}
        return self.model_copy(update={**own, "rank": None, "world_size": None, "batch_size": None})

    @property
    def own_mesh(self) -> Mesh:
        if self.mesh is None:
            rank, world_size = rank_and_world_size(self.rank, self.world_size)
            return Mesh(data_rank=rank, data_size=world_size)
        if (self.rank, self.world_size) not in ((None, None), (0, 1)):
            raise UserError(
                f"mesh together with rank={self.rank}, world_size={self.world_size}: give either the mesh, or rank and world "
                f"size."
            )
        return self.mesh

    @property
    def num_rows(self) -> int:
        given = (self.global_batch_size, self.batch_size)
        if (given[0] is None) == (given[1] is None):
            raise UserError(
                f"global_batch_size={given[0]}, batch_size={given[1]}: give exactly one of them; batch_size counts the rows of "
                f"one rank, global_batch_size those of all."
            )
        return given[0] or (given[1] or 0) * self.own_mesh.data_size

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize


_HINTS = {
    "mesh": " mesh_of(…) makes one: that of datapipe.loader.torch of a DeviceMesh, that of datapipe.loader.jax of a sharding."
}
_WORDS = {
    "Value error, ": "",
    "Input should be": "expected",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "less than": "below",
    "a valid integer": "an int, which int(…) makes of other numbers",
}
"""Of messages of pydantic, and the replacement."""


def checked_options(given: Mapping[str, Any]) -> LoaderOptions:
    try:
        return LoaderOptions(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name, value, message = str(first["loc"][0]), first["input"], first["msg"]
    if first["type"] == "extra_forbidden":
        raise UserError(f"a loader has no argument '{name}'.{suggest(name, LoaderOptions.model_fields)}")
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    raise UserError(f"{name}={value!r} of type {type(value).__name__}: {message}.{_HINTS.get(name, '')}")


_Given = ParamSpec("_Given")


def taking(options: Callable[_Given, Any]) -> Callable[[Any], Callable[Concatenate[Any, str | Path, _Given], None]]:
    """Gives a method `(self, output, **options)` its whole signature, for readers and type checkers."""

    def with_signature(method: Any) -> Any:
        own = list(inspect.signature(method).parameters.values())[:-1]
        given = [each.replace(annotation=each.empty) for each in inspect.signature(options).parameters.values()]
        method.__signature__ = inspect.Signature([*own, *given])
        return method

    return with_signature

"""The messages between a client and a server of batches, over Arrow Flight. Everything that a client sends is checked here.

    client                                        server
    action "open"     OpenRequest ──────────────▶ Opened: the state of a new or continued run, and what its steps need
    action "where"    a name ───────────────────▶ Where: the newest snapshot, and the folder for clients on the same machine
    DoGet             Ticket ───────────────────▶ record batches (`wire.py`), many steps in one stream
                                     a refusal ◀─ Refusal, in the extra information of a Flight error

A ticket names everything that a batch depends on, so any server that has the output can answer it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, ValidationError

from datapipe.errors import CorruptionError, DatapipeError, SnapshotError, UserError
from datapipe.loader.options import LoaderOptions, Seed
from datapipe.loader.share import Mesh
from datapipe.shards.manifest import Snapshot

VERSION = 4

MOST_REQUEST_BYTES = 2 << 20
"""Of a ticket or an `OpenRequest`, which hold a lineage: about 40 bytes a source."""

MOST_STEPS_OF_STREAM = 1 << 16
MESSAGE_BYTES = 4 << 20  # of the batches in a message, about. A larger batch has its own message.
MOST_ROWS = 1 << 20  # of a global batch
MOST_MESSAGE_CHARS = 900
"""Of an error: gRPC loses longer ones with the metadata that they travel in."""

Kind = Literal["user", "snapshot", "corruption", "denied", "busy", "draining", "failed"]
"""Of a refusal. Other servers may answer what `busy` and `draining` refuse."""

_ERRORS: dict[str, type[DatapipeError]] = {"snapshot": SnapshotError, "corruption": CorruptionError, "failed": DatapipeError}

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=200)]
"""Of an output, as the server gives it: parts of letters, digits, dots, dashes and underscores, between slashes."""

_Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]
_Window = Annotated[int, Field(ge=0, lt=1 << 31)]


def is_name(text: str) -> bool:
    return len(text) <= 200 and re.fullmatch(_NAME, text) is not None and not text.endswith("\n")


class _Record(BaseModel, frozen=True, extra="forbid", strict=True):
    what: ClassVar[str] = "answer of the server"
    most_bytes: ClassVar[int] = 1 << 30

    def to_json(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def read(cls, content: bytes) -> Self:
        if len(content) > cls.most_bytes:
            raise UserError(f"{cls.what} of {len(content):,} bytes: at most {cls.most_bytes:,} are taken.")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(str(name) for name in first["loc"])[:100]
            raise UserError(f"{cls.what}: {key or 'content'}: {first['msg']}") from None


class Ticket(LoaderOptions, _Record, frozen=True):
    """Some steps of a rank. What decides the rows, but for the lineage, are options of a loader;
    those of skips have no effect."""

    what, most_bytes = "ticket", MOST_REQUEST_BYTES

    v: Literal[4] = VERSION
    output: Name
    snapshot: _Fingerprint  # pyright: ignore[reportGeneralTypeIssues] - without a default
    seed: Seed  # pyright: ignore[reportGeneralTypeIssues]
    window: _Window  # pyright: ignore[reportGeneralTypeIssues]
    mesh: Mesh  # pyright: ignore[reportGeneralTypeIssues]
    lineage: str
    first: _Count
    # how many steps, skipped ones not counted
    count: Annotated[int, Field(ge=1, le=MOST_STEPS_OF_STREAM)] = 1
    # of the steps that are not skipped, every stride-th is sent
    stride: Annotated[int, Field(ge=1, le=1 << 16)] = 1


class OpenRequest(LoaderOptions, _Record, frozen=True):
    """The arguments of a `Loader`, and a state to continue from."""

    what, most_bytes = "request", MOST_REQUEST_BYTES

    v: Literal[4] = VERSION
    output: Name
    state: dict[str, Any] | None = None
    is_exact: bool = False  # whether the history in the state is kept unchanged, as for a copy of a loader


class Opened(_Record, frozen=True):
    snapshot: Snapshot  # the manifest without the shards
    state: dict[str, Any]  # of the run at its next step
    sources: tuple[str, ...]
    num_samples: int | None


class Where(_Record, frozen=True):
    """The answer to the action "where", whose body is the name of an output."""

    most_bytes = 1 << 20

    snapshot: _Fingerprint
    files: str = ""  # the folder of the output, for clients on the server's own machine; empty for others


class Refusal(_Record, frozen=True):
    """Why a server does not answer. `message` is a short sentence without paths."""

    kind: Kind
    message: str

    @classmethod
    def of(cls, kind: Kind, message: str) -> Refusal:
        is_long = len(message) > MOST_MESSAGE_CHARS
        return cls(kind=kind, message=message[: MOST_MESSAGE_CHARS - 1] + "…" if is_long else message)

    @classmethod
    def found_in(cls, content: bytes) -> Refusal | None:
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            return None

    def error(self) -> DatapipeError:
        return _ERRORS.get(self.kind, UserError)(self.message)

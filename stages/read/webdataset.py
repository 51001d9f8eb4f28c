"""WebDataset: tar archives in which consecutive members with one base name are a sample.

The base name ends at the first dot behind the last slash, or at the last one by an option. A base name that returns later with
other endings, as in archives of `tar cf a.tar *.txt *.json`, is damage: samples would have to be held until the end of the
file. The position of a document is the byte at which the member with its text begins in the decompressed archive. Memory is
one sample, one batch, and about 100 bytes a sample, of at most `_MOST_NAMES`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from datapipe.dataclass import dataclass, field
from datapipe.stage import FieldNames, OpenInput, ReadBatch, Rejected, Split
from datapipe.stage.decoding import BOM, EXCERPT_BYTES, BrokenStreamError, ByteStream, as_utf8, decoded
from datapipe.stage.documents import TARGET_BATCH_BYTES
from datapipe.stage.field_types import JsonNumber, json_value, parsed_json
from stages.read._content_reader import ContentReader
from stages.read._json.values import STRING, as_json, kept_columns
from stages.read._tar.members import Member, TarMembers

_BATCH_DOCS = 4096
_SAMPLE = {
    "first_dot": re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL),
    "last_dot": re.compile(r"((?:.*/)?[^/]+)\.([^./]+)", re.DOTALL),
}
_MOST_NAMES = 1 << 20
"""Base names of an archive that are remembered. Archives have some thousand samples."""
_SURROGATES = re.compile("[\ud800-\udfff]")


class Webdataset(ContentReader):
    """Reads the text of each sample of a tar archive.

    `text: [txt, json]` lists the endings of members that may hold the text; the first that a sample has counts. Of a JSON
    member, the source names the field with the text. Fields under `keep:` and the id come from the JSON members, or else are
    the content of the member with this ending, as strings. Without an id in JSON, the base name is the id.
    """

    extensions: ClassVar[tuple[str, ...]] = (".tar",)
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    text: tuple[str, ...] = Field(
        default=("txt", "json"), min_length=1, description="Endings of the member with the text; the first one wins."
    )
    base_names: Literal["first_dot", "last_dot"] = Field(
        default="first_dot",
        description="Where base names end. first_dot: as WebDataset has it, 22.en.txt is the member en.txt of the sample 22. "
        "last_dot: it is the member txt of the sample 22.en.",
    )
    max_member_bytes: int = Field(
        default=64 << 20, ge=1, description="Maximum bytes of a member. Larger members are quarantined, and not held in memory."
    )

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        batch = _Batch(fields)
        stream = ByteStream(decoded(open_input, split.file.url, split.file.compression, self.max_window_bytes))
        sample = _Sample()
        try:
            members = TarMembers(stream)
            for member in members:
                key, ending = _key_of(member, _SAMPLE[self.base_names])
                if key is None or key != sample.key:
                    batch.add_sample(sample, self.text)
                    sample = _Sample(key, member.position)
                sample.endings.add(ending)
                if isinstance(member, Rejected):
                    batch.rejected.append(member)
                    batch.endings_of.clear()  # behind damage, members of a sample may stand apart
                elif key is None or member.kind != "file":
                    batch.passed_over["no_base_name" if member.kind == "file" else member.kind] += 1
                elif ending in (*self.text, *fields.keep) or _is_json(ending):
                    sample.add(ending, member, self._content(members, member))
                else:
                    sample.num_others += 1
                if batch.is_full:
                    yield batch.take()
        except BrokenStreamError as error:
            batch.rejected.append(Rejected(position=stream.position, error=str(error), is_file_damage=True))
        batch.add_sample(sample, self.text)
        yield batch.take()

    def _content(self, members: TarMembers, member: Member) -> bytes | Rejected:
        if member.num_bytes <= self.max_member_bytes:
            return members.content(member)
        error = (
            f"member '{_clean(member.name)}' has {member.num_bytes} bytes, more than max_member_bytes, {self.max_member_bytes}"
        )
        return Rejected(position=member.position, error=error)


def _key_of(member: Member | Rejected, sample: re.Pattern[str]) -> tuple[str | None, str]:
    """Base name and ending of a member; None for what belongs to no sample."""
    parts = sample.fullmatch(member.name) if isinstance(member, Member) else None
    return (None, "") if parts is None else (parts[1], parts[2].lower())


def _is_json(ending: str) -> bool:
    return ending == "json" or ending.endswith(".json")


@dataclass(slots=True)
class _Sample:
    """Members of one base name. A second one of the same ending, or one that cannot be read, is `damage` of the sample."""

    key: str | None = None
    position: int = 0
    endings: set[str] = field(default_factory=set)
    contents: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    damage: Rejected | None = None
    num_others: int = 0

    def add(self, ending: str, member: Member, content: bytes | Rejected) -> None:
        if ending in self.contents:
            error = f"sample '{_clean(self.key or '')}' has two members ending in .{ending}; expected one"
            content = Rejected(position=self.contents[ending][0], error=error)
        if isinstance(content, Rejected):
            self.damage = self.damage or content
        else:
            self.contents[ending] = (member.position, content)

    @property
    def is_empty(self) -> bool:
        return not self.contents and self.damage is None and not self.num_others


_Value = tuple[str | None, int]  # A kept value as text, and its first byte as JSON writes it


class _NotTextError(Exception):
    """Why a sample is no document."""


class _Batch:
    def __init__(self, fields: FieldNames) -> None:
        self._fields, self._is_split = fields, False
        self.endings_of: dict[int, frozenset[str]] = {}  # by the hash of a base name
        self._clear()

    def _clear(self) -> None:
        self.rejected: list[Rejected] = []
        self.passed_over: Counter[str] = Counter()
        self._positions: list[int] = []
        self._texts: list[str] = []
        self._ids: list[str] = []
        self._kept: dict[str, list[_Value]] = {name: [] for name in self._fields.keep}
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._num_bytes >= TARGET_BATCH_BYTES or len(self._texts) + len(self.rejected) >= _BATCH_DOCS

    def add_sample(self, sample: _Sample, endings: tuple[str, ...]) -> None:
        """Adds the document of a sample; counts a sample without text, rejects one that cannot be read."""
        split = self._continues(sample.key, frozenset(sample.endings)) if sample.key is not None else ""
        if split:
            more = [] if self._is_split else [Rejected(position=sample.position, error=split, is_file_damage=True)]
            self.rejected += more
            self._is_split = True
            self.passed_over["members_elsewhere"] += 1
            return
        if sample.damage is not None:
            self.rejected.append(sample.damage)
            return
        ending = self._ending(sample, endings)
        if ending is None:
            self.passed_over["sample_without_text"] += not sample.is_empty
            return
        position, content = sample.contents[ending]
        try:
            objects = {name: _parsed(name, sample.contents[name][1]) for name in sample.contents if _is_json(name)}
            text = self._text(ending, content, objects)
            kept = {name: _value(name, objects, sample) for name in self._fields.keep}
            identity, _ = _value(self._fields.id, objects, sample)
        except _NotTextError as error:
            self.rejected.append(Rejected(position=position, error=str(error), excerpt=content[:EXCERPT_BYTES]))
            return
        self._positions.append(position)
        self._texts.append(text)
        self._ids.append(_clean(sample.key or "") if identity is None else identity)
        for name, value in kept.items():
            self._kept[name].append(value)
        self._num_bytes += len(content)

    def _ending(self, sample: _Sample, endings: tuple[str, ...]) -> str | None:
        """The member with the content of a sample; None without one."""
        if self._fields.text is None:
            return next((ending for ending in sample.contents if _is_json(ending) or ending == self._fields.content), None)
        return next((ending for ending in endings if ending in sample.contents), None)

    def _text(self, ending: str, content: bytes, objects: Mapping[str, Mapping[str, Any]]) -> str:
        if self._fields.text is None:
            return ""
        return _text_of(objects[ending], self._fields) if ending in objects else _decoded(ending, content)

    def _continues(self, name: str, endings: frozenset[str]) -> str:
        """Adds a sample. Returns that it continues one from before: its base name, and none of its endings, was there.
        Another sample of the same name, as in archives that were joined, has the same endings."""
        key = xxhash.xxh3_64_intdigest(name.encode(errors="surrogateescape"))
        before = self.endings_of.get(key, frozenset())
        if before or len(self.endings_of) < _MOST_NAMES:
            self.endings_of[key] = before | endings
        if not before or before & endings:
            return ""
        return (
            f"the members of sample '{_clean(name)}' do not follow each other: .{_clean(min(before))} and "
            f".{_clean(min(endings))} have others between them. Expected the members of a sample side by side, as "
            f"`tar --sort=name` writes them"
        )

    def take(self) -> ReadBatch:
        """The batch of what was added since the last call."""
        kept = {
            name: (pa.array([text for text, _ in pairs], pa.large_string()), np.array([first for _, first in pairs], np.uint8))
            for name, pairs in self._kept.items()
        }
        extra, wider = kept_columns(kept, self._fields)
        batch = ReadBatch(
            positions=np.array(self._positions, np.uint64),
            content=pa.array(self._texts, pa.large_string()),
            ids=pa.array(self._ids, pa.large_string()),
            extra=extra,
            wider=wider,
            rejected=tuple(sorted(self.rejected, key=lambda rejected: rejected.position)),
            passed_over={kind: count for kind, count in sorted(self.passed_over.items()) if count},
            input_bytes=self._num_bytes,
        )
        self._clear()
        return batch


def _parsed(ending: str, content: bytes) -> Mapping[str, Any]:
    try:
        parsed = parsed_json(_decoded(ending, content))
    except (ValueError, RecursionError) as error:
        raise _NotTextError(f"member .{ending} is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise _NotTextError(f"member .{ending} is no JSON object; expected one with the fields of the sample")
    return parsed


def _decoded(ending: str, content: bytes) -> str:
    try:
        return b"".join(as_utf8(iter([content]))).removeprefix(BOM).decode()
    except BrokenStreamError as error:
        raise _NotTextError(f"member .{ending}: {error}") from None
    except UnicodeDecodeError as error:
        raise _NotTextError(f"member .{ending} is invalid UTF-8 at byte {error.start}; expected UTF-8 text") from None


def _text_of(record: Mapping[str, Any], fields: FieldNames) -> str:
    name, replaces_surrogates = fields.content, fields.replaces_surrogates
    text = json_value(record, name)
    if text is None:
        raise _NotTextError(f"field '{name}' is missing or null; expected a string")
    if not isinstance(text, str) or isinstance(text, JsonNumber):
        raise _NotTextError(f"field '{name}' is no string; expected one")
    if _SURROGATES.search(text) and not replaces_surrogates:
        raise _NotTextError(
            f"field '{name}' has half of a surrogate pair; expected whole characters, or "
            "`lone_surrogates: replace` of the source"
        )
    return _clean(text)


def _value(name: str, objects: Mapping[str, Mapping[str, Any]], sample: _Sample) -> _Value:
    """A field as text, of the first JSON member that has it, or a member; and its first byte as JSON writes it."""
    value = next((value for value in (json_value(record, name) for record in objects.values()) if value is not None), None)
    if value is not None:
        text = _clean(value if isinstance(value, str) else as_json(value))
        is_string = isinstance(value, str) and not isinstance(value, JsonNumber)
        return text, STRING if is_string else ord(text[0])
    is_member = name in sample.contents and name not in objects
    return (_decoded(name, sample.contents[name][1]), STRING) if is_member else (None, 0)


def _clean(text: str) -> str:
    """A text that UTF-8 can hold: bytes of a name that are none, and halves of surrogate pairs, become U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)

"""Joins the files of a repository into documents (`datapipe/stage/repositories.py`). In the input, each file is a document.

    files, anywhere in the input ─▶ rows by the hash of their repository, in the order of its documents
      ─▶ contents   a text with the control tokens between files, for the file that comes first; its key is that of the document
      └▶ drops      the other files, as `joined`, each with the key of the document that holds it

Rows of a repository come in slices. A document ends where the next file would exceed `max_bytes`, so memory is a slice and one
document, however large the repository is. A file without the name of a repository is a document by itself.

Paths are compared by their first 128 bytes, so that the files of a folder stay together; the key of the file breaks ties.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.columns import KEY_BYTES, KEY_TYPE, compute, full_schema, is_first, key_halves, keys_from, numbers, text_buffers
from datapipe.errors import UserError
from datapipe.kernels.dedup.text_hashes import hash_texts
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.clusters import drop_rows
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.licenses import license_texts
from datapipe.stage.repositories import (
    FILES,
    MOST_BYTES,
    Files,
    document_starts,
    files_bytes,
    joined_files,
    joined_licenses,
    paths_as_json,
)
from datapipe.stage.segments import SEGMENTS, SEGMENTS_TYPE
from datapipe.stage.tables import CONTENTS, DROP_SCHEMA, Exchange, key_hash

_TEXT = pa.large_string()
_PATH_WORDS = 8  # of 16 bytes each
_ROWS = "files"


class Repository(Global):
    """Joins the files of each repository. A source with `repository: {group_by: …}` gets this stage."""

    scope: Literal["run", "source"] = Field(
        default="source",
        description="source: repositories are joined within each source, so each document has its licence.",
    )
    group_by: str = Field(min_length=1, description="Column with the name of the repository.")
    path: str = Field(default="path", min_length=1, description="Column with the path of the file.")
    license: str | None = Field(
        default=None,
        min_length=1,
        description="Column with the licence of a file. A joined document has the licences of all its files.",
    )
    order: Literal["path", "random", "given"] = Field(
        default="path", description="Order of the files: by path, by a keyed hash, or as in the input."
    )
    max_bytes: int = Field(
        default=MOST_BYTES,
        ge=1,
        le=64 << 20,
        description="Maximum number of bytes in a document. The next file begins another document; a longer file is a "
        "document.",
    )
    separators: tuple[str, ...] | None = Field(
        default=None,
        description="Control tokens before the name of a repository and before each file. Default: those of the tokenizer, "
        "else lines with #PATH. []: such lines.",
    )

    rule: ClassVar[str] = "joined"
    libraries = ("pyarrow",)
    writes = (FILES,)

    def check_options(self) -> None:
        if self.scope == "run":
            problem = "found run, expected source: documents would hold files of several sources, and have one licence"
            raise ValueError(f"scope: {problem}. Leave it out, or make one source of the files")
        of_duplicates = ("size_column", "cluster_column", "against", "max_dropped", "on_excess")
        given = [name for name in of_duplicates if getattr(self, name) != type(self).model_fields[name].default]
        if given:
            raise ValueError(f"`{given[0]}` is for duplicates, and files are joined. Leave it out")
        if self._tokens and not (len(self._tokens) == 2 and self._tokens[1]):
            tokens = "expected two control tokens, before the name of a repository, which may be empty, and before each file"
            raise ValueError(f"separators: found {list(self._tokens)}, {tokens}")

    @property
    def _tokens(self) -> tuple[str, ...]:
        return self.separators or ()

    def columns_read(self) -> Mapping[str, str]:
        license = {} if self.license is None else {self.license: "license"}
        return {self.group_by: "group_by", self.path: "path", **license}

    def unseen_by_emit(self) -> set[str]:
        return {*super().unseen_by_emit(), "max_bytes", "separators"}

    def emits(self) -> Mapping[str, pa.Schema]:
        words = [f"path_{number:02d}" for number in range(_PATH_WORDS)]
        ranks = {"path": dict.fromkeys(words, KEY_TYPE), "random": {"rank": pa.uint64()}, "given": {}}[self.order]
        texts = dict.fromkeys(("id", "repository", "path", "license", "text"), _TEXT)
        sorted_by = {"hash": pa.uint64(), "digest": pa.uint64(), **ranks, "key": KEY_TYPE}
        return {_ROWS: full_schema(**sorted_by, **texts)}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        if SEGMENTS in batch.record.schema.names:
            raise UserError(f"{self._context.name}: documents have segments already. Put the stage that makes them after it")
        names, paths = self._texts(batch, self.group_by), self._texts(batch, self.path)
        empty = pa.repeat(pa.scalar("", _TEXT), batch.num_docs)
        column = self.license and batch.column(self.license, self._context.name)
        licenses = empty if column is None else license_texts(column, str(self.license)).fill_null("")
        texts = [batch.record.column("id"), names, paths, licenses, batch.texts]
        arrays = [*self._hashes(batch, names), *self._ranks(batch, paths), batch.keys, *texts]
        return {_ROWS: pa.RecordBatch.from_arrays(arrays, schema=self.emits()[_ROWS])}

    def _texts(self, batch: DocumentBatch, name: str) -> pa.Array:
        column = batch.column(name, self._context.name)
        try:
            return column.cast(_TEXT).fill_null("")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UserError(f"{self._context.name}: column '{name}' is {column.type}, expected text") from None

    def _hashes(self, batch: DocumentBatch, names: pa.Array) -> list[pa.Array]:
        """Two hashes of each repository; of a file without one they are of the file."""
        hashes, digests = np.empty(batch.num_docs, np.uint64), np.empty(batch.num_docs, np.uint64)
        hash_texts(*text_buffers(names), hashes, digests)
        has_none = numbers(compute.equal(names, ""))
        hashes[has_none] = key_hash(batch.keys)[has_none]
        digests[has_none] = keyed_hash(key_halves(batch.keys), seed_for(0, "repository"))[has_none]
        return [pa.array(hashes), pa.array(digests)]

    def _ranks(self, batch: DocumentBatch, paths: pa.Array) -> list[pa.Array]:
        """What files of a repository are sorted by before their keys."""
        if self.order == "random":
            seed = seed_for(self._context.seed, self._context.name, "order")
            return [pa.array(keyed_hash(key_halves(batch.keys), seed))]
        if self.order == "given":
            return []
        begins, size = compute.binary_slice(paths.cast(pa.binary()), 0, _PATH_WORDS * KEY_BYTES), _PATH_WORDS * KEY_BYTES
        offsets, data = text_buffers(begins.cast(pa.large_binary()))
        padded = np.zeros((batch.num_docs, size), np.uint8)
        padded[np.arange(size) < np.diff(offsets)[:, None]] = data[offsets[0] : offsets[-1]]
        return [keys_from(padded[:, start : start + KEY_BYTES]) for start in range(0, size, KEY_BYTES)]

    def exchanges(self) -> Sequence[Exchange]:
        made = {"id": _TEXT, "text": _TEXT, FILES: _TEXT}
        made |= {SEGMENTS: SEGMENTS_TYPE} if self._tokens else {}
        made |= {self.license: _TEXT} if self.license is not None else {}
        kept = pa.schema([pa.field(name, kind, nullable=name == self.license) for name, kind in made.items()])
        contents = pa.unify_schemas([full_schema(hash=pa.uint64(), key=KEY_TYPE), kept])
        return [Exchange(name="join", inputs=(_ROWS,), outputs={"drops": DROP_SCHEMA, CONTENTS: contents}, in_slices=True)]

    def reduce_slices(self, exchange: str, slices: Iterator[pa.RecordBatch]) -> Iterator[Mapping[str, pa.RecordBatch]]:
        held: pa.RecordBatch | None = None  # the files of a document that may go on
        for rows in slices:
            files = rows if held is None else pa.concat_batches([held, rows])
            starts = self._document_starts(files)
            yield self._documents(files.slice(0, int(starts[-2])), starts[:-1])
            held = files.slice(int(starts[-2]))
        if held is not None:
            yield self._documents(held, np.array([0, held.num_rows]))

    def _document_starts(self, files: pa.RecordBatch) -> np.ndarray:
        begins = np.flatnonzero(is_first(numbers(files.column("hash")), numbers(files.column("digest"))))
        sizes = files_bytes(files.column("path"), files.column("text"))
        return document_starts(sizes, np.append(begins, files.num_rows), self.max_bytes)

    def _documents(self, rows: pa.RecordBatch, starts: np.ndarray) -> Mapping[str, pa.RecordBatch]:
        """The documents of files, (num_files,) rows, and the drops of all but the first file of each."""
        if not rows.num_rows:
            return {}
        contents, firsts = self.exchanges()[0].outputs[CONTENTS], pa.array(starts[:-1])
        keys, names = rows.column("key").take(firsts), rows.column("repository").take(firsts)
        files = Files(starts=starts, names=names, paths=rows.column("path"), texts=rows.column("text"))
        texts, segments = joined_files(files, self._tokens)
        columns = {
            "hash": pa.array(key_halves(keys)[0]),
            "key": keys,
            "id": compute.if_else(compute.equal(names, ""), rows.column("id").take(firsts), names),
            "text": texts,
            FILES: paths_as_json(files.paths, starts),
            SEGMENTS: segments,
        }
        if self.license is not None:
            columns[self.license] = joined_licenses(rows.column("license"), starts)
        others = np.ones(rows.num_rows, np.bool_)
        others[starts[:-1]] = False
        survivors = keys.take(pa.array(np.repeat(np.arange(len(keys)), np.diff(starts))[others]))
        drops = drop_rows(rows.column("key").filter(pa.array(others)), survivors, np.full(int(others.sum()), np.nan))
        made = pa.RecordBatch.from_arrays([columns[name] for name in contents.names], schema=contents)
        return {CONTENTS: made, "drops": drops}

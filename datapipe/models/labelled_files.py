"""Reads files of labelled documents, of any format that datapipe reads: a batch of texts with the values of their fields.

    files or globs  ->  LabelledFiles.read()  ->  batches: texts, values of the label, values of other fields

Documents without a label and records that are no documents are left out and counted. A damaged file
is an error. Memory: a batch.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.config import catalogue
from datapipe.dataclass import dataclass, field
from datapipe.engine.fields import lacking_fields
from datapipe.errors import UserError
from datapipe.inputs.discovery import discover
from datapipe.inputs.planned_input import PlannedInput
from datapipe.stage.reader import FieldNames, InputFile, ReadBatch, Reader


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledBatch:
    """Labelled documents of one file or output, (num_docs,) each: texts, values of the label
    without nulls, and values of other fields by name, which may be null."""

    url: str
    texts: pa.Array
    values: pa.Array
    others: Mapping[str, pa.Array] = field(default_factory=dict)

    def numbers(self) -> np.ndarray:
        """The labels as finite float64. Raises UserError."""
        try:
            numbers = columns.numbers(pc.cast(self.values, pa.float64()))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(
                f"{self.url}: a label is no number ({error}). The model predicts a number, and needs such labels."
            ) from error
        if not np.isfinite(numbers).all():
            raise UserError(f"{self.url}: a label is not finite. The model predicts a number, and needs such labels.")
        return numbers


def as_text(values: pa.Array) -> pa.Array:
    """Values as text: true and false, whole numbers without a point."""
    if pa.types.is_floating(values.type):
        whole = pc.cast(values, pa.int64(), safe=False)
        is_whole = pc.all(pc.equal(pc.cast(whole, values.type), values)).as_py()
        values = whole if is_whole is not False else values
    if pa.types.is_nested(values.type):
        raise UserError(f"a label or group is a {values.type}. Expected text, a number, or true and false.")
    return pc.cast(values, pa.large_string())


@dataclass(kw_only=True, slots=True)
class LabelledFiles:
    """Files by paths, globs and URLs, their fields, and counts of what was left out."""

    patterns: Sequence[str]
    text_field: str = "text"
    label_field: str = "label"
    other_fields: tuple[str, ...] = ()
    num_unlabelled: int = field(default=0, init=False)
    num_rejected: int = field(default=0, init=False)

    def read(self) -> Iterator[LabelledBatch]:
        """The documents, file by file. Raises UserError where none is labelled."""
        num_labelled, valueless, files = 0, set(self.other_fields), self._files()
        for file, reader in files:
            for batch in self._read_file(file, reader):
                labelled = self._labelled(file, batch)
                num_labelled += len(labelled.texts)
                valueless -= {name for name in valueless if labelled.others[name].null_count < len(labelled.texts)}
                if len(labelled.texts):
                    yield labelled
        if num_labelled and not valueless:
            return
        lacks = lacking_fields(files, FieldNames(text=self.text_field, keep=(self.label_field, *self.other_fields)))
        if not num_labelled:
            num_docs = self.num_unlabelled + self.num_rejected
            lack = f"none of {num_docs:,} documents has a label in the field '{self.label_field}' and text in "
            lacks = [f"{lack}'{self.text_field}'. Name the fields: --label FIELD --text FIELD", *lacks]
        if lacks:
            raise UserError("\n".join(f"{', '.join(self.patterns)}: {lack}" for lack in lacks))

    def _files(self) -> list[tuple[InputFile, Reader]]:
        files: dict[str, tuple[InputFile, Reader]] = {}
        for pattern in self.patterns:
            for file, reader in discover([pattern], lambda path: catalogue.reader_for(path, "FILE"), "stat", "FILE"):
                if reader.gives != "text":
                    raise UserError(f"{file.url}: the file holds pages. Expected texts, such as the documents of a run.")
                files.setdefault(file.url, (file, reader))
        return list(files.values())

    def _read_file(self, file: InputFile, reader: Reader) -> Iterator[ReadBatch]:
        fields = FieldNames(text=self.text_field, keep=(self.label_field, *self.other_fields))
        for batch, damages in PlannedInput(file).read(reader, fields):
            for damage in damages:
                raise UserError(f"{damage.path}: damaged at {damage.position:,}: {damage.error}. Get the file again.")
            self.num_rejected += len(batch.rejected)
            yield batch

    def _labelled(self, file: InputFile, batch: ReadBatch) -> LabelledBatch:
        values = batch.extra[self.label_field]
        has_label = pc.is_valid(values)
        self.num_unlabelled += len(values) - (pc.sum(has_label).as_py() or 0)
        return LabelledBatch(
            url=file.url,
            texts=columns.as_large_string(batch.content.filter(has_label)),
            values=values.filter(has_label),
            others={name: batch.extra[name].filter(has_label) for name in self.other_fields},
        )

"""Sources of repositories: documents that are made of files.

    repository: {files: files, path: path, text: content}     a row has the files of a document
    repository: {group_by: repo_name, path: path}             a row is a file  ─▶  join.repository: {group_by: repo_name, …}

The stage that joins the files of several rows is the first one of the source, or stands where its stages name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from datapipe.config.fields import ByteSize, Record, Texts
from datapipe.config.problems import Problem
from datapipe.config.stage_use import StageUse, with_stage
from datapipe.reserved_columns import OWN_COLUMNS

if TYPE_CHECKING:
    from datapipe.config.sources.source import Source

STAGE = "join.repository"


class RepositorySpec(Record):
    """Makes the files of a repository one document, each with its path before it."""

    files: str | None = Field(
        default=None, min_length=1, description="Field with the files of a document, a list of objects; in place of `text`."
    )
    group_by: str | None = Field(
        default=None,
        min_length=1,
        description="Field with the name of the repository, for records that are files. All files with the same name "
        "are joined, wherever they are. A file without a name is a document.",
    )
    path: str = Field(
        default="path", min_length=1, description="With files, the member of a file with its path; with group_by, the field."
    )
    text: str = Field(default="content", min_length=1, description="With files, the member of a file with its text.")
    name: str | None = Field(
        default=None, min_length=1, description="With files, the field with the name of the repository. Default: none."
    )
    license: str | None = Field(
        default=None,
        min_length=1,
        description="With files, the member of a file with its licence. A document has the licences of all its files, "
        "in a column of this name that `license_field` may name.",
    )
    order: Literal["path", "random", "given"] = Field(
        default="path",
        description="Order of the files. path: by path, each folder as a whole. random: by keyed hash. given: as in the input.",
    )
    max_bytes: ByteSize = Field(
        default=4 << 20,  # as `stage.repositories.MOST_BYTES`
        ge=1,
        le=64 << 20,
        description="Maximum number of bytes in a document. The next file begins another document; a longer file is a "
        "document.",
    )
    separators: Texts | None = Field(
        default=None,
        description="Control tokens before the name of a repository and before each file. Default: the tokens of "
        "StarCoder, Qwen or Gemma, if the tokenizer has them, else lines with #PATH. []: lines with #PATH.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The input fields that documents keep for it."""
        of_rows = [name for name in (self.files, self.name) if name is not None]
        return (self.group_by, self.path) if self.group_by is not None else tuple(of_rows)

    def problems(self) -> Iterator[Problem]:
        expected = "expected files or group_by: a record has all files of a repository, or is one of them"
        if self.files is None and self.group_by is None:
            yield ("files",), f"found nothing, {expected}"
        if self.files is not None and self.group_by is not None:
            yield ("group_by",), f"found '{self.group_by}', {expected}"
        if self.separators and not (len(self.separators) == 2 and self.separators[1]):
            tokens = "expected two control tokens: before the name of a repository, which may be empty, and before each file"
            yield ("separators",), f"found {list(self.separators)}, {tokens}"
        for name in ("name", "text", "license") if self.files is None else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                yield (name,), "needs files: the field with the files of a document. Leave it out"


def repository_problems(source: Source) -> Iterator[Problem]:
    """Options of a source that do not go with its repositories."""
    spec = source.repository
    if spec is None:
        return
    if source.fim is not None and source.fim.at == "tokens":
        yield ("fim", "at"), "found tokens beside repository, expected characters: each file is cut by itself"
    if source.fim is not None and spec.separators is not None and not spec.separators:
        yield ("fim",), "needs control tokens between files, which it changes one by one. Leave separators: [] or fim out"
    if source.document_prefix is not None:
        yield ("repository",), "found beside document_prefix, expected one of them: its files begin with their paths"
    if source.messages:
        yield ("repository",), "cannot be combined with messages: a document is made of files, or of a conversation"
    if spec.files is not None and source.text != "text":
        yield ("text",), f"found '{source.text}' beside repository.files, expected repository.text: the member with the text"
    for name in (*spec.columns, *([] if spec.license is None else [spec.license])):
        if name in OWN_COLUMNS:
            yield ("repository",), f"'{name}' is a column that every document has. Expected another field of the files"
        if source.keep.get(name, name) != name:
            text = f"'{name}' is a column of the field '{source.keep[name]}', and repository needs the field '{name}'"
            yield ("keep",), f"{text}. Give the column another name"


def join_problems(stages: Mapping[str, tuple[StageUse, ...]]) -> Iterator[Problem]:
    """Sources whose list of stages joins their files more than once."""
    for name, uses in stages.items():
        if sum(use.name == STAGE for use in uses) > 1:
            yield ("sources", name), f"{STAGE} is in its list of stages twice, expected once: files are joined once"


def repository_stages(source: Source, stages: tuple[StageUse, ...], where: str) -> tuple[StageUse, ...]:
    """The stages of a source, with the one that joins the files of its repositories, or without it."""
    spec = source.repository
    if spec is None or spec.group_by is None:  # a list for all sources may name it
        return tuple(use for use in stages if use.name != STAGE or "group_by" in use.options)
    own: dict[str, Any] = spec.model_dump(include={"group_by", "path", "order", "max_bytes"})
    own |= {} if spec.separators is None else {"separators": list(spec.separators)}
    own |= {} if source.license_field is None else {"license": source.license_field}
    return with_stage(stages, STAGE, own, where)

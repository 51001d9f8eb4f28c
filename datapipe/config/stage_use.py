"""An entry of a list of stages: the stage, its name in the run, and its options.

    - dedup.exact                                              StageUse("dedup.exact", alias "dedup.exact", {})
    - filter.language: {keep: [en], as: english}               StageUse("filter.language", alias "english", {keep: [en]})
    - dedup.exact: {when: {language: [ja, zh]}}                StageUse("dedup.exact", when {language: [ja, zh]})
    - my_company.clean:DropBoilerplate: {min_lines: 3}         any installed class

The `format` of a source is written in the same way: `csv`, or `csv: {delimiter: ";"}`.

The catalogue checks the options when it builds the stage (`catalogue.py`). This module knows no stage.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from datapipe.config.fields import Record, as_tuple
from datapipe.config.problems import ProblemsError, described
from datapipe.stage.when import When

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
"""Valid names of sources and of `as:`. They become folder names and parts of reasons."""

_STAGE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?", re.ASCII)
_EXPECTED_FORMAT = "expected auto, the name of a format, or one name with its options indented below it"
_EXPECTED = "expected the name of a stage, or one name with its options indented below it"


class StageUse(Record):
    """A stage as a mixture uses it. Equality compares name, alias and options, and ignores the location."""

    name: str = Field(description="Path of the module in stages/, or package.module:NAME for a class or function of your own.")
    alias: str = Field(description="Name of this use in reports and reasons: its `as:` name, or the stage's name.")
    options: dict[str, Any] = Field(default_factory=dict, description="The stage's options as written, without these two.")
    when: dict[str, Any] = Field(default_factory=dict, description="The documents that the stage sees, by column; empty: all.")
    where: str = Field(default="", exclude=True, repr=False, description="File, line and path, for error messages.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StageUse):
            return NotImplemented
        return (self.name, self.alias, self.options, self.when) == (other.name, other.alias, other.options, other.when)

    def __hash__(self) -> int:
        return hash((self.name, self.alias))

    def to_data(self) -> str | dict[str, Any]:
        written = self.written()
        return {self.name: written} if written else self.name

    def written(self) -> dict[str, Any]:
        """What a mixture writes below the name of the stage."""
        conditions = {"when": self.when} if self.when else {}
        return {**self.options, **conditions, **({"as": self.alias} if self.alias != self.name else {})}


def parse_stage(entry: Any) -> StageUse:
    """The use that an entry of a mixture describes. Raises ValueError."""
    if isinstance(entry, StageUse):
        return entry
    if isinstance(entry, dict) and len(entry) > 1:
        names = ", ".join(entry)
        raise ProblemsError([((), f"found a mapping of {len(entry)} keys ({names}), {_EXPECTED}, one step further in")])
    name, options = _name_and_options(entry, "stage", _EXPECTED)
    if not _STAGE_NAME.fullmatch(name):
        raise ProblemsError([((), f"found {described(name)}, expected a stage such as filter.length or package.module:NAME")])
    alias = options.pop("as", name)
    if not isinstance(alias, str) or not (alias == name or re.fullmatch(NAME_PATTERN, alias)):
        expected = "expected a name of letters, digits, '_', '.' and '-' that begins with a letter or digit"
        raise ProblemsError([((name, "as"), f"found {described(alias)}, {expected}")])
    when = options.pop("when", None)
    if when is not None:
        try:
            When.of(when)
        except ValueError as error:
            raise ProblemsError([((name, "when"), str(error))]) from error
    return StageUse(name=name, alias=alias, options=options, when=when or {})


def parse_format(entry: Any) -> StageUse:
    """The reader that a source names, with its options. Raises ValueError."""
    if isinstance(entry, StageUse):
        return entry
    name, options = _name_and_options(entry, "format", _EXPECTED_FORMAT)
    return StageUse(name=name, alias=name, options=options)


def _name_and_options(entry: Any, noun: str, expected: str) -> tuple[str, dict[str, Any]]:
    [(name, options)] = entry.items() if isinstance(entry, dict) and len(entry) == 1 else [(entry, None)]
    if not isinstance(name, str) or not name:
        raise ProblemsError([((), f"found {described(entry)}, {expected}")])
    if options is not None and not isinstance(options, dict):
        raise ProblemsError([((name,), f"found {described(options)}, expected a mapping of the {noun}'s options")])
    return name, dict(options or {})


def _distinct(uses: tuple[StageUse, ...]) -> tuple[StageUse, ...]:
    """Refuses two uses of one name, because reasons and tables could not distinguish them."""
    first: dict[str, int] = {}
    problems = []
    for index, use in enumerate(uses):
        if use.alias in first:
            same = f"'{use.alias}' is also the name of item {first[use.alias]} of this list"
            problems.append(((index,), f"{same}. Give one of them another name with `as: NAME`"))
        first.setdefault(use.alias, index)
    if problems:
        raise ProblemsError(problems)
    return uses


_ENTRY = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1, "maxProperties": 1}]})
StageEntry = Annotated[StageUse, BeforeValidator(parse_stage), PlainSerializer(StageUse.to_data), _ENTRY]
FormatEntry = Annotated[StageUse, BeforeValidator(parse_format), PlainSerializer(StageUse.to_data), _ENTRY]


def with_stage(stages: tuple[StageUse, ...], name: str, options: dict[str, Any], where: str = "") -> tuple[StageUse, ...]:
    """The stages with one of this name: first, or where they name it; its `options` may be left out there."""
    is_listed = any(use.name == name for use in stages)
    listed = stages if is_listed else (StageUse(name=name, alias=name, where=where), *stages)
    return tuple(use.model_copy(update={"options": options | use.options}) if use.name == name else use for use in listed)


StageList = Annotated[tuple[StageEntry, ...], BeforeValidator(as_tuple), AfterValidator(_distinct)]

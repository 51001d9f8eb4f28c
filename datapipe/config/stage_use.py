"""One entry of a list of stages: which stage, under which name, with which options.

    - dedup.exact                                              StageUse("dedup.exact", alias "dedup.exact", {})
    - filter.language: {keep: [en], as: english}               StageUse("filter.language", alias "english", {keep: [en]})
    - my_company.clean:DropBoilerplate: {min_lines: 3}         any installed class

The options are checked where the stage is looked up (`catalogue.py`): nothing here knows a stage.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from datapipe.config.fields import Record
from datapipe.config.problems import ProblemsError, described

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
"""What sources and `as:` names may be: they become folder names and parts of reasons."""

_STAGE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?", re.ASCII)
_EXPECTED = "expected the name of a stage, or one name with its options indented below it"


class StageUse(Record):
    """A stage as a mixture uses it. Two uses are equal when name, alias and options are, wherever they stand."""

    name: str = Field(description="The path of the module in stages/, or package.module:Class for a class of your own.")
    alias: str = Field(description="What reports and reasons call this use: its `as:` name, or the stage's own.")
    options: dict[str, Any] = Field(default_factory=dict, description="The stage's options as written, `as` taken out.")
    where: str = Field(default="", exclude=True, repr=False, description="File, line and path, for error messages.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StageUse):
            return NotImplemented
        return (self.name, self.alias, self.options) == (other.name, other.alias, other.options)

    def __hash__(self) -> int:
        return hash((self.name, self.alias))

    def to_data(self) -> str | dict[str, Any]:
        """This use as it is written in a mixture."""
        renamed = {"as": self.alias} if self.alias != self.name else {}
        return {self.name: {**self.options, **renamed}} if self.options or renamed else self.name


def parse_stage(entry: Any) -> StageUse:
    """A use from what the mixture says. Raises ValueError."""
    if isinstance(entry, StageUse):
        return entry
    if isinstance(entry, dict) and len(entry) > 1:
        names = ", ".join(entry)
        raise ProblemsError([((), f"found a mapping of {len(entry)} keys ({names}), {_EXPECTED}, one step further in")])
    if isinstance(entry, str):
        name, options = entry, {}
    elif isinstance(entry, dict) and entry:
        [(name, options)] = entry.items()
    else:
        raise ValueError(_EXPECTED)
    if not _STAGE_NAME.fullmatch(name):
        raise ProblemsError([((), f"found {described(name)}, expected a stage such as filter.length or package.module:Class")])
    if options is not None and not isinstance(options, dict):
        raise ProblemsError([((name,), f"found {described(options)}, expected a mapping of the stage's options")])
    return _named(name, dict(options or {}))


def _named(name: str, options: dict[str, Any]) -> StageUse:
    alias = options.pop("as", name)
    if not isinstance(alias, str) or not (alias == name or re.fullmatch(NAME_PATTERN, alias)):
        expected = "expected a name of letters, digits, '_', '.' and '-' that begins with a letter or digit"
        raise ProblemsError([((name, "as"), f"found {described(alias)}, {expected}")])
    return StageUse(name=name, alias=alias, options=options)


def _listed(entries: Any) -> Any:
    return tuple(entries) if isinstance(entries, list) else entries


def _distinct(uses: tuple[StageUse, ...]) -> tuple[StageUse, ...]:
    """Refuses two uses under one name: reasons and tables could not tell them apart."""
    first: dict[str, int] = {}
    problems = []
    for index, use in enumerate(uses):
        if use.alias in first:
            same = f"'{use.alias}' is also the name of item {first[use.alias]} of this list"
            problems.append(((index,), f"{same}. Give one of them a name of its own with `as: NAME`"))
        first.setdefault(use.alias, index)
    if problems:
        raise ProblemsError(problems)
    return uses


_ENTRY_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1, "maxProperties": 1}]}
StageEntry = Annotated[StageUse, BeforeValidator(parse_stage), PlainSerializer(StageUse.to_data), WithJsonSchema(_ENTRY_SCHEMA)]
StageList = Annotated[tuple[StageEntry, ...], BeforeValidator(_listed), AfterValidator(_distinct)]

"""The problems of a mixture or of a stage's options, one line each: where, what was found, what was expected.

    mixture.yaml:14: sources.web.wieght: unknown key. Did you mean 'weight'? Expected one of:
    format, id, … mixture.yaml:15: sources.web.max_epochs: found 'four', expected a number

pydantic finds the problems. This module adds the location and rewrites its messages.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from datapipe.config.yaml import KeyPath
from datapipe.errors import UserError, suggest

MAX_LINES = 10

_WHOLE, _NUMBER, _LIST, _MAPPING = "a whole number", "a number", "a list", "a mapping"
_EXPECTED = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "nothing",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _MAPPING,
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a length of at least {min_length}",
    "too_long": "a length of at most {max_length}",
    "missing_argument": "{argument}",
}
"""What was expected, by pydantic's type of error; the context fills the braces. Other types keep pydantic's message."""


Problem = tuple[KeyPath, str]  # the path of a key below the value at hand, and what is wrong there


class ProblemsError(ValueError):
    """Several problems inside one value, each with its path below it. Validators raise it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = tuple(problems)


def problems_error(error: ValidationError, model: type[BaseModel], data: Any, where: Callable[[KeyPath], str]) -> UserError:
    """All problems of one validation of `data` by `model` as a UserError, at most `MAX_LINES` lines
    and a count of the rest. `where`: the location and name of a key path, see `Origins.where`."""
    problems: dict[KeyPath, list[str]] = {}
    # unknown keys come first: a mistyped key explains a missing one
    for details in sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden"):
        for path, text in _problems_of(details, model, data):
            problems.setdefault(path, []).append(text)
    lines = [": ".join(part for part in (where(path), _joined(texts)) if part) for path, texts in problems.items()]
    more = [f"… and {len(lines) - MAX_LINES} more."] if len(lines) > MAX_LINES else []
    return UserError("\n".join(lines[:MAX_LINES] + more))


def _joined(texts: list[str]) -> str:
    """The problems of one value as one sentence. Each member of a union contributes what it expected."""
    first, *rest = dict.fromkeys(texts)
    before, comma, _ = first.partition(", expected ")
    prefix = before + comma
    alternatives = [text.removeprefix(prefix) for text in rest if comma and text.startswith(prefix)]
    others = [text for text in rest if not (comma and text.startswith(prefix))]
    sentence = "; ".join([" or ".join([first, *alternatives]), *others])
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."


def _problems_of(details: ErrorDetails, model: type[BaseModel], data: Any) -> list[tuple[KeyPath, str]]:
    kind, context = details["type"], details.get("ctx", {})
    path, value = _reached(data, details["loc"])
    if kind == "missing":
        name = str(details["loc"][-1])
        return [((*path, name), f"missing. Expected: {_description(model, path, name)}")]
    if kind == "extra_forbidden":
        parent = _reached(data, details["loc"][:-1])[1]
        known = known_keys(model, path[:-1], parent.keys() - {path[-1]} if isinstance(parent, dict) else ())
        return [(path, f"unknown key.{suggest(str(path[-1]), known)} Expected one of: {', '.join(known)}")]
    if kind == "too_short" and len(value) >= context["min_length"]:
        return []  # pydantic counts the right items of a tuple alone; each wrong one has its line
    cause = context.get("error")
    if isinstance(cause, ProblemsError):
        return [((*path, *below), text) for below, text in cause.problems]
    if kind in ("model_type", "model_attributes_type"):
        return [(path, f"found {described(value)}, expected a mapping with keys of: {', '.join(known_keys(model, path))}")]
    if kind in ("literal_error", "enum"):
        return [(path, f"found {described(value)}, expected {_choices(value, str(context['expected']))}")]
    if isinstance(cause, ValueError):
        text = str(cause).rstrip(".")
        return [(path, f"found {described(value)}, {text}" if text.startswith("expected ") else text)]
    if kind in _EXPECTED:
        quoted = ": put it in quotes" if kind == "string_type" and isinstance(value, bool | int | float) else ""
        return [(path, f"found {described(value)}, expected {_EXPECTED[kind].format(**context)}{quoted}")]
    return [(path, f"found {described(value)}: {details['msg']}")]


def _choices(value: Any, expected: str) -> str:
    """pydantic's "'arrow' or 'parquet'" as a list, with a suggestion of the nearest."""
    choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
    near = suggest(value, choices).strip() if isinstance(value, str) else ""
    listed = f"one of: {', '.join(choices)}" if len(choices) > 1 else choices[0]
    return f"{listed}. {near}".removesuffix("?") + "?" if near else listed


def described(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}…'"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
    return str(value)


def known_keys(model: type[BaseModel], path: KeyPath, given: Collection[str] = ()) -> list[str]:
    """The keys that are valid at a path below `model`, in the order of the documentation; empty if
    any key is valid. Of several models, that one counts which knows most of the keys `given`."""
    reached = _model_at(model, path, given)
    return [] if reached is None else [field.alias or name for name, field in reached.model_fields.items()]


def _description(model: type[BaseModel], path: KeyPath, name: str) -> str:
    reached = _model_at(model, path)
    field = None if reached is None else _field(reached, name)
    sentence = ((field and field.description) or "a value").partition(". ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def _reached(data: Any, location: Sequence[str | int]) -> tuple[KeyPath, Any]:
    """The part of pydantic's location that exists in the data, and the value there. Locations also name members of unions."""
    if location[-1:] == ("[key]",):
        return tuple(location[:-1]), location[-2]
    for depth, part in enumerate(location):
        children: Any = data if isinstance(data, dict) else dict(enumerate(data)) if isinstance(data, list) else {}
        if part not in children:
            return tuple(location[:depth]), data
        data = children[part]
    return tuple(location), data


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if (field.alias or name) == key), None)


def _model_at(annotation: Any, path: KeyPath, given: Collection[str] = ()) -> type[BaseModel] | None:
    """The model at `path` below an annotation, through Optional, dict, tuple and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not path:
            return annotation
        field = _field(annotation, str(path[0]))
        return None if field is None else _model_at(field.annotation, path[1:], given)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (dict, list, tuple) and path:
        return _model_at(arguments[-1 if origin is dict else 0], path[1:], given)
    members = [_model_at(member, path, given) for member in arguments] if origin not in (dict, list, tuple) else []
    models = [reached for reached in members if reached is not None]
    return max(models, key=lambda model: sum(_field(model, key) is not None for key in given), default=None)

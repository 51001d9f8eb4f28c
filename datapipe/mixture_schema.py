"""The JSON Schema of the mixture file, with the options of every stage and format that is installed."""

from __future__ import annotations

from typing import Any

from datapipe.catalogue import readers, stage_class, stage_names
from datapipe.config import Mixture
from datapipe.stage.base import Stage

_USER_STAGE = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"


def mixture_schema() -> dict[str, Any]:
    """The JSON Schema of the mixture file with the options of every stage. Editors use it to complete and check a mixture."""
    schema = Mixture.model_json_schema()
    definitions = schema["$defs"]
    choices: list[dict[str, Any]] = [
        {"enum": stage_names(), "description": "A stage with its default options."},
        {"type": "string", "pattern": _USER_STAGE, "description": "A class or function of your own: package.module:NAME."},
        {
            "type": "object",
            "patternProperties": {_USER_STAGE: {"type": ["object", "null"]}},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
            "description": "A class or function of your own with its options.",
        },
    ]
    for name in stage_names():
        options, inner = _options_schema(name, stage_class(name))
        renamed = {"type": "string", "description": "Name of this use in reports and reasons. Default: the stage's name."}
        options["properties"]["as"] = renamed
        definitions.update({name: options, **inner})
        choices.append(_with_options(name, name))
    definitions["StageEntry"] = {"anyOf": choices}
    stage_list = {"type": "array", "items": {"$ref": "#/$defs/StageEntry"}}
    kinds = {"then": {"$ref": "#/$defs/SnapshotSource"}, "else": {"$ref": "#/$defs/Source"}}
    schema["properties"]["sources"]["additionalProperties"] = {"if": {"type": "object", "required": ["snapshot"]}, **kinds}
    source = definitions["Source"]["properties"]
    schema["properties"]["stages"] |= stage_list
    source["stages"]["anyOf"] = [stage_list, {"type": "null"}]
    formats: list[dict[str, Any]] = [
        {"enum": ["auto", *readers()], "description": "A format with its default options."},
        {"type": "string", "pattern": r"\$\{.+\}"},
    ]
    for name, reader in readers().items():
        options, inner = _options_schema(f"read.{name}", reader)
        definitions.update({f"read.{name}": options, **inner})
        formats.append(_with_options(name, f"read.{name}"))
    source["format"] |= {"anyOf": formats}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _with_options(name: str, definition: str) -> dict[str, Any]:
    """The schema of a name with its options below it."""
    value = {"anyOf": [{"$ref": f"#/$defs/{definition}"}, {"type": "null"}]}
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


def _options_schema(name: str, stage: type[Stage]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a stage's options, and the definitions that it refers to, prefixed with the stage's name."""
    schema = stage.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    inner = {f"{name}.{model}": definition for model, definition in schema.pop("$defs", {}).items()}
    schema.setdefault("properties", {})
    return schema, inner

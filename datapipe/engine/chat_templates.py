"""The chat templates of a run: what a mixture names becomes the text of a template, with the tokens of the tokenizer.

    template: tokenizer ─▶ chat_template.jinja, or tokenizer_config.json, beside the tokenizer ─┐
    template: own.jinja ─▶ the content of the file                                             ├─▶ options of extract.chat
    the tokenizer       ─▶ its control tokens; its special tokens as variables of the template ┘

The mixture that an output keeps has these options, so a conversation can be shown later as the run has written it.
"""

from typing import Any

from datapipe.config.mixture import Mixture
from datapipe.config.sources.chat import STAGE, chat_stages
from datapipe.config.sources.source import Source
from datapipe.config.stage_use import StageUse
from datapipe.engine.tokenizer_file import ChatTokens, chat_tokens
from datapipe.errors import UserError
from datapipe.snapshots.snapshot_sources import with_snapshot_sources
from datapipe.storage.outages import input_error
from datapipe.storage.root import open_input, split_query

OF_TOKENIZER = "tokenizer"
_LARGEST_BYTES = 1 << 20
_NAMES = "chatml, llama3, harmony or the path of a .jinja file"


def with_templates(mixture: Mixture) -> Mixture:
    """The mixture whose sources of conversations have the texts of their templates. Raises UserError for a template that
    cannot be read."""
    chats = {name: source for name, source in mixture.sources.items() if source.messages}
    if not chats:
        return mixture
    takes_rows = "tokenizer" not in mixture.model_fields_set  # of snapshots, whose tokenizer it then has
    tokens = chat_tokens(with_snapshot_sources(mixture)[0] if takes_rows else mixture)
    resolved = {name: _resolved(mixture, name, source, tokens) for name, source in chats.items()}
    return mixture.model_copy(update={"all_sources": {**mixture.all_sources, **resolved}})


def _resolved(mixture: Mixture, name: str, source: Source, tokens: ChatTokens) -> Source:
    where = mixture.where("sources", name, "template")
    listed = mixture.stages if source.stages is None else source.stages
    own = [] if any(use.name == STAGE for use in listed) else [StageUse(name=STAGE, alias=STAGE, where=where)]
    options = next(use.options for use in chat_stages(source, listed, where) if use.name == STAGE)
    found = _options(where, options.get("template", OF_TOKENIZER), tokens)
    stages = [
        use.model_copy(update={"options": {**found, **use.options, "template": found["template"]}})
        if use.name == STAGE
        else use
        for use in (*own, *listed)
    ]
    return source.model_copy(update={"stages": tuple(stages)})


def _options(where: str, template: Any, tokens: ChatTokens) -> dict[str, Any]:
    """The options of a template that a mixture names."""
    text = template
    if template == OF_TOKENIZER:
        text = tokens.template
        if text is None:
            raise UserError(f"{where}: missing, and the tokenizer has no chat template. Expected {_NAMES}: `template: chatml`.")
    elif isinstance(template, str) and _is_file(template):
        text = _content(where, template)
    found: dict[str, Any] = {"template": text, "lacking": "text" if template == OF_TOKENIZER else "refuse"}
    if tokens.special_tokens:
        found["special_tokens"] = dict(tokens.special_tokens)
    if tokens.control_tokens:
        found["control_tokens"] = list(tokens.control_tokens)
    return found


def _is_file(template: str) -> bool:
    return "{" not in template and split_query(template)[0].endswith((".jinja", ".jinja2", ".j2"))


def _content(where: str, path: str) -> str:
    try:
        with open_input(path) as stream:
            if stream.size() > _LARGEST_BYTES:
                raise UserError(
                    f"{where}: {path} has {stream.size():,} bytes, expected a template of at most {_LARGEST_BYTES:,}."
                )
            return stream.read().decode()
    except OSError as error:
        raise input_error(error, where, "cannot read the template", path) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: {path} is no UTF-8 text at byte {error.start}. Expected a Jinja template.") from None

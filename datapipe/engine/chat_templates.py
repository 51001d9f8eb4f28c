"""The chat templates of a run: what a mixture names becomes the text of a template, with the tokens of the tokenizer.

    template: tokenizer ─▶ chat_template.jinja, or tokenizer_config.json, beside the tokenizer ─┐
    template: own.jinja ─▶ the content of the file                                             ├─▶ options of extract.chat
    the tokenizer       ─▶ its control tokens; its special tokens as variables of the template ┘

The mixture that an output keeps has these options, so a conversation can be shown later as the run has written it.
"""

import os

from datapipe.config.mixture import Mixture
from datapipe.config.sources.chat import ChatTemplateSpec
from datapipe.engine.tokenizer_file import ChatTokens, chat_tokens
from datapipe.errors import UserError
from datapipe.snapshots.snapshot_sources import with_snapshot_sources
from datapipe.storage.outages import input_error
from datapipe.storage.root import is_remote, open_input, split_query

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
    where = {name: mixture.where("sources", name, "template") for name in chats}
    resolved = {name: _resolved(where[name], source.template, tokens) for name, source in chats.items()}
    return mixture.with_source_values("template", resolved)


def _resolved(where: str, given: str | ChatTemplateSpec | None, tokens: ChatTokens) -> ChatTemplateSpec:
    """The text of a template that a source names, with tokens of the tokenizer where it gives none."""
    spec = given if isinstance(given, ChatTemplateSpec) else ChatTemplateSpec(text=given or OF_TOKENIZER)
    text, lacking = spec.text, spec.lacking
    if text == OF_TOKENIZER:
        if tokens.template is None:
            raise UserError(f"{where}: missing, and the tokenizer has no chat template. Expected {_NAMES}: `template: chatml`.")
        text, lacking = tokens.template, "text"
    elif _is_file(text):
        text = _content(where, text)
    return ChatTemplateSpec(
        text=text,
        special_tokens={**tokens.special_tokens, **spec.special_tokens},
        control_tokens=spec.control_tokens or tokens.control_tokens,
        lacking=lacking,
    )


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
        tried = path if is_remote(path) or os.path.isabs(path) else f"{path} ({os.path.abspath(path)})"
        raise input_error(error, where, "cannot read the template", tried) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: {path} is no UTF-8 text at byte {error.start}. Expected a Jinja template.") from None

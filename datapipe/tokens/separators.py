"""The control tokens between the files of repositories, by the names that published tokenizers have for them."""

from collections.abc import Collection, Mapping

from datapipe.errors import UserError
from datapipe.tokens.vocabulary import is_control, no_control_token

KNOWN_SEPARATORS = (
    ("<repo_name>", "<file_sep>"),  # StarCoder2
    ("<|repo_name|>", "<|file_sep|>"),  # Qwen2.5-Coder and later Qwen
    ("<reponame>", "<filename>"),  # StarCoder, Granite Code
    ("", "<|file_separator|>"),  # CodeGemma
)
"""The tokens before the name of a repository, empty for none, and before each file."""


def separators_in(added: Mapping[str, bool], named: Collection[str] | None) -> tuple[str, ...]:
    """The separators of a tokenizer with these added tokens, each with whether it is special: `named`, the first known ones
    that it has, or none. Raises UserError for a named one that is no control token."""
    control = {token for token, is_special in added.items() if is_control(token, is_special=is_special)}
    if named is None:
        return next((pair for pair in KNOWN_SEPARATORS if {*pair} - {""} <= control), ())
    lacking = next((token for token in named if token and token not in control), None)
    if lacking is not None:
        raise UserError(f"separators: {no_control_token(lacking, added, control)}")
    return tuple(named)

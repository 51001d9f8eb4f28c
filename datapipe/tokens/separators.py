"""The control tokens between the files of repositories, by the names that published tokenizers have for them."""

from collections.abc import Collection

from datapipe.errors import UserError, suggest

KNOWN_SEPARATORS = (
    ("<repo_name>", "<file_sep>"),  # StarCoder2
    ("<|repo_name|>", "<|file_sep|>"),  # Qwen2.5-Coder and later Qwen
    ("<reponame>", "<filename>"),  # StarCoder, Granite Code
    ("", "<|file_separator|>"),  # CodeGemma
)
"""The tokens before the name of a repository, empty for none, and before each file."""


def separators_in(tokens: Collection[str], named: Collection[str] | None) -> tuple[str, ...]:
    """The separators of a tokenizer with these added tokens: `named`, the first known ones that it has, or none. Raises
    UserError for a named one that it lacks."""
    if named is None:
        return next((pair for pair in KNOWN_SEPARATORS if {*pair} - {""} <= {*tokens}), ())
    lacking = next((token for token in named if token and token not in tokens), None)
    if lacking is not None:
        raise UserError(
            f"separators: found {lacking!r}, and the tokenizer has no such control token.{suggest(lacking, tokens)} It has "
            f"{', '.join(sorted(tokens)[:20]) or 'none'}"
        )
    return tuple(named)

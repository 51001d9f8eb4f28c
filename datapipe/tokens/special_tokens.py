"""The control tokens of a tokenizer: which of them text could spell, how it is kept from them, and what is added to a text.

    tokenizer.json ── unspellable ──▶ the settings that encode: every id as before, control tokens under names that no text has
                   └─ AddedAround ──▶ what the post-processor would put before and behind each text

`tokenizers` keeps text from tokens that it finds before the model runs (`encode_special_tokens`). The model itself may know
them too: in a Unigram, WordPiece or WordLevel vocabulary `</s>` is a piece like any other, a BPE may have merges that make
it, and with `ignore_merges` a word of the vocabulary needs no merges. There the encoder appends 128 random bits to the name
of the token. The bits reach no file: ids, not names, leave the encoder.
"""

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from datapipe.tokens.vocabulary import model_type, pieces_of

_IN_BRACKETS = re.compile(r"<.+>|\[.+\]|\{.+\}|｜.+｜", re.DOTALL)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_BEFORE_BYTE_NAMES = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
"""Cuts text that spells a byte token, `<0x0A>`, behind its first character. No other text is cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedAround:
    """The tokens that the post-processor of a tokenizer puts before and behind a text."""

    before: tuple[str, ...]
    behind: tuple[str, ...]


def added_around(tokenizer: Tokenizer) -> AddedAround:
    """What the post-processor adds; found by encoding a text of one letter."""
    encoding = tokenizer.encode("a")
    added = encoding.special_tokens_mask
    if all(added):  # the letter has no token
        return AddedAround(before=tuple(encoding.tokens), behind=())
    first, last = added.index(0), len(added) - added[::-1].index(0)
    return AddedAround(before=tuple(encoding.tokens[:first]), behind=tuple(encoding.tokens[last:]))


def is_in_brackets(token: str) -> bool:
    """Whether a token looks like a control token, and not like a word of a text."""
    return _IN_BRACKETS.fullmatch(token) is not None


def unspellable(settings: dict[str, Any], tokenizer: Tokenizer, named: Collection[str]) -> dict[str, Any]:
    """The settings of a loaded file, with which no text is encoded to a control token; the same object where text spells
    none. `named`: control tokens that the file may not mark as special."""
    added = {token["content"]: bool(token.get("special")) for token in settings.get("added_tokens") or ()}
    control = {content for content, is_special in added.items() if is_special} | {*named}
    hidden = _spelled(settings, tokenizer, control)
    hidden |= {token for token in named if added.get(token) is False}  # `tokenizers` would look for it in text
    changed = _renamed(settings, {token: token + secrets.token_hex(16) for token in hidden}) if hidden else settings
    byte_tokens = filter(_BYTE_TOKEN.fullmatch, pieces_of(settings["model"])) if settings["model"].get("byte_fallback") else ()
    if not _spelled(settings, tokenizer, {*byte_tokens}):
        return changed
    steps = [step for step in (settings.get("pre_tokenizer"), _BEFORE_BYTE_NAMES) if step is not None]
    return {**changed, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def _spelled(settings: Mapping[str, Any], tokenizer: Tokenizer, tokens: Collection[str]) -> set[str]:
    """Those of some tokens that the model may make of text."""
    model = settings["model"]
    pieces = frozenset(pieces_of(model))
    known = {token for token in tokens if token in pieces}
    if not known or model_type(model) != "BPE":
        return known
    merges = {merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]}
    prefix, steps = model.get("continuing_subword_prefix") or "", tokenizer.pre_tokenizer

    def is_made(token: str) -> bool:
        if model.get("ignore_merges") and (steps is None or len(steps.pre_tokenize_str(token)) < 2):
            return True
        return any(f"{token[:cut]} {prefix}{token[cut:]}" in merges for cut in range(1, len(token)))

    return set(filter(is_made, known))


def _renamed(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The settings with other names for some tokens, without the merges that make them, and without a post-processor."""
    model, vocabulary = dict(settings["model"]), settings["model"]["vocab"]
    if isinstance(vocabulary, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    else:
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        start = len(model.get("continuing_subword_prefix") or "")
        merges = (merge for merge in model["merges"] if not (isinstance(merge, str) and merge.startswith("#version")))
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint((*pair, pair[0] + pair[1][start:]))]
    tokens = settings.get("added_tokens") or ()
    renamed = {content: {"content": name, "special": True} for content, name in names.items()}
    added = [token | renamed.get(token["content"], {}) for token in tokens]
    return {**settings, "model": model, "added_tokens": added, "post_processor": None}

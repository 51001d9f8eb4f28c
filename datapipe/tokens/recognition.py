"""Recognises the tokenizer.json files that the compiled kernels encode exactly as `tokenizers` does.

    pre_tokenizer ── expressions in order ── `published_patterns` ──▶ family, flags   ┐
    normalizer, added_tokens, model options ── known values only ───▶ the record      ├─▶ Recognised, or a reason
                                                                                      ┘
This module refuses anything unknown with a reason, and the encoder falls back to `tokenizers`: an unknown expression, an
unknown key, an option that would change a token. It ignores settings that cannot change a token (`trim_offsets`, the
post-processor, the decoder), and truncation, padding and dropout, which the encoder switches off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

from datapipe.tokens.published_patterns import DIGITS, GPT2, PARTIAL, PATTERNS, Family, Flags, Pattern

_NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_TOKEN_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")
_NEVER_IN_UTF8 = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
"""Characters of the bytes that never occur in UTF-8. GPT-NeoX has no tokens for them."""

_MODEL_KEYS = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"}
_MODEL_KEYS |= {"byte_fallback", "ignore_merges", "vocab", "merges"}
_STEP_KEYS = {
    "ByteLevel": {"type", "add_prefix_space", "trim_offsets", "use_regex"},
    "Digits": {"type", "individual_digits"},
    "Split": {"type", "pattern", "behavior", "invert"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedToken:
    """An entry of `added_tokens`: a token that is found in the text before it is split."""

    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Recognised:
    """The settings of a tokenizer that the kernels can encode with.

    Attributes:
        family, flags: the split into pre-tokens.
        normalizer: the normal form of the text, or None.
        added: the added tokens, in the order of the file.
        ignore_merges: whether a pre-token that is in the vocabulary becomes that token without merges.
    """

    family: Family
    flags: Flags
    normalizer: str | None
    added: tuple[AddedToken, ...]
    ignore_merges: bool

    def cut(self, offsets: np.ndarray, data: np.ndarray, ends: np.ndarray) -> int:
        """See `Pattern.cut`."""
        return Pattern(family=self.family, flags=self.flags).cut(offsets, data, ends)


class _UnknownError(Exception):
    """The settings hold something unknown; the message is the reason."""


def recognise(settings: Mapping[str, Any]) -> tuple[Recognised, None] | tuple[None, str]:
    """The settings of a parsed tokenizer.json, or None and the reason why it is not recognised.

    Args:
        settings: a file that `tokenizers` has loaded without an error.
    """
    try:
        pattern = _pattern(settings.get("pre_tokenizer"))
        recognised = Recognised(
            family=pattern.family,
            flags=pattern.flags,
            normalizer=_normalizer(settings.get("normalizer")),
            added=tuple(_added_token(token) for token in settings.get("added_tokens") or ()),
            ignore_merges=_ignores_merges(settings["model"]),
        )
    except _UnknownError as unknown:
        return None, str(unknown)
    return recognised, None


def _flat(setting: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """The steps of a sequence and of nested sequences, in order."""
    if setting is None:
        return []
    if setting["type"] != "Sequence":
        return [setting]
    return [step for member in setting[members] for step in _flat(member, members)]


def _pattern(setting: Mapping[str, Any] | None) -> Pattern:
    steps = _flat(setting, "pretokenizers")
    for step in steps:
        if step["type"] not in _STEP_KEYS:
            raise _UnknownError(f"pre_tokenizer: {step['type']}; expected {', '.join(_STEP_KEYS)}")
        _only_known(f"pre-tokenizer {step['type']}", step, _STEP_KEYS[step["type"]])
    if [step["type"] == "ByteLevel" for step in steps] != [False] * (len(steps) - 1) + [True]:
        raise _UnknownError("pre_tokenizer: expected ByteLevel as its last step and nowhere else")
    if steps[-1]["add_prefix_space"]:
        raise _UnknownError("pre_tokenizer: ByteLevel with add_prefix_space")
    expressions = [_expression(step) for step in steps[:-1]]
    if steps[-1].get("use_regex", True):
        expressions.append(GPT2)
    known = PATTERNS.get(tuple(expressions))
    if known is None:
        raise _UnknownError(f"pre_tokenizer: no known tokenizer splits by {expressions}")
    return known


def _expression(step: Mapping[str, Any]) -> str:
    """The text of an expression with escaped line ends, or DIGITS."""
    if step["type"] == "Digits":
        if not step.get("individual_digits"):
            raise _UnknownError("pre_tokenizer: Digits without individual_digits")
        return DIGITS
    if "Regex" not in step["pattern"]:
        raise _UnknownError("pre_tokenizer: Split by a string")
    expression = step["pattern"]["Regex"].replace("\r", r"\r").replace("\n", r"\n")
    how = step["behavior"], step.get("invert", False)
    if how != ("Isolated", False) and (how != ("Removed", True) or expression in PARTIAL):
        raise _UnknownError(f"pre_tokenizer: Split with behavior {how[0]} and invert {how[1]}")
    return expression


def _normalizer(setting: Mapping[str, Any] | None) -> str | None:
    steps = _flat(setting, "normalizers")
    if not steps:
        return None
    if len(steps) > 1 or steps[0]["type"] not in _NORMAL_FORMS:
        raise _UnknownError(f"normalizer: {', '.join(step['type'] for step in steps)}; expected none or one normal form")
    _only_known("normalizer", steps[0], {"type"})
    return steps[0]["type"]


def _added_token(token: Mapping[str, Any]) -> AddedToken:
    _only_known("added token", token, {"id", "content", *_TOKEN_FLAGS})
    flags = {flag: bool(token.get(flag, False)) for flag in _TOKEN_FLAGS}
    return AddedToken(id=token["id"], content=token["content"], **flags)


def _ignores_merges(model: Mapping[str, Any]) -> bool:
    _only_known("model", model, _MODEL_KEYS)
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise _UnknownError(f"model: {model.get('type', 'one without merges')}; expected BPE")
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise _UnknownError(f"model: {option} {model[option]!r}")
    missing = set(pre_tokenizers.ByteLevel.alphabet()) - _NEVER_IN_UTF8 - model["vocab"].keys()
    if missing:
        raise _UnknownError(f"model: {len(missing)} bytes have no token")
    return bool(model.get("ignore_merges", False))


def _only_known(section: str, setting: Mapping[str, Any], keys: Sequence[str] | set[str]) -> None:
    unknown = sorted(set(setting) - set(keys))
    if unknown:
        raise _UnknownError(f"{section}: unknown {', '.join(unknown)}")

"""Whether a tokenizer.json is one that compiled kernels encode exactly as `tokenizers` does, and how.

    pre_tokenizer ── expressions in order ── `published_patterns` ──▶ family, flags   ┐
    normalizer, added_tokens, model options ── each known exactly ──▶ the record      ├─▶ Recognised, or the reason why not
                                                                                      ┘
Whatever is not known exactly is refused with a reason, and the file is left to `tokenizers`: an expression of another text, a
key that this module has never seen, an option that would change a token. What cannot change one (`trim_offsets`, the
post-processor, the decoder) is not looked at; neither are truncation, padding and dropout, which the encoder switches off.
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
"""Bytes that no text holds, which byte-level tokenizers spell as themselves; GPT-NeoX has no tokens for them."""

_MODEL_KEYS = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"}
_MODEL_KEYS |= {"byte_fallback", "ignore_merges", "vocab", "merges"}
_STEP_KEYS = {
    "ByteLevel": {"type", "add_prefix_space", "trim_offsets", "use_regex"},
    "Digits": {"type", "individual_digits"},
    "Split": {"type", "pattern", "behavior", "invert"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    """A token that is looked for in the text before it is cut; as in the file."""

    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Recognised:
    """A tokenizer that kernels can stand in for.

    Attributes:
        family, flags: how texts are cut into pieces.
        normalizer: the normal form that texts are brought to first, or None.
        added: in the order of the file.
        ignore_merges: whether a piece that is a token is taken whole, whatever the merges say.
    """

    family: Family
    flags: Flags
    normalizer: str | None
    added: tuple[Added, ...]
    ignore_merges: bool

    def cut(self, offsets: np.ndarray, data: np.ndarray, ends: np.ndarray) -> int:
        """See `Pattern.cut`."""
        return Pattern(family=self.family, flags=self.flags).cut(offsets, data, ends)


class _UnknownError(Exception):
    """Carries the reason."""


def recognise(settings: Mapping[str, Any]) -> tuple[Recognised, None] | tuple[None, str]:
    """What the parsed tokenizer.json is, or None and why it is not known.

    Args:
        settings: a file that `tokenizers` has loaded without complaint.
    """
    try:
        pattern = _pattern(settings.get("pre_tokenizer"))
        recognised = Recognised(
            family=pattern.family,
            flags=pattern.flags,
            normalizer=_normalizer(settings.get("normalizer")),
            added=tuple(_added(token) for token in settings.get("added_tokens") or ()),
            ignore_merges=_ignores_merges(settings["model"]),
        )
    except _UnknownError as unknown:
        return None, str(unknown)
    return recognised, None


def _flat(setting: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """The steps of a sequence, or of sequences within it, in order."""
    if setting is None:
        return []
    if setting["type"] != "Sequence":
        return [setting]
    return [step for member in setting[members] for step in _flat(member, members)]


def _pattern(setting: Mapping[str, Any] | None) -> Pattern:
    steps = _flat(setting, "pretokenizers")
    for step in steps:
        _only_known(f"pre-tokenizer {step['type']}", step, _STEP_KEYS.get(step["type"], ()))
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
    """The text of an expression, with line ends spelled as escapes, or DIGITS."""
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


def _added(token: Mapping[str, Any]) -> Added:
    _only_known("added token", token, {"id", "content", *_TOKEN_FLAGS})
    flags = {flag: bool(token.get(flag, False)) for flag in _TOKEN_FLAGS}
    return Added(id=token["id"], content=token["content"], **flags)


def _ignores_merges(model: Mapping[str, Any]) -> bool:
    _only_known("model", model, _MODEL_KEYS)
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise _UnknownError(f"model: {model.get('type', 'one without merges')}; expected BPE")
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise _UnknownError(f"model: {option} {model[option]!r}")
    missing = set(pre_tokenizers.ByteLevel.alphabet()) - _NEVER_IN_UTF8 - model["vocab"].keys()
    if missing:
        raise _UnknownError(f"model: {len(missing)} of the bytes that texts hold are no tokens")
    return bool(model.get("ignore_merges", False))


def _only_known(what: str, setting: Mapping[str, Any], keys: Sequence[str] | set[str]) -> None:
    unknown = sorted(set(setting) - set(keys))
    if unknown:
        raise _UnknownError(f"{what}: {', '.join(unknown)} is not known")

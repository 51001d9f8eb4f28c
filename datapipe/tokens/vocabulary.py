"""What the vocabulary of a tokenizer.json covers: its unknown token, and the bytes that have no token.

A model without an unknown token drops what it lacks without a word (BPE), or fails at the first such text (the others). So
the encoder refuses such a file before anything runs. A byte counts as covered if the normalizer or the pre-tokenizer replaces
it: upper case where text becomes lower case, a space where it becomes `▁`.

Control tokens: which of them text could spell, how it is kept from them, and what is added to a text.

    tokenizer.json ── unspellable ──▶ the settings that encode: every id as before, control tokens under names that no text has
                   └─ AddedAround ──▶ what the post-processor would put before and behind each text

`tokenizers` keeps text from tokens that it finds before the model runs (`encode_special_tokens`). The model itself may know
them too: in a Unigram, WordPiece or WordLevel vocabulary `</s>` is a piece like any other, a BPE may have merges that make
it, and with `ignore_merges` a word of the vocabulary needs no merges. There the encoder appends 128 random bits to the name
of the token. The bits reach no file: ids, not names, leave the encoder.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from datapipe.dataclass import dataclass
from datapipe.errors import suggest
from datapipe.quantities import counted

_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
_TYPED = frozenset({ord("\t"), ord("\n"), *range(0x20, 0x7F)})
_SHOWN_BYTES = 16
_IN_BRACKETS = re.compile(r"<.+>|\[.+\]|\{.+\}|｜.+｜", re.DOTALL)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_KEEPING = {"ByteLevel", "Split", "Digits", "Punctuation"}
_BEFORE_BYTE_NAMES = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
"""Cuts text that spells a byte token, `<0x0A>`, behind its first character. No other text is cut."""


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level tokenizers, as in GPT-2; printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


def model_type(model: Mapping[str, Any]) -> str:
    """BPE, Unigram, WordPiece or WordLevel. Old files do not name it."""
    if model.get("type"):
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def pieces_of(model: Mapping[str, Any]) -> list[str]:
    vocabulary = model["vocab"]
    return [piece for piece, _ in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)


def unknown_id(model: Mapping[str, Any]) -> int | None:
    """The id of text that the vocabulary lacks."""
    if model_type(model) == "Unigram":
        return model.get("unk_id")
    return model["vocab"].get(model.get("unk_token"))


def steps_of(setting: Mapping[str, Any] | None, members: str) -> set[str]:
    """The type of a normalizer or pre-tokenizer, or the types of the steps of a sequence."""
    if setting is None:
        return set()
    if setting["type"] == "Sequence":
        return set().union(*(steps_of(member, members) for member in setting[members]))
    return {setting["type"]}


def untokenized(settings: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """Which text has no token: "2 bytes have no token: 0x71 'q', 0x7a 'z'"; "" for none."""
    model = settings["model"]
    kind, pieces = model_type(model), frozenset(pieces_of(model))
    if kind in ("WordPiece", "WordLevel"):
        return "words outside its vocabulary have no token"
    steps = steps_of(settings.get("pre_tokenizer"), "pretokenizers") | steps_of(settings.get("normalizer"), "normalizers")
    falls_back = model.get("byte_fallback") and (kind == "BPE" or unknown_id(model) is not None)  # as `tokenizers` has it
    if "ByteLevel" not in steps and falls_back:
        return _about(byte for byte in range(256) if f"<0x{byte:02X}>" not in pieces)
    added = {token["content"] for token in settings.get("added_tokens") or ()}  # found before the model runs
    letters = {byte: letter for letter, byte in byte_alphabet().items() if "ByteLevel" in steps or byte in _TYPED}
    missing = _about(
        byte
        for byte, letter in letters.items()
        if not (byte < 0x80 and chr(byte) in added)
        and not _have_tokens(_reaching(tokenizer, chr(byte)) if byte < 0x80 else letter, model, pieces)
    )
    return missing if missing or "ByteLevel" in steps else "characters outside its vocabulary have no token"


def spells_bytes(settings: Mapping[str, Any]) -> bool:
    """Whether ids spell any text byte by byte, where each byte has a token: nothing is added to it, and nothing left out. Of a
    tokenizer that `composes` text they spell the composed one."""
    step, added = settings.get("pre_tokenizer") or {}, settings.get("added_tokens") or ()
    steps = step.get("pretokenizers") or [step]
    keep_all = all(
        each.get("type") in _KEEPING and each.get("behavior") != "Removed" and not each.get("add_prefix_space")
        for each in steps
    )
    found = [token for token in added if not is_control(token["content"], is_special=bool(token.get("special")))]
    takes_spaces = any(token.get("lstrip") or token.get("rstrip") for token in found)
    is_byte_level = any(each.get("type") == "ByteLevel" for each in steps) and model_type(settings["model"]) == "BPE"
    return is_byte_level and keep_all and not takes_spaces and (settings.get("normalizer") is None or composes(settings))


def composes(settings: Mapping[str, Any]) -> bool:
    """Whether text is in NFC before it is spelled."""
    return (settings.get("normalizer") or {}).get("type") == "NFC"


def token_bytes(vocabulary: Mapping[str, int], added: Collection[str], size: int) -> np.ndarray:
    """The bytes of text that each id stands for, (size,) int32, of a tokenizer that spells bytes."""
    lengths, numbers = np.zeros(size, np.int32), np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
    lengths[numbers] = np.fromiter(map(len, vocabulary), np.int32, len(vocabulary))  # a character stands for a byte
    for token in added:
        lengths[vocabulary[token]] = len(token.encode())
    return lengths


def puts_first_space(settings: Mapping[str, Any]) -> bool:
    """Whether a tokenizer puts a space before the first text alone (`prepend_scheme: first`)."""
    step = settings.get("pre_tokenizer") or {}
    return any(each.get("prepend_scheme") == "first" for each in step.get("pretokenizers") or [step])


def with_no_first_space(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of such a tokenizer, without the space."""
    step = settings["pre_tokenizer"]
    steps = step.get("pretokenizers") or [step]
    changed = [{**each, "prepend_scheme": "never"} if each.get("prepend_scheme") == "first" else each for each in steps]
    return {**settings, "pre_tokenizer": changed[0] if step is steps[0] else {**step, "pretokenizers": changed}}


def puts_a_space(tokenizer: Tokenizer) -> bool:
    """Whether a text gets a space before it."""
    return len(_reaching(tokenizer, "(")) > 1


def _reaching(tokenizer: Tokenizer, text: str) -> str:
    normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    steps = tokenizer.pre_tokenizer
    return normal if steps is None else "".join(word for word, _ in steps.pre_tokenize_str(normal))


def _have_tokens(letters: str, model: Mapping[str, Any], pieces: Collection[str]) -> bool:
    """Whether letters have tokens wherever they stand in a word."""
    first, last = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    forms = {start + letter + end for letter in letters for start in ("", first) for end in ("", last)}
    return all(form in pieces for form in forms)


def _about(missing: Iterable[int]) -> str:
    named = sorted(byte for byte in missing if byte not in _NEVER_IN_UTF8)
    if not named:
        return ""
    shown = [f"{byte:#04x}{f' {chr(byte)!r}' if byte < 0x80 else ''}" for byte in named[:_SHOWN_BYTES]]
    more = f" and {len(named) - _SHOWN_BYTES} more" if len(named) > _SHOWN_BYTES else ""
    return f"{counted(len(named), 'byte')} {'has' if len(named) == 1 else 'have'} no token: {', '.join(shown)}{more}"


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


def is_control(token: str, *, is_special: bool) -> bool:
    """Whether an added token is one that text never becomes."""
    return is_special or is_in_brackets(token)


def no_control_token(token: str, added: Collection[str], control: Collection[str]) -> str:
    """What is wrong with the name of a token that is not one of the `control` tokens, and what to do."""
    listed = sorted(control)
    if token in added:
        return (
            f"found the token {token!r}, to which the tokenizer encodes text that spells it, so text would become this control "
            'token. Mark it in tokenizer.json as "special": true, or name one of its control tokens: '
            f"{', '.join(listed[:20]) or 'it has none'}"
        )
    return (
        f"found the token {token!r}, and the tokenizer has no such control token.{suggest(token, listed)} It has "
        f"{', '.join(listed[:20]) or 'none'}"
    )


def unspellable(settings: dict[str, Any], tokenizer: Tokenizer, named: Collection[str]) -> dict[str, Any]:
    """The settings of a loaded file, with which no text is encoded to a control token; the same
    object where text spells none. `named`: control tokens that the file may not mark as special."""
    added = {token["content"]: bool(token.get("special")) for token in settings.get("added_tokens") or ()}
    control = {content for content, is_special in added.items() if is_special} | {*named}
    hidden = _spelled(settings, tokenizer, control)
    hidden |= {token for token in named if added.get(token) is False}  # `tokenizers` would split text at it
    changed = _renamed(settings, {token: token + secrets.token_hex(16) for token in hidden}) if hidden else settings
    byte_tokens = filter(_BYTE_TOKEN.fullmatch, pieces_of(settings["model"])) if settings["model"].get("byte_fallback") else ()
    if not _spelled(settings, tokenizer, {*byte_tokens}):
        return changed
    steps = [step for step in (settings.get("pre_tokenizer"), _BEFORE_BYTE_NAMES) if step is not None]
    return {**changed, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def _spelled(settings: Mapping[str, Any], tokenizer: Tokenizer, tokens: Collection[str]) -> set[str]:
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

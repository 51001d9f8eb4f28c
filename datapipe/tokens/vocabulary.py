"""What the vocabulary of a tokenizer.json covers: its unknown token, and the bytes that have no token.

A model without an unknown token drops what it lacks without a word (BPE), or fails at the first such text (the others). So
the encoder refuses such a file before anything runs. A byte counts as covered if the normalizer or the pre-tokenizer replaces
it: upper case where text becomes lower case, a space where it becomes `▁`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer

from datapipe.quantities import counted

_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
_TYPED = frozenset({ord("\t"), ord("\n"), *range(0x20, 0x7F)})
_SHOWN_BYTES = 16


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
    """The tokens of the model, without added tokens."""
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


def what_it_lacks(settings: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """Subject and verb about text without a token: "2 bytes have no token: 0x71 'q', 0x7a 'z'"; "" if all
    text has tokens."""
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


def _reaching(tokenizer: Tokenizer, text: str) -> str:
    """What reaches the model of a text."""
    normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    steps = tokenizer.pre_tokenizer
    return normal if steps is None else "".join(word for word, _ in steps.pre_tokenize_str(normal))


def _have_tokens(letters: str, model: Mapping[str, Any], pieces: Collection[str]) -> bool:
    """Whether letters have tokens wherever they stand in a word."""
    first, last = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    forms = {start + letter + end for letter in letters for start in ("", first) for end in ("", last)}
    return all(form in pieces for form in forms)


def _about(missing: Iterable[int]) -> str:
    found = sorted(byte for byte in missing if byte not in _NEVER_IN_UTF8)
    if not found:
        return ""
    shown = [f"{byte:#04x}{f' {chr(byte)!r}' if byte < 0x80 else ''}" for byte in found[:_SHOWN_BYTES]]
    more = f" and {len(found) - _SHOWN_BYTES} more" if len(found) > _SHOWN_BYTES else ""
    return f"{counted(len(found), 'byte')} {'has' if len(found) == 1 else 'have'} no token: {', '.join(shown)}{more}"

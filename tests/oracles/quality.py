"""The Gopher quality measurements of one document, from its words and lines as text."""

from __future__ import annotations

from tests.oracles.words import characters, kind

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
LETTER, PUNCTUATION_OR_SYMBOL = 1, 8 | 16


def text_of(word: bytes) -> str:
    return "".join(character for _, character, _ in characters(word))


def is_punctuation(character: str) -> bool:
    return bool(kind(character) & PUNCTUATION_OR_SYMBOL)


def stripped(word: str) -> str:
    while word and is_punctuation(word[0]):
        word = word[1:]
    while word and is_punctuation(word[-1]):
        word = word[:-1]
    return word


def of_words(words: list[bytes]) -> list[float]:
    texts = [text_of(word) for word in words]
    content = [text for text in texts if not all(is_punctuation(character) for character in text)]
    number = max(len(texts), 1)
    return [
        len(content),
        sum(map(len, content)) / max(len(content), 1),
        sum(text.count("#") for text in texts) / number,
        sum(text.count("...") + text.count("…") for text in texts) / number,
        sum(any(kind(character) == LETTER for character in text) for text in texts) / number,
        len({stripped(text).lower() for text in texts} & STOP_WORDS),
    ]


def of_lines(lines: list[bytes]) -> list[float]:
    texts = [text_of(line) for line in lines]
    number = max(len(texts), 1)
    return [
        sum(text.startswith(("•", "‣", "◦", "●", "▪", "-", "*")) for text in texts) / number,
        sum(text.endswith(("...", "…")) for text in texts) / number,
    ]

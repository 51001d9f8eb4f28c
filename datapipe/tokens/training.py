"""Trains a byte-level BPE tokenizer. Equal text gives an equal tokenizer.json, byte for byte.

    sampled texts ──▶ distinct words with their counts ──▶ merges ──▶ tokenizer.json
             (`word_counts.py`)              (`kernels/tokens/bpe_training.py`)

The end-of-text token has id 0 and the 256 bytes have ids 1 to 256, so the tokenizer encodes every
text. Merges follow exact counts, with ties broken by the ids of the pair, as in the trainer of
Hugging Face `tokenizers`, which counts words at 4 MB/s. On 100 MB of text ours takes a fifth of its
CPU time, and half that of rustbpe (DECISIONS.md). Memory is that of the distinct words of the sample.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer, decoders, models

from datapipe import columns
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.tokens.bpe_training import join_pairs
from datapipe.metrics import UnreadableFile
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.figures import TokenizerFigures
from datapipe.tokens.patterns import splitter
from datapipe.tokens.vocabulary import byte_alphabet

SMALLEST_VOCABULARY = 257  # the 256 bytes and the end-of-text token
_MIN_COUNT = 2  # A pair that occurs once teaches nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A tokenizer.json, and the numbers of its training."""

    content: bytes
    # read_bytes, read_s: text of all documents, and the time that reading them took
    read_bytes: int
    read_s: float
    # sample_bytes, train_s: text trained on, and the time that counting its words and joining them took
    sample_bytes: int
    train_s: float
    rejected: int  # documents that could not be read
    unreadable_files: tuple[UnreadableFile, ...]  # damaged files, each with its first damage
    tokenizer: TokenizerFigures | None  # its figures on the held-out documents; None where there are none


def train_on_words(words: pa.Table, vocab_size: int, eos: str, pattern: str, control_tokens: Sequence[str] = ()) -> Encoder:
    """The tokenizer that is trained on words, each once in the columns of `COUNTED`. If few pairs occur twice, it has fewer
    than `vocab_size` tokens, at least 257. `control_tokens` have its last ids."""
    alphabet = byte_alphabet()
    letters = sorted(alphabet)  # in the order of `tokenizers`
    joins = _merges(words, np.array([alphabet[letter] for letter in letters], np.uint8), vocab_size - len(control_tokens))
    spellings = [eos, *letters]
    merges: dict[tuple[str, str], None] = {}
    for left, right, joined in joins.tolist():
        pair = spellings[left], spellings[right]
        merges.pop(pair, None)  # one that formed again, and merged a second time, has its last rank, as in `tokenizers`
        merges[pair] = None
        if joined == len(spellings):
            spellings.append(spellings[left] + spellings[right])
    vocabulary = {spelling: number for number, spelling in enumerate(spellings)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = splitter(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (eos, *control_tokens)])
    return Encoder(tokenizer.to_str().encode(), eos=eos)


def _merges(words: pa.Table, letters: np.ndarray, vocab_size: int) -> np.ndarray:
    """The merges in their order: (num_merges, 3) int32, the ids of the left, the right and the joined token."""
    offsets, data = columns.text_buffers(columns.contiguous(words["word"]))
    counts = columns.numbers(words["count"])
    room = vocab_size
    while True:
        merges = np.empty(3 * room, np.int32)
        num_merges = join_pairs(offsets, data, counts, letters, vocab_size, _MIN_COUNT, merges)
        if num_merges >= 0:
            return merges[: 3 * num_merges].reshape(-1, 3)
        room *= 2  # so many pairs spell a token that another pair has spelled before


def check_training(vocab_size: int, eos: str, pattern: str) -> None:
    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(f"vocab_size: found {vocab_size}, expected at least {SMALLEST_VOCABULARY} (256 bytes and `eos`)")
    if len(splitter(pattern).pre_tokenize_str(eos)) < 2:
        raise UserError(
            f"eos: found {eos!r}, a word that may occur in text, expected a token in brackets such as '<|endoftext|>'"
        )

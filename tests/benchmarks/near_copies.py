"""MinHash on copies that differ in signs, spaces, case or normal form alone, and its error on real near duplicates.

Copies: each web document beside the same document changed in one way. The true similarity is 1.0, so every pair should be
found by `dedup.minhash` with its defaults. Only documents that the change changes are counted.

Error: pairs of citations and web pages of a true similarity between 0.2 and 1, by 5-grams of words. Words are those of an
expression of our own over `str.casefold`. The peer, datasketch, has as many permutations and is given the 5-grams.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unicodedata import normalize

import numpy as np
from datasketch import MinHash

from datapipe.kernels.dedup.minhash import permutations, signatures
from stages.dedup.minhash import Minhash
from tests.benchmarks.tables import Bound, Settings, Table
from tests.benchmarks.texts import made_up_texts, read_texts
from tests.support import global_stages, labelled_duplicates

NUM_PERM, _NGRAM = 112, 5
_SPACE_SHARE = 0.1
_ASCII_SIGNS = str.maketrans(
    {"‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "–": "-", "—": "-", "…": "...", "•": "*"}
)
_TYPOGRAPHIC_SIGNS = str.maketrans({"'": "’", '"': "“", "-": "–"})
_WORD = re.compile(r"[^\W_]+")


def with_no_break_spaces(text: str) -> str:
    """The text with a tenth of its spaces replaced by no-break spaces."""
    chosen = random.Random(len(text))
    return re.sub(" ", lambda _: "\u00a0" if chosen.random() < _SPACE_SHARE else " ", text)


CHANGES: dict[str, Callable[[str], str]] = {
    "ASCII signs instead of typographic ones": lambda text: text.translate(_ASCII_SIGNS),
    "typographic signs instead of ASCII ones": lambda text: text.translate(_TYPOGRAPHIC_SIGNS),
    "a tenth of the spaces no-break spaces": with_no_break_spaces,
    "upper case": str.upper,
    "NFD instead of NFC": lambda text: normalize("NFD", normalize("NFC", text)),
}


def found_copies(texts: Sequence[str], change: Callable[[str], str], limit: int | None = None) -> tuple[int, int]:
    """How many documents that a change changes are found to be duplicates of what they become, and how many there are: all,
    or the first `limit`."""
    changed = [(text, change(text)) for text in dict.fromkeys(texts) if len(words(text)) >= _NGRAM]
    pairs = [pair for pair in changed if pair[0] != pair[1]][:limit]
    stage = global_stages.opened(Minhash(), "dedup.minhash")
    found = sum(bool(global_stages.dropped(stage, pair)) for pair in pairs)
    return found, len(pairs)


def words(text: str) -> list[str]:
    """The words by which similarity is truly measured."""
    return _WORD.findall(text.casefold())


def ngrams(text: str) -> set[str]:
    found = words(text)
    return {" ".join(found[start : start + _NGRAM]) for start in range(len(found) - _NGRAM + 1)}


def similar_pairs(data: Path, limit: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of documents that labels call duplicates, of a true similarity between 0.2 and 1."""
    pairs = list(_labelled_pairs(data))
    random.Random(seed).shuffle(pairs)
    chosen: list[tuple[str, str]] = []
    for pair in pairs:
        if 0.2 <= jaccard(*pair) < 1:
            chosen.append(pair)
        if len(chosen) == limit:
            break
    return chosen


def _labelled_pairs(data: Path) -> Iterator[tuple[str, str]]:
    for name in ("asysd", "govuk_captures", "gutenberg_editions"):
        labelled = labelled_duplicates.labelled_set(data, name)
        assert labelled.clusters is not None
        last: dict[int, int] = {}
        for document, cluster in enumerate(labelled.clusters):
            if cluster in last:
                yield labelled.texts[last[cluster]], labelled.texts[document]
            last[cluster] = document
    labelled = labelled_duplicates.labelled_set(data, "webis_s3_gov2")
    for first, second, _ in labelled.labelled_pairs or ():
        yield labelled.texts[first], labelled.texts[second]


def jaccard(first: str, second: str) -> float:
    """The similarity of the sets of 5-grams of two texts."""
    one, other = ngrams(first), ngrams(second)
    return len(one & other) / len(one | other) if one | other else 0.0


def errors(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> np.ndarray:
    """Estimates minus true similarities, (num_seeds, num_pairs)."""
    batch = global_stages.batch_of([text for pair in pairs for text in pair])
    signed = [signatures(*batch.buffers, permutations(seed, NUM_PERM), _NGRAM).signed for seed in seeds]
    estimates = np.array([(one[0::2] == one[1::2]).mean(axis=1) for one in signed])
    return estimates - np.array([jaccard(*pair) for pair in pairs])


def peer_errors(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> np.ndarray:
    """The same by datasketch."""
    estimates = [[_peer(first, seed).jaccard(_peer(second, seed)) for first, second in pairs] for seed in seeds]
    return np.array(estimates) - np.array([jaccard(*pair) for pair in pairs])


def _peer(text: str, seed: int) -> MinHash:
    signature = MinHash(num_perm=NUM_PERM, seed=seed)
    signature.update_batch([gram.encode() for gram in ngrams(text)])
    return signature


def least_rms(pairs: Sequence[tuple[str, str]]) -> float:
    """The error of as many independent coins as there are permutations, each of which shows the true similarity."""
    return float(np.sqrt(np.mean([truth * (1 - truth) for truth in (jaccard(*pair) for pair in pairs)]) / NUM_PERM))


def rms(errors: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt((errors**2).mean()))


def tables(settings: Settings) -> Iterator[Table]:
    texts = read_texts(settings.web).to_pylist()
    copies = {name: found_copies(texts, change, 40 if settings.quick else None) for name, change in CHANGES.items()}
    pairs = similar_pairs(settings.data, 20 if settings.quick else 250, seed=1)
    ours, peer = errors(pairs, range(20)), peer_errors(pairs, range(1 if settings.quick else 3))
    found = [(name, f"{count:,}", f"{of / max(count, 1):.1%}", "", "") for name, (of, count) in copies.items()]
    yield Table(
        title="Near copies",
        note="Copies of web documents that differ in one way (true similarity 1.0), and the error of the estimated similarity "
        f"on {len(pairs)} pairs of real near duplicates: the root of its mean square over 20 seeds, its mean, with {NUM_PERM} "
        "permutations. datasketch: over the same 5-grams, 3 seeds. Least: as many independent coins.",
        header=("", "pairs", "datapipe", "datasketch", "least"),
        rows=[
            *found,
            ("error", f"{len(pairs)}", f"{rms(ours):.4f}", f"{rms(peer):.4f}", f"{least_rms(pairs):.4f}"),
            ("mean error", f"{len(pairs)}", f"{ours.mean():+.4f}", f"{peer.mean():+.4f}", "0"),
        ],
    )


def bounds(folder: Path) -> Iterator[Bound]:
    texts = made_up_texts(60).to_pylist()
    for name in ("a tenth of the spaces no-break spaces", "upper case"):
        found, num_pairs = found_copies(texts, CHANGES[name])
        yield Bound(name=f"near copies found, {name}", ratio=found / num_pairs, least=1)
    pairs = [
        (text, " ".join([*text.split()[: -20 * (number % 15)], *texts[-1].split()])) for number, text in enumerate(texts[:-1])
    ]
    yield Bound(
        name="error of MinHash, of the least possible", ratio=rms(errors(pairs, range(10))) / least_rms(pairs), most=1.15
    )

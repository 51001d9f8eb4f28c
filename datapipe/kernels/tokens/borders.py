"""What a loss counts of tokens, where borders in the bytes of their text begin what is learned or not.

text   u s e r \\n H i     borders: 0 unlearned, 5 learned
tokens user | \\nHi        a token across a border is learned if either side is
"""

from datapipe.kernels import kernel
from datapipe.kernels.types import Bools, BoolsOut, Int32s, Int64s


@kernel
def learn_tokens(
    lengths: Int32s, ends: Int64s, starts: Int64s, border_starts: Int64s, is_learned: Bools, learned: BoolsOut
) -> None:
    """Whether a loss counts each token of parts of a text, which have `lengths` (num_tokens,) in bytes.

    The tokens of each part are between `ends` (num_parts + 1,), from the byte `starts` (num_parts,) on. `border_starts`:
    (num_borders,) ascending, one at or before the first part; `is_learned`: of the text from each on.
    """
    border = 0
    for part in range(len(starts)):
        position = starts[part]
        while border > 0 and border_starts[border] > position:
            border -= 1
        for token in range(ends[part], ends[part + 1]):
            while border + 1 < len(border_starts) and border_starts[border + 1] <= position:
                border += 1
            position += lengths[token]
            learned[token] = is_learned[border]
            later = border + 1
            while later < len(border_starts) and border_starts[later] < position:
                learned[token] |= is_learned[later]
                later += 1

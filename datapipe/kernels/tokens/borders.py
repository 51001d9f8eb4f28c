"""What a loss counts of tokens, where borders in the bytes of their text begin what is learned or not.

text   u s e r \\n H i     borders: 0 unlearned, 5 learned
tokens user | \\nHi        a token across a border is learned if either side is
"""

from datapipe.kernels import kernel
from datapipe.kernels.types import Bools, BoolsOut, Int32s, Int64s, Int64sOut


@kernel
def learn_tokens(
    lengths: Int32s,
    first_tokens: Int64s,
    stop_tokens: Int64s,
    starts: Int64s,
    border_starts: Int64s,
    is_learned: Bools,
    stops: Int64sOut,
    learned: BoolsOut,
) -> None:
    """Sets what is `learned` of the tokens of parts of a text, which have `lengths` (num_tokens,) in bytes.

    `border_starts`: (num_borders,) ascending, one at or before the first part; `is_learned`: of the text from each on. Of
    each part, (num_parts,): `first_tokens` and `stop_tokens`, its tokens; `starts`, its first byte, -1 for one that is left as
    it is; `stops`, the byte behind its last token.
    """
    border = 0
    for part in range(len(starts)):
        position = starts[part]
        if position < 0:
            continue
        while border > 0 and border_starts[border] > position:
            border -= 1
        for token in range(first_tokens[part], stop_tokens[part]):
            while border + 1 < len(border_starts) and border_starts[border + 1] <= position:
                border += 1
            position += lengths[token]
            learned[token] = is_learned[border]
            later = border + 1
            while later < len(border_starts) and border_starts[later] < position:
                learned[token] |= is_learned[later]
                later += 1
        stops[part] = position

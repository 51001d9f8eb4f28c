"""Orders, batches and attention of the loader, one index, one row or one rank at a time."""

from tests.oracles.texts import mix

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def round_keys(key: int, num_rounds: int) -> list[int]:
    return [mix((key + number * GOLDEN) % WORD) for number in range(1, num_rounds + 1)]


def feistel(index: int, size: int, keys: list[int]) -> int:
    """Rounds until the result is below `size`; round 0 changes the high half, round 1 the low half, and so on."""
    bits = (size - 1).bit_length()
    high_bits = bits // 2
    low_bits = bits - high_bits
    while True:
        high, low = divmod(index, 2**low_bits)
        for number, key in enumerate(keys):
            if number % 2 == 0:
                high ^= mix(low ^ key) % 2**high_bits
            else:
                low ^= mix(high ^ key) % 2**low_bits
        index = high * 2**low_bits + low
        if index < size:
            return index


def shuffled(key: int, size: int) -> list[int]:
    """Fisher-Yates from the last entry down; each draw is uniform: biased 32-bit words are drawn again."""
    table, counter = list(range(size)), mix(key)
    for last in range(size - 1, 0, -1):
        choices = last + 1
        while True:
            counter = (counter + GOLDEN) % WORD
            chosen, fraction = divmod((mix(counter) >> 32) * choices, 2**32)
            if fraction >= 2**32 % choices:
                break
        table[last], table[chosen] = table[chosen], table[last]
    return table


def descend(number: int, left_weights: list[int], totals: list[int], lefts: list[int], rights: list[int]) -> tuple[int, int]:
    """Leaf and ordinal of sample `number`: at each node it takes the left child where the child's count rises."""
    node = 0 if totals else -1
    while node >= 0:
        before, after = ((count * left_weights[node] + totals[node] // 2) // totals[node] for count in (number, number + 1))
        node, number = (lefts[node], before) if after > before else (rights[node], number - before)
    return ~node, number

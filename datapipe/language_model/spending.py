"""The tokens and the money of requests.

Tokens are those of the server's `usage`; before a request, and without `usage`, bytes / 4 of the
messages, and `max_tokens` of each answer. Money is tokens times the user's prices. A request begins
only if the limit holds even when it, and all others under way, take the most.
"""

from __future__ import annotations

from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError
from datapipe.language_model.cache import Answer

_BYTES_PER_TOKEN = 4
_PER_MESSAGE = 8  # tokens by which the templates of chat models surround a message, about
_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    prompt: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(prompt=self.prompt + other.prompt, completion=self.completion + other.completion)

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(prompt=self.prompt - other.prompt, completion=self.completion - other.completion)

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Of a million tokens, in any currency; 0 for both where they are not known."""

    prompt: float = 0.0
    completion: float = 0.0

    def __bool__(self) -> bool:
        return self.prompt > 0 or self.completion > 0

    def cost(self, tokens: Tokens) -> float:
        return (tokens.prompt * self.prompt + tokens.completion * self.completion) / _MILLION


def expected_tokens(messages: list[dict[str, str]], max_tokens: int) -> Tokens:
    """Tokens of a request, about, and of its answer at most."""
    num_bytes = sum(len(message["content"].encode()) for message in messages)
    return Tokens(prompt=_of_bytes(num_bytes) + _PER_MESSAGE * len(messages), completion=max_tokens)


def tokens_of(answer: Answer, expected: Tokens) -> Tokens:
    """Tokens that an answer took, as the server counted them where it did."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return Tokens(
        prompt=expected.prompt if prompt is None else prompt,
        completion=_of_bytes(len(answer.content.encode())) if completion is None else completion,
    )


def _of_bytes(num_bytes: int) -> int:
    return -(-num_bytes // _BYTES_PER_TOKEN)


class Spending:
    """What a command has spent, and may spend: up to `max_cost`, without a limit where it is None."""

    def __init__(self, prices: Prices, max_cost: float | None) -> None:
        self.prices, self._max_cost = prices, max_cost
        self.spent = Tokens()
        self._reserved = Tokens()

    def begin(self, expected: Tokens) -> None:
        """Reserves the tokens of a request. Raises DatapipeError where they could exceed the limit."""
        most = self.spent + self._reserved + expected
        if self._max_cost is not None and self.prices.cost(most) > self._max_cost:
            raise DatapipeError(
                f"stopped at --max-cost {self._max_cost:,.2f}: {self.spent.total:,} tokens are spent, cost "
                f"{self.prices.cost(self.spent):,.2f}, and the next request could exceed it. All answers are kept: the same "
                "command with a higher limit goes on"
            )
        self._reserved += expected

    def end(self, expected: Tokens, taken: Tokens) -> None:
        """Replaces a reservation by what was taken; nothing, where no answer came."""
        self._reserved -= expected
        self.spent += taken

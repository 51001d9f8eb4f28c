"""Replaces keys, tokens and passwords in code, configuration and text.

    text  ->  tokens by prefix, alphabet and length; PEM blocks; values of assignments  ->  replaced

| kind | what is replaced |
|---|---|
| `aws` | key ids, and 40 characters after a name such as aws_secret_access_key |
| `azure` | 88 characters after AccountKey |
| `private_key` | whole PEM blocks, in the JSON of service accounts too |
| `assignment` | quoted values of high entropy, after a name that ends in password, secret, token or api_key |
| all others | tokens with the prefix of the service: `gcp`, `github`, `gitlab`, `slack`, `stripe`, `openai`, … |

Words, variables and placeholders are not replaced, so a weak password remains.

| corpus | replaced by mistake |
|---|---|
| 48 MB of functions, solutions, a manual and web text | nothing |
| 265 MB of Python packages | 7 values of examples |

In 61 MB of HTML 138 keys and tokens were replaced, which the pages contain. Random secrets in the format of each kind are all
found (`tests/datapipe/kernels/redact/test_secrets.py`).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, get_args

from pydantic import Field, PrivateAttr

from datapipe import rng
from datapipe.kernels.redact import secrets
from datapipe.kernels.redact.pii import SECRET
from datapipe.stage import Filter, FilterResult, Rule, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.redact._edit import Editor

Kind = Literal[
    "aws",
    "gcp",
    "azure",
    "github",
    "gitlab",
    "slack",
    "stripe",
    "openai",
    "anthropic",
    "hugging_face",
    "npm",
    "pypi",
    "jwt",
    "google_oauth",
    "private_key",
    "assignment",
]
_KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds, in the order of their numbers in `datapipe/kernels/redact/secrets.py`."""
_TAGS = tuple(b"<PRIVATE_KEY>" if kind == "private_key" else b"<SECRET>" for kind in secrets.KINDS)


class Secrets(Filter):
    """Replaces API keys, tokens, private keys and passwords."""

    mode: Literal["drop", "tag"] = Field(
        default="drop",
        description="drop: replace spans, and drop documents with more than `max_hits`. tag: only count; nothing is replaced "
        "or dropped, and the report marks the counts with `(tag)`.",
    )
    kinds: tuple[Kind, ...] = Field(
        default=_KINDS, min_length=1, description=f"Kinds of secrets to replace: {', '.join(_KINDS)}."
    )
    min_entropy: float = Field(
        default=3.5,
        ge=0,
        le=8,
        description="Least entropy of the value of an assignment, in bits a character, by the character frequencies of the "
        "value: random hexadecimal digits have up to 4, words about 3.",
    )
    replace: Literal["tag", "fake", "delete"] = Field(
        default="tag",
        description="The replacement. tag: <SECRET> or <PRIVATE_KEY>. fake: EXAMPLE- and 16 digits; equal secrets get equal "
        "replacements throughout the run. delete: nothing.",
    )
    max_hits: int | None = Field(
        default=None, ge=0, description="Most secrets of a document; documents with more are dropped. null: no limit."
    )

    counts: ClassVar[tuple[str, ...]] = _KINDS
    writes = ()
    _seed: int = PrivateAttr(default=0)

    def open(self, context: StageContext) -> None:
        self._seed = rng.seed_for(context.seed, context.name, "fake")

    def rules(self) -> list[Rule]:
        return [] if self.max_hits is None else [self.at_most("too_many_hits", "max_hits")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        wanted = sum(1 << secrets.KINDS.index(kind) for kind in set(self.kinds))
        editor = Editor(
            find=partial(secrets.find, wanted=wanted, min_entropy=self.min_entropy),
            replace=self.replace,
            seed=self._seed,
            tags=_TAGS,
            stand_ins=(SECRET,) * len(_TAGS),
            count_columns=tuple(range(len(_KINDS))),
        )
        return editor.result(batch, self.counts, self.rules())

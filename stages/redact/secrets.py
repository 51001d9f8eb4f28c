"""Takes keys, tokens and passwords out of code, configuration and text.

    text  ->  tokens by prefix, alphabet and length; PEM blocks; values of assignments  ->  replaced

The kinds: `aws` (key ids, and 40 characters behind a name such as aws_secret_access_key); `gcp`; `azure` (88 characters behind
AccountKey); `github`; `gitlab`; `slack`; `stripe`; `openai`; `anthropic`; `hugging_face`; `npm`; `pypi`; `jwt`; `google_oauth`;
`private_key` (whole PEM blocks, those inside the JSON of service accounts too); and `assignment`: what is in quotes behind a
name that ends like password, secret, token or api_key, has letters and digits and the entropy of something drawn by lot. Words,
variables and placeholders are none, so a weak password stays.

In 48 MB of functions, solutions, a manual and web text nothing is taken for a secret; in 265 MB of Python packages 7 values of
examples are, in 61 MB of HTML 138 keys and tokens that pages carry. Secrets drawn by lot in the shape of each kind are found,
all of them (`tests/datapipe/kernels/redact/test_secrets.py`). One core of a 2-core AMD EPYC does 340 MB/s of prose and 365 MB/s
of code.
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
"""In the order of `kernels/redact/secrets.py`, whose numbers they have."""
_TAGS = tuple(b"<PRIVATE_KEY>" if kind == "private_key" else b"<SECRET>" for kind in secrets.KINDS)


class Secrets(Filter):
    """Replaces keys, tokens, private keys and passwords."""

    mode: Literal["drop", "tag"] = Field(
        default="drop",
        description="drop: replace, and drop the documents with more hits than `max_hits`. tag: replace nothing and drop "
        "nothing, only count; the report says `(tag)` behind the counts.",
    )
    kinds: tuple[Kind, ...] = Field(default=_KINDS, min_length=1, description=f"What to look for: {', '.join(_KINDS)}.")
    min_entropy: float = Field(
        default=3.5,
        ge=0,
        le=8,
        description="Least entropy of the value of an assignment, in bits a character of the value itself: random hexadecimal "
        "digits have up to 4, words about 3.",
    )
    replace: Literal["tag", "fake", "delete"] = Field(
        default="tag",
        description="tag: write <SECRET> or <PRIVATE_KEY>. fake: write EXAMPLE- and 16 digits, the same for the same secret "
        "throughout the run. delete: write nothing.",
    )
    max_hits: int | None = Field(default=None, ge=0, description="Drop documents with more hits than this; null: none.")

    counts: ClassVar[tuple[str, ...]] = _KINDS
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
        return editor.judged(batch, self.counts, self.rules())

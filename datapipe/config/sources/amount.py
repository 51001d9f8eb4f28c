"""How much of a source a run takes: a sample of its documents, and a budget of its tokens.

sample: 5%                            a keyed hash chooses the records that are read; no stage sees the others
sample: {share: 5%, of: cleaned}      the same choice among cleaned documents, by the stage filter.sample, which is the last
max_tokens: 10B                       documents in the order of their shuffle, as long as their tokens fit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from datapipe.config.fields import Record, Share
from datapipe.config.problems import Problem
from datapipe.config.stage_use import StageUse

if TYPE_CHECKING:
    from datapipe.config.sources.source import Source

STAGE = "filter.sample"


class SampleSpec(Record):
    """A sample of a source: the same documents while the source grows, and part of every larger sample."""

    share: Share = Field(description="Share of the documents, by a keyed hash of each: 0.05, 5%.")
    of: Literal["input", "cleaned"] = Field(
        default="input",
        description="input: of the records, before any stage. cleaned: of the documents that the stages keep.",
    )

    def problems(self) -> Iterator[Problem]:
        if not self.share:
            yield ("share",), f"found 0, {_NOTHING}"


_NOTHING = "expected a share above 0. With `weight: 0` a source is prepared and not drawn"


def _of_keys(data: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(data, dict):
        return SampleSpec.model_validate(data)
    if not (value := validate(data)):
        raise ValueError(_NOTHING)
    return value


ShareOrSample = Annotated[Share | SampleSpec, WrapValidator(_of_keys)]


def sample_of(source: Source) -> SampleSpec | None:
    sample = source.sample
    return sample if isinstance(sample, SampleSpec | None) else SampleSpec(share=sample)


def amount_problems(
    sources: Mapping[str, Source], stages: Mapping[str, tuple[StageUse, ...]], *, has_tokens: bool
) -> Iterator[Problem]:
    """Samples and budgets that cannot be taken. `stages`: of each source, as they are listed."""
    for name, source in sources.items():
        sample, path = sample_of(source), ("sources", name)
        if source.max_tokens is not None and not has_tokens:
            text = "needs a tokenizer, and tokenizer: none writes text. Leave it out; `sample: 5%` takes a share of documents"
            yield (*path, "max_tokens"), text
        if source.max_tokens is not None and source.split is not None and source.split.max_tokens:
            text = "found beside split.max_tokens, expected one of them. Leave this one out, or give the cells less"
            yield (*path, "max_tokens"), text
        if sample is None:
            continue
        if sample.of == "input" and source.repository is not None and source.repository.group_by is not None:
            text = "would take files of a repository apart, which repository.group_by joins. Write {share: 5%, of: cleaned}"
            yield (*path, "sample"), text
        if sample.of == "cleaned" and any(use.alias == STAGE for use in stages[name]):
            yield (*path, "sample"), f"{STAGE} is in the list of stages, too. Leave one of them out, or name the other by `as`"


def sampled_stages(source: Source, stages: tuple[StageUse, ...]) -> tuple[StageUse, ...]:
    """The stages of a source, with the one that samples cleaned documents."""
    sample = sample_of(source)
    if sample is None or sample.of == "input":
        return stages
    return (*stages, StageUse(name=STAGE, alias=STAGE, options={"share": sample.share}))

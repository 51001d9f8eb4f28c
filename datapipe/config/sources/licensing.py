"""What a mixture allows: licences of sources and of documents, and the share that models wrote.

licenses, source without license_field ─▶ is its licence allowed?         else a problem, before anything runs
licenses, source with license_field    ─▶ filter.license, as its first stage, or where its stages name it
mixture.max_synthetic, weights         ─▶ is the share of synthetic sources allowed?      else a problem
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from datapipe.config.mixture_schedule import MixtureSpec
from datapipe.config.problems import Problem
from datapipe.config.sources.source import Source
from datapipe.config.stage_use import StageUse
from datapipe.stage.licenses import UNKNOWN, is_allowed, named

FILTER = "filter.license"
"""The stage that drops documents by their licence."""


def licensing_problems(
    allowed: Sequence[str], sources: Mapping[str, Source], stages: Mapping[str, Sequence[StageUse]]
) -> Iterator[Problem]:
    """The sources whose licence is not among the `allowed` ones; empty: all. `stages`: of each source, as they are listed."""
    for name, source in sources.items() if allowed else ():
        if source.license_field is not None:
            if any(use.alias == FILTER and use.name != FILTER for use in stages[name]):
                text = f"another stage has the name {FILTER}, which the filter of `licenses` has. Give it another one with `as`"
                yield ("sources", name), text
            own = [use for use in stages[name] if use.name == FILTER]
            if own and not any(_keeps_within(use, source.license_field, allowed) for use in own):
                text = (
                    f"{FILTER} has options that undo `licenses` ({', '.join(own[0].options)}). Leave them out: its field "
                    f"and the licences that it allows are those of the source and of `licenses`"
                )
                yield ("sources", name), text
        elif source.license is None and UNKNOWN not in allowed:
            text = (
                f"missing, and `licenses` allows {', '.join(allowed)} only. Write the license of the source; or, if its "
                f"documents have their own, `license_field`; or add {UNKNOWN} to `licenses`"
            )
            yield ("sources", name, "license"), text
        elif source.license is not None and not is_allowed(source.license, allowed):
            text = f"found '{source.license}', and `licenses` allows {', '.join(allowed)} only. Leave the source out, or add it"
            yield ("sources", name, "license"), text


def _keeps_within(use: StageUse, field: str, allowed: Sequence[str]) -> bool:
    """Whether a filter drops every document with a licence that a mixture does not allow."""
    options = use.options
    if options.get("mode", "drop") != "drop" or options.get("field", field) != field:
        return False
    listed = options.get("allowed", ())
    return not isinstance(listed, list | tuple) or all(is_allowed(named(str(name)), allowed) for name in listed)


def licensed_stages(allowed: Sequence[str], source: Source, stages: tuple[StageUse, ...]) -> tuple[StageUse, ...]:
    """The stages of a source, with the filter of its documents' licences where only some are
    `allowed`: first, or where they name it; its options may be left out there."""
    if not allowed or source.license_field is None:
        return stages
    is_kept = is_allowed(source.license or UNKNOWN, allowed)
    own = {"field": source.license_field, "allowed": list(allowed), "missing": "keep" if is_kept else "drop"}
    is_listed = any(use.name == FILTER for use in stages)
    listed = stages if is_listed else (StageUse(name=FILTER, alias=FILTER), *stages)
    return tuple(use.model_copy(update={"options": own | use.options}) if use.name == FILTER else use for use in listed)


def synthetic_problems(
    mixture: MixtureSpec, sources: Mapping[str, Source], shares: Mapping[str, Fraction]
) -> Iterator[Problem]:
    """The problem that the weights draw more of synthetic sources than a mixture allows; `shares`
    of all tokens, by source, are empty where the weights are not known yet."""
    written = [name for name, source in sources.items() if source.synthetic and shares.get(name)]
    share = sum((shares[name] for name in written), Fraction(0))
    if mixture.max_synthetic is not None and share > mixture.max_synthetic:
        text = (
            f"the weights draw {float(share):.2%} of the tokens from sources that models wrote ({', '.join(written)}), and "
            f"{float(mixture.max_synthetic):.2%} are allowed. Lower their weights, or raise max_synthetic"
        )
        yield ("mixture", "max_synthetic"), text

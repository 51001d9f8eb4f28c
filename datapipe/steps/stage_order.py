"""Warnings about stages in another order than the documentation advises, and about those that cut conversations. Pure."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from datapipe.config.sources.chat import STAGE as CHAT
from datapipe.config.stage_use import StageUse
from datapipe.dataclass import dataclass
from datapipe.steps.request import RunWarning


@dataclass(frozen=True, slots=True)
class _Advice:
    """Stages with a name in the patterns `first` stand before those in `then`, because `reason`,
    except where stages of `unless` stand between the two."""

    first: tuple[str, ...]
    then: tuple[str, ...]
    reason: str
    unless: tuple[str, ...] = ()


_QUALITY = ("filter.gopher_*", "filter.c4_quality", "filter.fineweb_quality")
_RULES = (*_QUALITY, "filter.code_quality", "filter.line_rules", "filter.length")
_CUTTING = ("dedup.lines", "dedup.substring")
_BY_LINE = ("filter.c4_quality", "filter.line_rules")

_ADVICE = (
    _Advice(
        ("normalize.unicode",),
        (*_RULES, "dedup.*", "redact.*"),
        "it changes the line ends, control characters and accents that the other counts or compares",
    ),
    _Advice(("filter.language",), _QUALITY, "the stop words and thresholds of the other are those of one language"),
    _Advice(
        ("filter.*",),
        ("dedup.minhash",),
        "it may drop the one document that is left of its duplicates, and it costs less than to compare documents",
        unless=_CUTTING,
    ),
    _Advice(("dedup.exact",), ("dedup.minhash",), "equal texts are found at less cost, and then fewer documents are compared"),
    _Advice(("dedup.exact",), _CUTTING, "a copy that is dropped whole is not cut into fragments before"),
    _Advice(("dedup.minhash",), ("dedup.substring",), "a copy that is dropped whole is not cut into fragments before"),
    _Advice(
        _BY_LINE,
        _CUTTING,
        "it removes lines, and with them the notes of where the other has cut",
    ),
    _Advice(
        ("dedup.*",),
        ("decontaminate.*",),
        "texts that the other has cut are no copies any more, and fewer documents are searched",
    ),
    _Advice(("decontaminate.*",), ("redact.*",), "placeholders in the text of an item hide it"),
    _Advice(("dedup.*",), ("redact.*",), "placeholders would be compared as if they were words of the text"),
)


def order_warnings(stages: Mapping[str, Sequence[StageUse]]) -> list[RunWarning]:
    """A warning for each pair of stages in another order than `stages/README.md` and `stages/dedup/README.md` advise; sources
    share one. Without a warning: a stage that also stands in its place, a filter that only tags or keeps a share, a stage that
    decides by a field instead of the text."""
    pairs: dict[str, list[str]] = {}
    for source, uses in stages.items():
        for text in _misplaced([use for use in uses if _decides_by_text(use)]):
            pairs.setdefault(text, []).append(source)
    return [RunWarning.of_sources("stage_order", sources, text) for text, sources in pairs.items()]


def conversation_warnings(stages: Mapping[str, Sequence[StageUse]]) -> list[RunWarning]:
    """A warning for each source of conversations with stages that remove lines or repeated text: names of roles and short turns
    are such lines."""
    warnings: list[RunWarning] = []
    for source, uses in stages.items():
        cutting = [use.alias for use in uses if _is_any(use, (*_BY_LINE, *_CUTTING)) and use.options.get("mode") != "tag"]
        if cutting and any(use.name == CHAT for use in uses):
            listed, verb = " and ".join(cutting), "removes" if len(cutting) == 1 else "remove"
            text = (
                f"{listed} {verb} lines or repeated text, and with them names of roles and short turns of its conversations. "
                f"Give the source `stages` of its own without {'it' if len(cutting) == 1 else 'them'}."
            )
            warnings.append(RunWarning.of("cut_conversations", source, text, stages=cutting))
    return warnings


def _decides_by_text(use: StageUse) -> bool:
    return use.options.get("mode") != "tag" and use.options.get("by") != "field" and "keep_share" not in use.options


def _misplaced(uses: Sequence[StageUse]) -> list[str]:
    texts: dict[str, None] = {}
    for advice in _ADVICE:
        start = next((index for index, use in enumerate(uses) if _is_any(use, advice.then)), len(uses))
        before = {use.name for use in uses[:start]}
        for index in range(start + 1, len(uses)):
            use = uses[index]
            is_excused = any(_is_any(other, advice.unless) for other in uses[start + 1 : index])
            if _is_any(use, advice.first) and use.name not in before and not is_excused:
                texts[f"{use.alias} stands after {uses[start].alias}. Put it before, because {advice.reason}."] = None
    return list(texts)


def _is_any(use: StageUse, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(use.name, pattern) for pattern in patterns)

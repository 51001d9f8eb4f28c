"""Documents on either side of a threshold, how many other thresholds would keep, and the line of the mixture for each.

    borderline tables of the map tasks  ─▶  the 50 just kept and the 50 just dropped, nearest first
    tags, or the histogram of a rule    ─▶  documents at other thresholds (`sweep.py`)

A document "just kept" is one that the run kept; those that a later stage dropped are
only counted. With `mode: tag`, the sides are those that would be kept and dropped.
"""

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.credentials import masked
from datapipe.errors import DatapipeError, UserError
from datapipe.explore.document.view import DocumentView
from datapipe.explore.documents import Inspector
from datapipe.explore.sweep import Accepted, RuleOf, swept_histograms, swept_tags
from datapipe.stage.base import BELOW_SHARE, Filter

MOST_SHOWN = 50
MOST_TRIED = 200  # documents that passed a rule of which the fate is looked up, nearest first
_SHARE_OPTIONS = frozenset({"keep_share", "share_of", "threshold_from"})
"""Options of a filter that keeps a share. A threshold of its score takes their place."""


def sides(view: DocumentView, rule: RuleOf) -> dict[str, Any]:
    tried = _nearest(view.output, rule, is_dropped=False, most=MOST_TRIED)
    kept = [row for row in tried if row["fate"] == "kept"][:MOST_SHOWN]
    tried = tried[: tried.index(kept[-1]) + 1] if len(kept) == MOST_SHOWN else tried
    listed = {"kept": kept, "dropped": _nearest(view.output, rule, is_dropped=True, most=MOST_SHOWN)}
    facts = view.output.facts_of([row["key"] for nearest in listed.values() for row in nearest])
    shown = {side: view.rows.shown([{**facts[row["key"]], **row} for row in nearest]) for side, nearest in listed.items()}
    view.add_excerpts([row for pair in zip_longest(*shown.values()) for row in pair if row is not None], lines=False)
    return {**_about(view.output, rule), "dropped_later": len(tried) - len(kept), **shown}


def _nearest(output: Inspector, rule: RuleOf, is_dropped: bool, most: int) -> list[dict[str, Any]]:
    return output.database.rows(
        "select near.key, near.value, near.threshold, facts.fate from near join facts using (key) "
        "where near.stage = $stage and near.rule = $rule and near.source in $sources and is_dropped = $dropped "
        "order by abs(near.value - near.threshold), near.key, near.value limit $most",
        {"stage": rule.stage, "rule": rule.rule, "sources": tuple(rule.of_sources), "dropped": is_dropped, "most": most},
    )


def _about(output: Inspector, rule: RuleOf) -> dict[str, Any]:
    return {**{name: getattr(rule.facts, name) for name in ("option", "side", "threshold", "mode")}, **_yaml(output, rule)}


def _yaml(output: Inspector, rule: RuleOf) -> dict[str, str]:
    """`yaml`: the line of the mixture, which ends in the rule's option with "{threshold}" as its value; empty where no
    option holds the threshold. `as_it_is`: the line for the one in force where it is another, as of a kept share."""
    uses = [output.use_of(source, rule.stage) for source in rule.of_sources]
    use, option = uses[0], rule.facts.option
    if use is None or not option or any(other != use for other in uses):
        return {"yaml": "", "as_it_is": ""}
    is_share = rule.rule == BELOW_SHARE
    others = {name: value for name, value in use.options.items() if name not in (option, "mode")}
    if is_share:
        others = {name: value for name, value in others.items() if name not in _SHARE_OPTIONS}
        if not _is_least_score(use, option, others):
            return {"yaml": "", "as_it_is": ""}
    untagged = {name: value for name, value in use.options.items() if name != "mode"}
    as_it_is = _line(use, untagged) if is_share and rule.facts.mode != "tag" else ""
    return {"yaml": _line(use, others, f"{option}: {{threshold}}"), "as_it_is": as_it_is}


def swept(output: Inspector, rule: RuleOf) -> dict[str, Any]:
    """How much every threshold keeps: points ascending by threshold. Raises UserError for a rule without a threshold."""
    if rule.facts.side == "other":
        raise UserError(f"{rule.stage}:{rule.rule} compares no value with a threshold, so there is nothing to sweep.")
    about = _about(output, rule) | {"in_force": rule.facts.threshold}
    accepted = Accepted(output.use_of(next(iter(rule.of_sources)), rule.stage), rule.facts.option)
    tagged = swept_tags(output, rule, accepted) if rule.facts.mode == "tag" else None
    if tagged is None:
        return {**about, **swept_histograms(rule, accepted)}
    tokens = sum(output.tokens_of(source) or 0 for source in rule.of_sources)
    kept = sum(counts.kept_bytes for counts in map(output.counts_of, rule.of_sources) if counts is not None)
    for each in (tagged["total"], *tagged["points"]):
        each["tokens"] = round(each["bytes"] * tokens / kept) if tokens and kept else None
    return {**about, **tagged, "as_it_is": ""}


def _line(use: StageUse, options: Mapping[str, Any], last: str = "") -> str:
    listed = [f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}" for name, value in options.items()]
    listed += [f"{name}: {json.dumps(value)}" for name, value in use.written().items() if name not in use.options]
    return masked(f"- {use.name}: {{{', '.join([*listed, *([last] if last else [])])}}}")


def _is_least_score(use: StageUse, option: str, options: Mapping[str, Any]) -> bool:
    """Whether an option is a least score, with which these other options keep no share."""
    try:
        stage = catalogue.build_stage(use.model_copy(update={"options": {**options, option: 0}}))
    except DatapipeError:
        return False
    assert isinstance(stage, Filter)
    return stage.kept_share() is None and any(each.option == option and each.side == "min" for each in stage.rules())

"""How stage lists become segments and meetings."""

from __future__ import annotations

import pytest

from datapipe.errors import UserError
from datapipe.plan.steps import lay_out
from datapipe.plan.work import BoundStage
from datapipe.stage import Map
from datapipe.stage.global_stage import Global


class Clean(Map):
    """Does nothing."""

    def process(self, batch):
        return {}


class Reduce(Global):
    """Finds nothing."""


def _map(name: str) -> BoundStage:
    return BoundStage(name=name, stage=Clean(), digest=name)


def _global(name: str, digest: str = "") -> BoundStage:
    return BoundStage(name=name, stage=Reduce(), digest=digest or name)


def test_lay_out_cuts_segments_at_global_stages():
    pipeline = lay_out({"web": [_map("a"), _map("b"), _global("g"), _global("h"), _map("c")], "raw": []})
    assert (pipeline.segments["raw"], pipeline.after["raw"]) == (((),), (None,))
    assert [[stage.name for stage in segment] for segment in pipeline.segments["web"]] == [["a", "b"], [], ["c"]]
    assert [global_step and global_step.id for global_step in pipeline.after["web"]] == ["g", "h", None]


def test_lay_out_equal_global_stages_are_one_meeting_of_all_sources():
    pipeline = lay_out({"web": [_map("a"), _global("g")], "code": [_global("x"), _global("g")]})
    global_steps = {global_step.id: global_step.sources for global_step in pipeline.global_steps}
    assert global_steps == {"g": (("web", 0), ("code", 1)), "x": (("code", 0),)}
    assert [global_step.id for global_step in pipeline.global_steps].index("x") < [m.id for m in pipeline.global_steps].index(
        "g"
    )


def test_lay_out_same_name_with_other_options_is_another_meeting():
    pipeline = lay_out({"web": [_global("g", "one" * 4)], "code": [_global("g", "two" * 4)]})
    assert sorted(global_step.id for global_step in pipeline.global_steps) == ["g@oneoneon", "g@twotwotw"]


def test_lay_out_conflicting_orders_are_refused():
    with pytest.raises(UserError, match="conflicting orders"):
        lay_out({"web": [_global("g"), _global("h")], "code": [_global("h"), _global("g")]})

"""Classes of our decorator behave as those of the standard one with the same options."""

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from datapipe import dataclass as ours

OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True},
    {"frozen": True, "slots": True, "eq": False},
)


def make(decorate: Any, options: dict[str, bool]) -> Any:
    @decorate(**options)
    class Point:
        x: int
        names: list[str] = dataclasses.field(default_factory=list, kw_only=True, compare=False)
        y: float = 0.5
        twice: int = dataclasses.field(init=False, repr=False, default=0)
        unit: ClassVar[str] = "m"

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.x)

    return Point


def outcome(action: Any) -> Any:
    """The value of an action, or the class of its error."""
    try:
        return action()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dataclass_equals_the_standard_one(options):
    facts = []
    for decorate in (ours.dataclass, dataclasses.dataclass):
        kind = make(decorate, options)
        a, b, c = kind(x=1), kind(x=1, names=["a"]), kind(x=1, y=2.5)
        facts.append(
            [
                *(repr(a), repr(b), a == b, a == c, a == 1, a.twice, a.names is not kind(x=1).names, kind.__match_args__),
                *(dataclasses.asdict(b), dataclasses.replace(b, x=4).twice, copy.deepcopy(b).names, kind(x=1).unit),
                *(outcome(lambda a=a, b=b: hash(a) == hash(b)), hasattr(a, "__dict__")),
                *(outcome(lambda kind=kind: kind(1, 2).y), outcome(kind), outcome(lambda kind=kind: kind(x=1, z=2))),
                *(outcome(lambda a=a: setattr(a, "x", 3)), outcome(lambda a=a: delattr(a, "y"))),
            ]
        )
    assert facts[0] == facts[1]


@ours.dataclass(frozen=True, slots=True)
class Base:
    x: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Base) and abs(self.x) == abs(other.x)

    def __hash__(self) -> int:
        return abs(self.x)


@ours.dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    y: list[int] = ours.field(default_factory=list)


def test_dataclass_keeps_methods_that_are_written_and_inherits():
    assert Base(-1) == Base(1)
    assert {Base(-1), Base(1)} == {Base(1)}
    assert Derived(1, y=[2]) == Derived(1, y=[2]) != Derived(1, y=[3])
    again = pickle.loads(pickle.dumps(Derived(3, y=[4])))
    assert (again.x, again.y, repr(again)) == (3, [4], "Derived(x=3, y=[4])")
    with pytest.raises(TypeError, match=r"Derived\.__init__"):
        Derived()  # type: ignore[call-arg]


def test_dataclass_that_holds_itself_is_written_with_dots():
    base = Base(1)
    object.__setattr__(base, "x", [base])
    assert repr(base) == "Base(x=[...])"

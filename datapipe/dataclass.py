"""`dataclasses.dataclass` that writes methods at their first call.

The standard decorator compiles each method by itself, in 0.8 ms a class. A command imports 300 classes and makes objects of
half of them: these methods were a fifth of its start. `field`, `fields`, `replace` and `asdict` are those of `dataclasses`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, field, fields, replace
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

__all__ = ("asdict", "dataclass", "field", "fields", "replace")

T = TypeVar("T", bound=type)


@dataclass_transform(field_specifiers=(field,))
def dataclass(*, frozen: bool = False, kw_only: bool = False, slots: bool = False, eq: bool = True) -> Callable[[T], T]:
    """Makes a class a dataclass, as the standard decorator with the same options does. A frozen class accepts no attribute."""

    def decorated(cls: Any) -> Any:
        own = {name for name, value in vars(cls).items() if name != "__hash__" or value is not None}  # None: beside `__eq__`
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard decorator writes a signature
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(cls)
        methods: dict[str, Any] = {"__init__": _at_first_call(cls, "__init__", _init), "__repr__": _repr}
        if eq:
            methods |= {"__eq__": _at_first_call(cls, "__eq__", _eq), "__hash__": None}
        if eq and frozen:
            methods["__hash__"] = _at_first_call(cls, "__hash__", _hash)
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
        for name, method in methods.items():
            if name not in own:
                setattr(cls, name, method)
        return cls

    return decorated


def _at_first_call(cls: Any, name: str, write: Callable[[Any, dict[str, Any]], str]) -> Callable[..., Any]:
    """A method that replaces itself by the one whose code `write` returns, with names that it adds to a dictionary."""

    def method(*args: Any, **kwargs: Any) -> Any:
        exec(write(cls, names := {}), names)
        names[name].__qualname__, names[name].__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, names[name])
        return names[name](*args, **kwargs)

    return method


def _init(cls: Any, names: dict[str, Any]) -> str:
    names |= {"_set_": object.__setattr__, "_absent_": dataclasses.MISSING}
    by_position, by_name, lines, is_frozen = ["self"], ["*"], ["    pass"], cls.__setattr__ is _refuse
    for each in fields(cls):
        default, value = "", each.name
        if each.default is not dataclasses.MISSING:
            names[f"_default_{each.name}"], default = each.default, f"=_default_{each.name}"
        elif each.default_factory is not dataclasses.MISSING:
            names[f"_make_{each.name}"], default = each.default_factory, "=_absent_"
            value = f"_make_{each.name}() if {each.name} is _absent_ else {each.name}"
        if each.init:
            (by_name if each.kw_only else by_position).append(each.name + default)
        else:
            value = f"_make_{each.name}()" if default == "=_absent_" else default[1:]
        if value:
            lines.append(f"    _set_(self, {each.name!r}, {value})" if is_frozen else f"    self.{each.name} = {value}")
    lines += ["    self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    return "\n".join([f"def __init__({', '.join(by_position + by_name * (len(by_name) > 1))}):", *lines])


def _compared(cls: Any, name: str) -> str:
    return f"({''.join(f'{name}.{each.name}, ' for each in fields(cls) if each.compare)})"


def _eq(cls: Any, names: dict[str, Any]) -> str:
    equal = f"{_compared(cls, 'self')} == {_compared(cls, 'other')}"
    return f"def __eq__(self, other):\n    return {equal} if other.__class__ is self.__class__ else NotImplemented"


def _hash(cls: Any, names: dict[str, Any]) -> str:
    return f"def __hash__(self):\n    return hash({_compared(cls, 'self')})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__qualname__}.{name} cannot be set: the class is frozen")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state):
        object.__setattr__(self, each.name, value)

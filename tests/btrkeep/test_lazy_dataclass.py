"""Classes of `btrkeep.lazy_dataclass` beside the same ones of the standard library."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from btrkeep import lazy_dataclass

OPTIONS: tuple[dict[str, bool], ...] = (
    {"frozen": True, "slots": True},
    {"slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True},
)


def _class(decorate: Callable[..., Any], options: dict[str, bool]) -> Any:
    """A class with each kind of field."""

    @decorate(**options)
    class Above:
        name: str

    @decorate(**options)
    class Example(Above):
        """A text."""

        size: int = 3
        names: list[str] = dataclasses.field(default_factory=list)
        secret: str = dataclasses.field(default="none", repr=False, compare=False)
        made: int = dataclasses.field(default=0, init=False)
        label: str = dataclasses.field(default="", kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", self.size * 2)

        @property
        def doubled(self) -> int:
            return self.size * 2

    return Example


@pytest.fixture(params=OPTIONS, ids=lambda options: "-".join(options))
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The class of ours, and that of the standard library."""
    return _class(lazy_dataclass.dataclass, request.param), _class(dataclasses.dataclass, request.param)


def _answers(made: Any) -> dict[str, Any]:
    """What each use of the class gives, or the kind of error."""
    uses: dict[str, Callable[[], Any]] = {
        "repr": lambda: repr(made(name="a")),
        "values": lambda: dataclasses.asdict(made(name="a", size=5, names=["x"], secret="s", label="l")),
        "equal": lambda: (made(name="a") == made(name="a", secret="other"), made(name="a") == made(name="b"), made(name="a") == 3),
        "hash": lambda: hash(made(name="a", names=())) == hash(made(name="a", names=(), secret="other")),
        "unhashable": lambda: hash(made(name="a")) and None,
        "replaced": lambda: repr(dataclasses.replace(made(name="a"), size=9)),
        "changed": lambda: setattr(made(name="a"), "size", 4),
        "deleted": lambda: delattr(made(name="a"), "size"),
        "missing": lambda: made(),
        "unknown": lambda: made(name="a", other=1),
        "by place": lambda: repr(made("a", 5)),
        "not in init": lambda: made(name="a", made=1),
        "no sharing": lambda: made(name="a").names is made(name="a").names,
        "other attribute": lambda: object.__setattr__(made(name="a"), "more", 1),
        "fields": lambda: [(field.name, field.type, field.kw_only) for field in dataclasses.fields(made)],
        "property": lambda: made(name="a", size=4).doubled,
        "match": lambda: made.__match_args__,
        "text": lambda: made.__doc__,
    }
    return {name: _answer(use) for name, use in uses.items()}


def _answer(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except (TypeError, AttributeError) as error:
        return type(error)


def test_a_class_does_what_one_of_the_standard_library_does(both: tuple[Any, Any]) -> None:
    ours, theirs = map(_answers, both)
    assert ours == theirs
    assert _answers(both[0]) == theirs  # again: now its first objects were made


@pytest.mark.parametrize("name", ["__repr__", "__eq__", "__hash__"])
def test_a_method_that_the_class_has_stays(name: str) -> None:
    def own(*_: object) -> Any:
        return "own" if name == "__repr__" else 7

    decorators: tuple[Callable[..., Any], ...] = (lazy_dataclass.dataclass, dataclasses.dataclass)
    for decorate in decorators:
        made: Any = decorate(frozen=True, slots=True)(type("Example", (), {"__annotations__": {"size": "int"}, name: own}))
        assert made.__dict__[name] is own


def test_a_class_that_is_not_used_costs_a_fraction() -> None:
    def seconds(decorate: Callable[..., Any]) -> float:
        begun = time.process_time()
        for _ in range(50):
            _class(decorate, OPTIONS[0])
        return time.process_time() - begun

    ratios = [seconds(lazy_dataclass.dataclass) / seconds(dataclasses.dataclass) for _ in range(5)]
    assert min(ratios) < 0.6, ratios

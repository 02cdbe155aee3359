"""`dataclass`, as of the standard library, without compiling methods that a process never calls.

The standard library compiles up to eight methods for each class when a module is imported: 0.6 ms of CPU time, and a third of the
start of every command. Here only `__init__` is compiled, when the first object is made. The other methods are closures.
"""

import dataclasses
from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from collections.abc import Callable
    from operator import attrgetter
    from typing import Any

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False) -> Callable[[type], type]:
        """Decorates a class. Its frozen objects cannot be pickled or copied, and none may contain itself (`repr` would not end)."""

        def decorated(cls: type) -> type:
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            methods = {"__init__": _first_init(made, frozen), "__repr__": _repr}
            if eq:
                methods["__eq__"], methods["__hash__"] = _equality(made, frozen)
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
            for name, method in methods.items():
                if made.__dict__.get(name) is None:  # the class has none of its own; Python sets __hash__ to None beside an __eq__
                    setattr(made, name, method)
            return made

        return decorated

    def _first_init(cls: type, frozen: bool) -> Callable[..., None]:
        def first_init(self: Any, *args: Any, **kwargs: Any) -> None:
            names = [(field.name, field.type, field) for field in dataclasses.fields(cls)]
            namespace = {"__doc__": "-"}  # for a class without one, dataclasses find out the signature
            if hasattr(cls, "__post_init__"):
                namespace["__post_init__"] = cls.__post_init__
            options = {"frozen": frozen, "repr": False, "eq": False, "match_args": False}
            cls.__init__ = dataclasses.make_dataclass(cls.__name__, names, namespace=namespace, **options).__init__
            cls.__init__(self, *args, **kwargs)

        return first_init

    def _equality(cls: type, frozen: bool) -> tuple[Callable[..., Any], Callable[..., int] | None]:
        names = [field.name for field in dataclasses.fields(cls) if field.compare]
        values = attrgetter(*names) if names else lambda _: ()

        def equal(self: Any, other: Any) -> Any:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        def hashed(self: Any) -> int:
            return hash(values(self))

        return equal, hashed if frozen else None

    def _repr(self: Any) -> str:
        values = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
        return f"{self.__class__.__qualname__}({', '.join(values)})"

    def _refuse(_self: Any, name: str, *_value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")

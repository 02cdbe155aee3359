"""The result of a step of a script that ran in separate folders."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """A step that has ended."""

    step: str
    status: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"{self.step}\nexit status {self.status}\n{self.out}{self.err}"

"""The base of every setting: frozen, validated once, unknown keys refused, JSON in and out."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(gt=0, le=10**15)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""What a generator takes."""
Threads = Annotated[int, Field(gt=0, le=4096)]
"""Of one process; torch ends in a fault of memory with many more."""
Count = Annotated[int, Field(ge=0)]


class Settings(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    free: ClassVar[frozenset[str]] = frozenset()
    """Settings that a resumed run may have otherwise: they do not decide what is learned."""
    bits: ClassVar[frozenset[str]] = frozenset()
    """Settings that change no expected result, but roundings and what dropout draws: a run goes on with others where
    other numerics are allowed."""


def renamed(values: Any, old: str, new: str, meaning: Mapping[bool, str]) -> Any:
    """Raw settings in which the yes or no `old` is said as `new`: the records of earlier runs are still understood.

    What is not understood (both names at once, neither yes nor no) is left for the validation to refuse.
    """
    if not isinstance(values, Mapping) or new in values or not isinstance(values.get(old), bool):
        return values
    return {name: value for name, value in values.items() if name != old} | {new: meaning[values[old]]}

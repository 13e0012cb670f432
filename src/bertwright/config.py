"""Base class of all settings: frozen, validated once, unknown keys refused, JSON in and out.

A setting that is marked with `Option` is an option of the command line too. Its type, limits, default and help are
written in the settings class alone: `bertwright.commands.options` reads them from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(gt=0, le=10**15)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Range of the seeds that a generator of torch takes."""
Threads = Annotated[int, Field(gt=0, le=4096)]
"""Threads per process; torch crashes with far more."""
Count = Annotated[int, Field(ge=0)]

Group = Literal[
    "entry",
    "model",
    "schedule",
    "optimiser",
    "examples",
    "fine-tuning",
    "distillation",
    "service",
    "limits",
    "evaluation",
    "checkpoints",
    "machine",
]
"""Headings of `bertwright COMMAND --help`, in their order there."""


@dataclass(frozen=True)
class Option:
    """Mark of a setting that is an option of the command line. The setting's docstring is the help of the option.

    group: heading under which --help lists the option.
    name: name of the option, where it is not the name of the setting.
    read: turns the typed text into the setting; None where the type of the setting says how to read it.
    together: settings of the same class that the option sets, one value each; empty: the marked setting alone.
    """

    group: Group
    name: str | None = None
    read: Callable[[str], Any] | None = None
    together: tuple[str, ...] = ()


class Settings(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    changeable: ClassVar[frozenset[str]] = frozenset()
    """Settings that a resumed run may change: they do not decide what is learned."""
    numeric: ClassVar[frozenset[str]] = frozenset()
    """Settings that change roundings and the numbers that dropout draws, but no expected result.

    A run resumes with other values of them where other numerics are allowed.
    """

"""Types of options that several commands have."""

from typing import Annotated, Literal

from tyro.conf import UseAppendAction

Repeatable = Annotated[tuple[str, ...], UseAppendAction]
"""Option that may be given several times."""
AnswerPrecision = Literal["auto", "fp32", "bf16", "int8"]

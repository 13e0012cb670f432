"""Type of the options that may be given several times."""

from typing import Annotated

from tyro.conf import UseAppendAction

Repeatable = Annotated[tuple[str, ...], UseAppendAction]
"""Texts of an option that is given once for each."""

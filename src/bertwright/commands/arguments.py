"""Type of the options that may be given several times."""

from typing import Annotated

from tyro.conf import UseAppendAction

Repeatable = Annotated[tuple[str, ...], UseAppendAction]
"""Option that may be repeated: one text for each use."""

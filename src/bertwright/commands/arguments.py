"""Types of options that several commands have."""

from typing import Annotated

from tyro.conf import UseAppendAction

Repeatable = Annotated[tuple[str, ...], UseAppendAction]
"""Option that may be given several times."""

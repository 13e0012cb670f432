"""Entries in the config.json of a model folder that only its scikit-learn estimator needs."""

from typing import Any, Final

NOTES: Final = "estimator"
"""Key of the entries, beside the task. Only folders that an estimator wrote have it."""


def noted(learned: Any, name: str, default: Any) -> Any:
    """Return an entry that a model folder stores for its estimator; the default where no entry has its type."""
    notes = learned.saved.extra.get(NOTES)
    value = notes.get(name, default) if isinstance(notes, dict) else default
    return value if isinstance(value, type(default)) else default

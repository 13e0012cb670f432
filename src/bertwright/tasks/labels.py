"""Label names of labelled data, before a model folder stores them."""

from bertwright.model.hf_config import UNWRITABLE
from bertwright.tables.bad_rows import BadRow


def checked_label(label: str, location: str) -> str:
    """Return a label. Raises BadRow, which names the location, for one that a model folder cannot store."""
    if UNWRITABLE.search(label):
        raise BadRow(
            "with a control character in a label",
            f"{location}: expected a label in one line without control characters, got {label!r}",
        )
    return label

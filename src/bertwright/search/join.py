"""segments of an index → one segment with the rows that are not removed; files without an entry are deleted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bertwright.console import Status
from bertwright.errors import InputError
from bertwright.portable import remove_unused
from bertwright.search.approximate import LEAST_ROWS
from bertwright.search.index_files import (
    SEGMENT_FILE,
    IndexManifest,
    Segment,
    new_segment,
    next_number,
    segment_entry,
    with_lists,
)

_BLOCK: Final = 4096
"""Number of rows in memory at a time."""


def joined(folder: Path, manifest: IndexManifest, segments: Sequence[Segment]) -> IndexManifest:
    """Write the rows of all segments as one segment, in their order; return the manifest with it alone.

    The lists of an approximate index are made anew. Raises InputError for an index whose rows are all removed.
    """
    number = next_number(manifest)
    with new_segment(folder, number, manifest.width) as writer, Status(ends=False) as status:
        for segment in segments:
            kept = np.arange(len(segment)) if segment.kept is None else np.flatnonzero(segment.kept)
            for begin in range(0, len(kept), _BLOCK):
                chosen = kept[begin : begin + _BLOCK]
                writer.write(segment.vectors[chosen], [segment.row(row) for row in chosen.tolist()])
                status.update(f"{writer.num_rows:,} rows are joined")
        if not writer.num_rows:
            raise InputError(f"{folder}: all rows are removed, so there is nothing to join; build the index again")
    entry = segment_entry(folder, number, writer.num_rows)
    if manifest.approximate and entry.rows >= LEAST_ROWS:
        entry = with_lists(folder, number, entry)
    return manifest.model_copy(update={"segments": (entry,)})


def delete_unused(folder: Path, manifest: IndexManifest) -> None:
    """Delete files of segments without an entry in the manifest. A search that has them open keeps their content.

    Windows keeps the file as well, until the index is changed again.
    """
    used = {file.name for entry in manifest.segments for file in entry.files}
    for path in folder.iterdir():
        if SEGMENT_FILE.fullmatch(path.name) and path.name not in used:
            remove_unused(path)

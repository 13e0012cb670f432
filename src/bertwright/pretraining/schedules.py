"""Schedules of a run: typed text → phases, and fractions of the steps → the steps of each phase.

This module is read for --help, so it imports no torch.
"""

from collections import Counter
from collections.abc import Sequence

from bertwright.errors import InputError


def parse_lengths(text: str) -> list[dict[str, float]]:
    """Return the phases of '128:0.9,512:0.1', before they are validated; '128' stands for '128:1'."""
    try:
        parts = (part.partition(":") for part in text.split(","))
        return [{"length": int(length), "share": float(share) if colon else 1.0} for length, colon, share in parts]
    except ValueError:
        raise InputError(f"--lengths {text!r}: expected LENGTH:FRACTION,… such as 128:0.9,512:0.1") from None


def parse_mask_schedule(text: str) -> list[dict[str, float]]:
    """Return the phases of '0.3:0.5,0.15:0.3,0.05:0.2', before they are validated."""
    try:
        parts = (part.split(":") for part in text.split(","))
        return [{"masked": float(masked), "share": float(share)} for masked, share in parts]
    except ValueError:
        raise InputError(
            f"--mask-schedule {text!r}: expected FRACTION-OF-TOKENS:FRACTION-OF-STEPS,… such as 0.3:0.5,0.15:0.5"
        ) from None


def parse_batch_schedule(text: str) -> list[dict[str, float]]:
    """Return the phases of '16:0.2,32:0.3,64:0.5', before they are validated."""
    try:
        parts = (part.split(":") for part in text.split(","))
        return [{"rows": int(rows), "share": float(share)} for rows, share in parts]
    except ValueError:
        raise InputError(
            f"--batch-schedule {text!r}: expected ROWS:FRACTION-OF-STEPS,… such as 16:0.2,32:0.3,64:0.5"
        ) from None


def parse_snapshots(text: str) -> list[float]:
    """Return the fractions of '0.1,0.5'. Raises InputError where one is no number between 0 and 1."""
    try:
        fractions = [float(part) for part in text.split(",")]
    except ValueError:
        fractions = []
    if not fractions or not all(0 < fraction < 1 for fraction in fractions):
        raise InputError(f"--snapshots {text!r}: expected fractions of the steps between 0 and 1, such as 0.1,0.5")
    return fractions


def share_bounds(shares: Sequence[float], steps: int) -> list[tuple[int, int]]:
    """Return (first step, end) of each phase of a run of `steps` steps; shares: the fraction of the steps of each."""
    fractions = [sum(shares[: index + 1]) for index in range(len(shares))]
    ends = [*(round(fraction * steps) for fraction in fractions[:-1]), steps]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def rows_before(bounds: Sequence[tuple[int, int]], sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of rows before each phase, in earlier phases of its length.

    bounds: (first step, end) of each phase. sizes: (length of a row, rows of a step) of each phase.
    """
    next_rows, firsts = Counter[int](), []
    for (begin, end), (length, rows) in zip(bounds, sizes, strict=True):
        firsts.append(next_rows[length])
        next_rows[length] += (end - begin) * rows
    return firsts


def shares_of_longer_run(shares: Sequence[float], steps: int, *, longer: int) -> list[float]:
    """Return the shares with which a run of `longer` steps has the phases of a run of `steps` steps at the same steps.

    The last phase takes the additional steps.
    """
    ends = [min(end, longer) / longer for _, end in share_bounds(shares, steps)[:-1]]
    return [end - begin for begin, end in zip([0.0, *ends], [*ends, 1.0], strict=True)]

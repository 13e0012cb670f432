"""… → task: what becomes of a text, or of a pair, that has more tokens than fit.

Three ways: cut the end off (`truncate`), give up the middle (`head-tail`: what decides a label often stands where a
text begins or ends), or make several rows of it that overlap by half (`windows`). All take time and memory in
proportion to the number of tokens. The room is what the special tokens leave.
"""

from collections.abc import Sequence
from typing import Literal

Long = Literal["truncate", "head-tail", "windows"]
Part = tuple[list[int], list[int]]


def shortened(a: Sequence[int], b: Sequence[int], room: int, *, middle: bool) -> Part:
    """Both sides, together of at most `room` tokens; the longer one gives way first, the second on ties.

    From its end, as in the original's classifier, or from its middle: a quarter of what remains is then its beginning.
    """
    keep_a, keep_b = _fit(len(a), len(b), room)
    cut = _without_middle if middle else _without_end
    return cut(a, keep_a), cut(b, keep_b)


def windows(a: Sequence[int], b: Sequence[int], room: int) -> tuple[list[Part], bool]:
    """Rows of at most `room` tokens that together hold everything, and whether something is lost all the same.

    Each window begins half a window after the one before. Of a pair, the side that takes up more than half of the room
    is cut into windows, and the other one stands whole in each row; where both do, the first is cut to half the room.
    """
    half = room // 2
    if len(a) + len(b) <= room:
        return [(list(a), list(b))], False
    if len(b) <= half < len(a):
        return [(part, list(b)) for part in _windows(a, room - len(b))], False
    kept = list(a[:half])
    return [(kept, part) for part in _windows(b, room - len(kept))], len(a) > half


def _windows(tokens: Sequence[int], width: int) -> list[list[int]]:
    stride = max(1, width // 2)
    return [list(tokens[begin : begin + width]) for begin in range(0, max(1, len(tokens) - width + stride), stride)]


def _fit(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """How many tokens of each side remain, in closed form: until both are equal the longer, then B and A in turn."""
    keep_a = min(num_a, max((room + 1) // 2, room - num_b))
    return keep_a, min(num_b, room - keep_a)


def _without_end(tokens: Sequence[int], keep: int) -> list[int]:
    return list(tokens[:keep])


def _without_middle(tokens: Sequence[int], keep: int) -> list[int]:
    if keep >= len(tokens):
        return list(tokens)
    head = keep // 4
    return [*tokens[:head], *tokens[len(tokens) - (keep - head) :]]

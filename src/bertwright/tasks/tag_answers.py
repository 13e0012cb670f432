"""task → prediction: tags written beside the words they are of, entities with their places in a text (paper §5.3)."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.errors import InputError
from bertwright.tasks.conll import Lines, cells_of, is_aside, objects_of, separator_of, starts_document
from bertwright.tasks.entities import OUTSIDE, entities_of, parts
from bertwright.tasks.tagging import Tagged, TaggingTask, possible


def tagged_lines(task: TaggingTask, lines: Lines, tagged: Tagged) -> Iterator[str]:
    """The lines of a file with their tags: one more column on the right, or the field `tags` of JSON lines.

    Comments and empty lines stay as they are; the lines between documents are tagged O where there are entities. Where
    JSON lines have `tags` of their own, the field is called `predicted_tags`. Rows of a .conllu file that are no
    words get "_". What is written is possible in the scheme.
    """
    if lines.format == "jsonl":
        for (number, fields), tags in zip(objects_of(lines), tagged.tags, strict=True):
            name = "predicted_tags" if "tags" in fields else "tags"
            if name in fields:
                raise InputError(f"{lines.source}:{number}: already has a field '{name}'; rename it first")
            yield json.dumps({**fields, name: list(possible(task, tags))}, ensure_ascii=False) + "\n"
        return
    separator = separator_of(lines)
    names = iter([tag for tags in tagged.tags for tag in possible(task, tags)])
    for number, cells in cells_of(lines):
        line = lines.lines[number - 1]
        if not cells or (starts_document(cells) and task.scheme == "plain"):
            yield line
            continue
        bare = line.rstrip("\r\n")
        tag = OUTSIDE if starts_document(cells) else "_" if is_aside(lines, cells) else next(names)
        yield (bare if separator == "\t" else bare.rstrip(" ")) + separator + tag + (line[len(bare) :] or "\n")


def text_answer(
    task: TaggingTask,
    text: str,
    places: Sequence[tuple[int, int]],
    tags: Sequence[str],
    probabilities: NDArray[np.float64],
) -> dict[str, Any]:
    """A text with its entities; for plain tags with its words.

    places           (first, one past last) character of each word
    probabilities    of each word's tag; an entity's is the product of its words'
    """
    scheme = task.learned_scheme
    name, kind = ("words", "tag") if scheme == "plain" else ("entities", "type")
    found = []
    for entity in entities_of(tags, scheme):
        start, end = places[entity.start][0], places[entity.end - 1][1]
        probability = round(float(probabilities[entity.start : entity.end].prod()), 6)
        found.append(
            {kind: entity.type, "start": start, "end": end, "text": text[start:end], "probability": probability}
        )
    return {"text": text, name: found}


def check_columns(task: TaggingTask, lines: Lines) -> None:
    """InputError where a .txt file or standard input could as well be plain text.

    That is where rows of several columns are parted by spaces and do not end with tags of this model.
    """
    if lines.format == "jsonl" or not lines.source.endswith((".txt", "standard input")) or separator_of(lines) == "\t":
        return
    known = {name for label in task.labels for name in (label, parts(label)[1]) if name}
    for number, cells in cells_of(lines):
        if cells and not starts_document(cells) and len(cells) > 1 and not {cells[-1], parts(cells[-1])[1]} & known:
            raise InputError(
                f"{lines.source}:{number}: {' '.join(cells)!r} may be plain text or a row of columns: say --raw for "
                "one text a line; part columns by tabs, or name the file .conll"
            )

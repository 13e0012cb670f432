"""… → task: which file of a folder is trained on and which is measured on, by the words in their names (paper §5.3).

train.txt, eng.train, en_x-train.conll are training files; dev, devel, val, valid, validation and testa name a dev file.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.files import OPENERS
from bertwright.tasks.classification.examples import split_rows
from bertwright.tasks.tagging.conll import (
    JSON_ENDINGS,
    Lines,
    Sentences,
    cells_of,
    is_aside,
    objects_of,
    separator_of,
    starts_document,
)
from bertwright.tasks.tagging.entities import OUTSIDE, entities_of, parts
from bertwright.tasks.tagging.spec import Tagged, TaggingTask, possible

Role = Literal["train", "dev", "test", "other"]
ENDINGS: Final = (
    *(".conll", ".conllu", ".txt", ".tsv", ".bio", ".iob", ".iob1", ".iob2", ".iobes", ".bioes", ".ner", ".pos"),
    *(".train", ".dev", ".valid", ".test", ".testa", ".testb"),
    *JSON_ENDINGS,
)
WORDS: Final[dict[str, Role]] = {
    "train": "train",
    **dict.fromkeys(("dev", "devel", "val", "valid", "validation", "testa"), "dev"),
    **dict.fromkeys(("test", "testb"), "test"),
}


def tag_train_file(data: Path) -> Path:
    """The training file: `data` itself, or the folder's only one whose name has the word train.

    A file of no role at all is taken where it is alone, which is said. InputError where there is none, or a choice.
    """
    if not data.is_dir():
        return data
    named = _only(data, "train")
    if named:
        return named
    lone = _only(data, "other")
    if lone is None:
        names = ", ".join(path.name for path in _files(data)) or "no such file at all"
        raise InputError(
            f"{data}: there is no training file (train.txt, train.conll, train.jsonl …); there is: {names}"
        )
    say(f"{data} holds no file named train: training on {lone.name}")
    return lone


def tag_dev_file(data: Path) -> Path | None:
    """The dev file of a folder; None where it has none, or where `data` is a file."""
    return _only(data, "dev") if data.is_dir() else None


def split_sentences(sentences: Sentences) -> tuple[Sentences, Sentences]:
    """Cut (train, dev): a tenth for dev, whole documents where there are several, else whole sentences; which is said.

    Equal ones stay on one side, and the choice depends on the texts alone.
    """
    texts = [" ".join(words) for words in sentences.words]
    documents = list(dict.fromkeys(sentences.documents or ()))
    if len(documents) < 2:
        say(f"{sentences.source}: a tenth of its sentences, chosen by their words, is kept for measuring")
        train, dev = split_rows(texts, sentences.source)
        return sentences.select(train), sentences.select(dev)
    assert sentences.documents is not None
    say(f"{sentences.source}: a tenth of its {len(documents)} documents, chosen by their words, is kept for measuring")
    whole: dict[int, list[str]] = {document: [] for document in documents}
    for text, document in zip(texts, sentences.documents, strict=True):
        whole[document].append(text)
    _, measured = split_rows(["\n".join(part) for part in whole.values()], sentences.source)
    kept = {documents[place] for place in measured}
    sides = [row for row, document in enumerate(sentences.documents) if document not in kept]
    dev = [row for row, document in enumerate(sentences.documents) if document in kept]
    return sentences.select(sides), sentences.select(dev)


def _only(folder: Path, role: Role) -> Path | None:
    """The one file of a role, None where there is none; InputError where there are several."""
    found = [path for path in _files(folder) if _role(path) == role]
    if len(found) > 1:
        raise InputError(f"{folder}: which one? {', '.join(path.name for path in found)}; keep one or name the file")
    return found[0] if found else None


def _role(path: Path) -> Role:
    roles = {WORDS[word] for word in re.split(r"[^a-z0-9]+", path.name.lower()) if word in WORDS}
    if len(roles) > 1:
        raise InputError(f"{path}: its name says {' and '.join(sorted(roles))}; rename it or name the file")
    return roles.pop() if roles else "other"


def _files(folder: Path) -> list[Path]:
    """The files that may be read, in alphabetical order."""
    return sorted(
        path
        for path in folder.iterdir()
        if (path.with_suffix("") if path.suffix in OPENERS else path).suffix in ENDINGS
        and not path.name.startswith(".")
    )


# task → prediction: tags written beside the words they are of, entities with their places in a text (paper §5.3).


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

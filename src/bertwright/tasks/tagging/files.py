"""folder → training and validation files of tagged sentences; sentences with tags → lines to write (paper §5.3).

The words in a file's name decide its role. Training: train.txt, eng.train, en_x-train.conll. Validation: dev, devel,
val, valid, validation and testa.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.files import only_file, table_ending
from bertwright.tables.json_values import json_text
from bertwright.tasks.classification.split import split_rows
from bertwright.tasks.tagging.conll import (
    JSON_ENDINGS,
    Lines,
    Sentences,
    cells_of,
    is_no_word,
    objects_of,
    starts_document,
)
from bertwright.tasks.tagging.entities import OUTSIDE, entities_of, parts
from bertwright.tasks.tagging.spec import Tagged, TaggingTask, possible
from bertwright.text.base_tokenizer import BaseTokenizer

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


def sentences_of_texts(
    tokenizer: BaseTokenizer, texts: Sequence[str], source: str
) -> tuple[list[list[tuple[int, int]]], Sentences]:
    """Return the (first, one past last) character of the words of each text, and the texts as sentences of words."""
    spans = tokenizer.words(texts)
    words = tuple(tuple(text[begin:end] for begin, end in row) for text, row in zip(texts, spans, strict=True))
    lines = tuple((number,) * max(1, len(row)) for number, row in enumerate(spans, 1))
    return spans, Sentences(source, words, tags=None, lines=lines)


def tag_train_file(data: Path) -> Path:
    """Return the training file: `data` itself, or the folder's only file with the word train in its name.

    Without it the only file whose name has no role is used, and printed. Raises InputError for none and for several.
    """
    if not data.is_dir():
        return data
    named = _file_with_role(data, "train")
    if named:
        return named
    other = _file_with_role(data, "other")
    if other is None:
        names = ", ".join(path.name for path in _files(data)) or "no such file"
        raise InputError(f"{data}: expected a training file (train.txt, train.conll, train.jsonl …), found {names}")
    say(f"{data} has no file named train: training on {other.name}")
    return other


def tag_dev_file(data: Path) -> Path | None:
    """Return the validation file of a folder; None where there is none, or where `data` is a file."""
    return _file_with_role(data, "dev") if data.is_dir() else None


def split_tagged(sentences: Sentences) -> tuple[Sentences, Sentences]:
    """Return (train, validation); validation has a tenth of the documents, or of the sentences of a single document.

    This is printed. Equal texts are all in one of the two, and every tag stays in train. The choice depends on words
    and tags alone.
    """
    texts = [" ".join(words) for words in sentences.words]
    documents = list(dict.fromkeys(sentences.documents or ()))
    if len(documents) < 2:
        say(f"{sentences.source}: a tenth of its sentences, chosen by their words, is kept for validation")
        train_rows, validation_rows = split_rows(texts, sentences.source, labels=sentences.tags)
        return sentences.select(train_rows), sentences.select(validation_rows)
    assert sentences.documents is not None
    say(f"{sentences.source}: a tenth of its {len(documents)} documents, chosen by their words, is kept for validation")
    by_document: dict[int, list[str]] = {document: [] for document in documents}
    tags: dict[int, set[str]] = {document: set() for document in documents}
    assert sentences.tags is not None
    for text, document, of_sentence in zip(texts, sentences.documents, sentences.tags, strict=True):
        by_document[document].append(text)
        tags[document] |= set(of_sentence)
    parts_of_text = ["\n".join(part) for part in by_document.values()]
    _, chosen = split_rows(parts_of_text, sentences.source, labels=list(tags.values()))
    kept = {documents[index] for index in chosen}
    is_kept = np.array([document in kept for document in sentences.documents])
    return sentences.select(np.flatnonzero(~is_kept)), sentences.select(np.flatnonzero(is_kept))


def _file_with_role(folder: Path, role: Role) -> Path | None:
    """Return the only file with this role, or None. Raises InputError for several."""
    return only_file(folder, [path for path in _files(folder) if _role(path) == role], "file")


def _role(path: Path) -> Role:
    roles = {WORDS[word] for word in re.split(r"[^a-z0-9]+", path.name.lower()) if word in WORDS}
    if len(roles) > 1:
        raise InputError(f"{path}: the name stands for {' and '.join(sorted(roles))}; rename the file or give its path")
    return roles.pop() if roles else "other"


def _files(folder: Path) -> list[Path]:
    """Return the files with a known ending, in alphabetical order."""
    paths = [path for path in folder.iterdir() if table_ending(path) in ENDINGS]
    return sorted(path for path in paths if not path.name.startswith("."))


def tagged_lines(task: TaggingTask, lines: Lines, tagged: Tagged) -> Iterator[str]:
    """Yield the lines of a file with their tags: one more column on the right, or the field `tags` of JSON lines.

    Comments and empty lines stay unchanged. Lines between documents get the tag O where tags are entities. Where JSON
    lines already have `tags`, the new field is `predicted_tags`. Rows of a .conllu file that are not words get "_". The
    scheme allows all written tags.
    """
    if lines.format == "jsonl":
        for (number, fields), tags in zip(objects_of(lines), tagged.tags, strict=True):
            name = "predicted_tags" if "tags" in fields else "tags"
            if name in fields:
                raise InputError(f"{lines.source}:{number}: the field '{name}' exists already; rename it first")
            yield json_text({**fields, name: list(possible(task, tags))}) + "\n"
        return
    names = iter([tag for tags in tagged.tags for tag in possible(task, tags)])
    for number, cells in cells_of(lines):
        line = lines.lines[number - 1]
        if not cells or (starts_document(cells) and task.scheme == "plain"):
            yield line
            continue
        bare = line.rstrip("\r\n")
        tag = OUTSIDE if starts_document(cells) else "_" if is_no_word(lines, cells) else next(names)
        yield (
            (bare if lines.separator == "\t" else bare.rstrip(" \t"))
            + lines.separator
            + tag
            + (line[len(bare) :] or "\n")
        )


def text_answer(
    task: TaggingTask,
    text: str,
    spans: Sequence[tuple[int, int]],
    tags: Sequence[str],
    probabilities: NDArray[np.float64],
) -> dict[str, Any]:
    """Return a text with its entities, or with its words where tags are plain.

    spans            (first, one past last) character of each word
    probabilities    probability of each word's tag; that of an entity is the product over its words
    """
    scheme = task.learned_scheme
    name, kind = ("words", "tag") if scheme == "plain" else ("entities", "type")
    answers = []
    for entity in entities_of(tags, scheme):
        start, end = spans[entity.start][0], spans[entity.end - 1][1]
        probability = round(float(probabilities[entity.start : entity.end].prod()), 6)
        answers.append(
            {kind: entity.type, "start": start, "end": end, "text": text[start:end], "probability": probability}
        )
    return {"text": text, name: answers}


def check_columns(task: TaggingTask, lines: Lines) -> None:
    """Raise InputError where a .txt file or standard input may be plain text instead of columns.

    This may be so where spaces separate the columns and the last column has a tag that the model does not have.
    """
    if (
        lines.format == "jsonl"
        or not lines.source.lower().endswith((".txt", "standard input"))
        or lines.separator == "\t"
    ):
        return
    known = {name for label in task.labels for name in (label, parts(label)[1]) if name}
    for number, cells in cells_of(lines):
        if cells and not starts_document(cells) and len(cells) > 1 and not {cells[-1], parts(cells[-1])[1]} & known:
            raise InputError(
                f"{lines.source}:{number}: {' '.join(cells)!r} may be plain text or a row of columns; use --raw for "
                "one text per line; for columns use tabs, or name the file .conll"
            )

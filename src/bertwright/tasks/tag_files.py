"""… → task: which file of a folder is trained on and which is measured on, by the words in their names (paper §5.3).

train.txt, eng.train, en_x-train.conll are training files; dev, devel, val, valid, validation and testa name a dev file.
"""

import re
from pathlib import Path
from typing import Final, Literal

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tasks.conll import JSON_ENDINGS, Sentences
from bertwright.tasks.examples import split_rows
from bertwright.tasks.table_files import OPENERS

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

"""raw text → a task without labels by hand: which document does this sentence come from? (for a person's own text)"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.recipes.library_task import Example, LibraryTask
from bertwright.text.documents import TextSettings, find_inputs, read_all
from bertwright.text.sentences import split_sentences

_MOST_BYTES = 30_000_000
"""Text that a few minutes can use; the rest of a larger corpus is left for a longer run."""
_MOST_DOCUMENTS = 8
_WORDS = range(6, 60)
_TEST, _DEV = 15, 10


@dataclass(frozen=True)
class OwnText:
    """Documents to pre-train on, as lists of sentences, and the task made from others (None: too few)."""

    documents: tuple[tuple[str, ...], ...]
    task: LibraryTask | None


def read_own_text(corpus: Path, *, train_sentences: int, seed: int) -> OwnText:
    """Read a person's text and set its longest documents (at most 8, a fifth of them at most) aside for the task."""
    settings = TextSettings()
    documents: list[tuple[str, ...]] = []
    size = 0
    for document in read_all(find_inputs([corpus]), settings):
        documents.append(tuple(split_sentences(document, settings)))
        size += sum(len(sentence.encode()) for sentence in documents[-1])
        if size > _MOST_BYTES:
            say(f"{corpus}: the first {size / 1e6:.0f} MB are used; `bertwright corpus build` takes all of it")
            break
    if len(documents) < 2:
        raise InputError(f"{corpus}: holds one document; at least two are needed (blank lines part documents)")
    wanted = train_sentences + _DEV + _TEST
    usable = {index: _usable(sentences) for index, sentences in enumerate(documents)}
    long = sorted(
        (index for index in usable if len(usable[index]) >= wanted), key=lambda index: (-len(usable[index]), index)
    )
    chosen = long[: min(_MOST_DOCUMENTS, len(documents) // 5)]
    if len(chosen) < 2:
        say(
            f"{corpus}: too few documents of {wanted} sentences for a task of their own; pre-training alone is measured"
        )
        return OwnText(tuple(documents), None)
    kept = tuple(sentences for index, sentences in enumerate(documents) if index not in set(chosen))
    return OwnText(kept, _task({f"document-{index + 1}": usable[index] for index in chosen}, train_sentences, seed))


def write_documents(documents: Sequence[Sequence[str]], path: Path) -> None:
    """Write one sentence per line, documents parted by blank lines."""
    with atomic_file(path) as stream:
        for sentences in documents:
            stream.write(("\n".join(sentences) + "\n\n").encode())


def _usable(sentences: Sequence[str]) -> list[str]:
    once = dict.fromkeys(" ".join(sentence.split()) for sentence in sentences)
    return [sentence for sentence in once if len(sentence.split()) in _WORDS and '"' not in sentence]


def _task(sentences: dict[str, list[str]], train_sentences: int, seed: int) -> LibraryTask:
    parts: dict[str, list[Example]] = {"test": [], "dev": [], "train": []}
    for label, texts in sentences.items():
        drawn = random.Random(f"{seed} {label}").sample(texts, _TEST + _DEV + train_sentences)
        for name, begin, count in (("test", 0, _TEST), ("dev", _TEST, _DEV), ("train", _TEST + _DEV, train_sentences)):
            parts[name] += [Example(text, label) for text in drawn[begin : begin + count]]
    for name, examples in parts.items():
        random.Random(f"{seed} {name}").shuffle(examples)
    return LibraryTask(
        labels=tuple(sentences),
        train=tuple(parts["train"]),
        dev=tuple(parts["dev"]),
        test=tuple(parts["test"]),
        held_out=tuple(sentences),
        left_out=(),
    )

"""raw text → the quickstart's task: the library that a sentence describes (one sentence, as in paper §4.1).

The names of the libraries are masked, so that the label follows from the other words. Test and dev sentences come from
modules that the corpus leaves out: pre-training sees neither them nor their neighbours. A sentence of two modules, of
one library or of two, is in no split.

For a person's own text the label is the document that a sentence comes from.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.quickstart.docstrings import STANDARD_LIBRARY, Documentation, Library, key
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_all
from bertwright.text.sentences import split_sentences

MASKED_NAMES: Mapping[str, tuple[str, ...]] = {
    STANDARD_LIBRARY: ("python", "standard library"),
    "torch": ("pytorch", "torch"),
    "numpy": ("numpy", "np"),
    "scipy": ("scipy",),
    "sklearn": ("scikit-learn", "scikit learn", "sklearn", "scikits"),
    "matplotlib": ("matplotlib", "pyplot", "pylab", "mpl", "plt"),
    "sympy": ("sympy",),
    "networkx": ("networkx", "nx"),
    "pyarrow": ("apache arrow", "pyarrow", "arrow", "pa"),
    "numba": ("numba", "nb"),
    "pydantic": ("pydantic",),
}
"""Library → names that are masked. Libraries close to those of the task are among them."""
LIBRARIES = (STANDARD_LIBRARY, "torch", "sklearn", "matplotlib", "sympy", "networkx", "pyarrow", "pydantic")
"""Labels of the task: libraries with much text about different subjects."""
MASK = "library"
_ALPHANUMERIC = re.compile("[a-z0-9]+")
_WHOLE_WORDS = frozenset({"np", "mpl", "plt", "nx", "arrow", "pa", "nb"})
"""Names that are masked as whole words only (not in arrowstyle); others are masked inside words too (TorchScript)."""
_NUM_WORDS = range(12, 41)
"""Numbers of words that a sentence of the task may have."""
_MOST_HELD_OUT = 12
"""Largest number of test or dev sentences of a module; large, so that the corpus loses few modules."""
_MOST_TRAIN = 3
"""Largest number of training sentences of a module; small, so that they cover the whole library."""
_LARGEST_FRACTION = 0.03
"""Largest fraction of its library's sentences of a test or dev module; larger modules stay in the corpus."""
_MOST_BYTES = 30_000_000
"""Largest size of a person's text; a few minutes cannot use more."""
_MOST_DOCUMENTS = 8
_DOCUMENT_WORDS = range(6, 60)
_TEST, _DEV = 15, 10
"""Numbers of test and dev sentences of a document."""


@dataclass(frozen=True)
class Example:
    """A sentence with masked names, and its label: the library whose documentation it stands in."""

    sentence: str
    label: str


@dataclass(frozen=True)
class LibraryTask:
    """Balanced splits; held_out: the modules of dev and test, which the corpus leaves out."""

    labels: tuple[str, ...]
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """Sentences of one library in each split, and its modules that the corpus leaves out."""

    train: list[str]
    dev: list[str]
    test: list[str]
    held_out: list[str]


def make_task(
    documentation: Documentation,
    *,
    train_sentences: int,
    test_sentences: int,
    seed: int,
    dev_sentences: int = 25,
) -> LibraryTask:
    """Draw the task from the documentation; numbers of sentences are per library.

    The same documentation and seed give the same task. Raises InputError where fewer than two of `LIBRARIES` have
    enough sentences.
    """
    chosen = [library for library in documentation.libraries if library.name in LIBRARIES]
    mask = masker()
    masked = {
        module.name: {key(text): text for text in map(mask, module.sentences)} for module in documentation.modules
    }
    # Counted over all libraries: a sentence of two modules is boilerplate, or has no clear label.
    num_modules = Counter(each for texts in masked.values() for each in texts)
    parts: dict[str, _Part] = {}
    for library in chosen:
        usable = {
            module.name: [
                text for each, text in masked[module.name].items() if num_modules[each] == 1 and _is_usable(text)
            ]
            for module in library.modules
        }
        part = _draw(library, usable, wanted=(test_sentences, dev_sentences, train_sentences), seed=seed)
        if part is not None:
            parts[library.name] = part
    if len(parts) < 2:
        raise InputError(
            f"expected at least two of the libraries {', '.join(LIBRARIES)} with {train_sentences} + {dev_sentences} "
            f"+ {test_sentences} sentences in separate modules, got {len(parts)}; install more of these libraries, or "
            "give a text of your own with --corpus"
        )
    if too_small := [library.name for library in chosen if library.name not in parts]:
        say(f"libraries with too few sentences are no classes of the task: {', '.join(too_small)}")
    return LibraryTask(
        labels=tuple(parts),
        train=_shuffled({name: part.train for name, part in parts.items()}, f"{seed} train"),
        dev=_shuffled({name: part.dev for name, part in parts.items()}, f"{seed} dev"),
        test=_shuffled({name: part.test for name, part in parts.items()}, f"{seed} test"),
        held_out=tuple(module for part in parts.values() for module in part.held_out),
    )


def write_task(task: LibraryTask, folder: Path) -> None:
    """Write train.tsv, dev.tsv and test.tsv with the columns sentence and label, unquoted, into an existing folder."""
    for split in ("train", "dev", "test"):
        lines = ["sentence\tlabel"]
        lines += [f"{example.sentence}\t{example.label}" for example in getattr(task, split)]
        with atomic_file(folder / f"{split}.tsv") as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())


def masker() -> Callable[[str], str]:
    """Return a function that replaces all `MASKED_NAMES`, in upper or lower case, by the word "library"."""
    every = sorted({name for forms in MASKED_NAMES.values() for name in forms}, key=lambda name: (-len(name), name))
    inside = [name for name in every if name not in _WHOLE_WORDS]
    alone = [name for name in every if name in _WHOLE_WORDS]
    long = re.compile("|".join(map(re.escape, inside)), re.IGNORECASE)
    short = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(alone)})(?![a-z0-9])", re.IGNORECASE)

    def mask(text: str) -> str:
        lower = text.lower()  # tested first, because most sentences name no library, and sub is ten times slower
        if any(name in lower for name in inside):
            text = long.sub(MASK, text)
        if not _WHOLE_WORDS.isdisjoint(_ALPHANUMERIC.findall(lower)):
            text = short.sub(MASK, text)
        return text

    return mask


def _is_usable(text: str) -> bool:
    """Return whether a sentence can be an example: of fit length, and without quotes, on which TSV readers differ."""
    return text.count(" ") + 1 in _NUM_WORDS and text[-1] != ":" and '"' not in text


def _draw(
    library: Library, usable: Mapping[str, list[str]], *, wanted: tuple[int, int, int], seed: int
) -> _Part | None:
    """Take whole modules for test, then for dev, and train sentences from the rest; None where they are too few.

    wanted: numbers of test, dev and train sentences.
    """
    source = random.Random(f"{seed} {library.name}")
    names = [name for name, texts in usable.items() if texts]
    source.shuffle(names)
    limit = _LARGEST_FRACTION * sum(len(module.sentences) for module in library.modules)
    small = {module.name for module in library.modules if len(module.sentences) <= max(limit, _MOST_HELD_OUT)}
    splits: list[list[str]] = []
    taken: list[str] = []
    for number, count in enumerate(wanted):
        training = number == len(wanted) - 1
        texts: list[str] = []
        for name in names:
            if len(texts) >= count:
                break
            if name in taken or not (training or name in small):
                continue
            most = _MOST_TRAIN if training else _MOST_HELD_OUT
            texts += source.sample(usable[name], min(len(usable[name]), most))
            if not training:
                taken.append(name)
        if len(texts) < count:
            return None
        splits.append(texts[:count])
    test, dev, train = splits
    return _Part(train=train, dev=dev, test=test, held_out=taken)


def _shuffled(sentences: Mapping[str, list[str]], seed: str) -> tuple[Example, ...]:
    """Return the sentences of all libraries as examples, shuffled by the seed."""
    examples = [Example(text, label) for label, texts in sentences.items() for text in texts]
    random.Random(seed).shuffle(examples)
    return tuple(examples)


@dataclass(frozen=True)
class OwnText:
    """A person's text: documents for pre-training, as sentences, and the task from other documents, None if too few."""

    documents: tuple[tuple[str, ...], ...]
    task: LibraryTask | None


def read_own_text(corpus: Path, *, train_sentences: int, seed: int) -> OwnText:
    """Read a person's text, and take its longest documents for the task: at most 8, and at most a fifth of them.

    Raises InputError for a text of one document.
    """
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
        raise InputError(f"{corpus}: expected two documents or more, got {len(documents)}; blank lines separate them")
    wanted = train_sentences + _DEV + _TEST
    usable = {index: _usable(sentences) for index, sentences in enumerate(documents)}
    long = sorted(
        (index for index in usable if len(usable[index]) >= wanted), key=lambda index: (-len(usable[index]), index)
    )
    chosen = long[: min(_MOST_DOCUMENTS, len(documents) // 5)]
    if len(chosen) < 2:
        say(f"{corpus}: too few documents of {wanted} sentences for a task; only pre-training is measured")
        return OwnText(tuple(documents), None)
    kept = tuple(sentences for index, sentences in enumerate(documents) if index not in set(chosen))
    return OwnText(kept, _task({f"document-{index + 1}": usable[index] for index in chosen}, train_sentences, seed))


def _usable(sentences: Sequence[str]) -> list[str]:
    unique = dict.fromkeys(" ".join(sentence.split()) for sentence in sentences)
    return [sentence for sentence in unique if len(sentence.split()) in _DOCUMENT_WORDS and '"' not in sentence]


def _task(sentences: Mapping[str, list[str]], train_sentences: int, seed: int) -> LibraryTask:
    count = _TEST + _DEV + train_sentences
    drawn = {label: random.Random(f"{seed} {label}").sample(texts, count) for label, texts in sentences.items()}
    return LibraryTask(
        labels=tuple(sentences),
        train=_shuffled({label: texts[_TEST + _DEV :] for label, texts in drawn.items()}, f"{seed} train"),
        dev=_shuffled({label: texts[_TEST : _TEST + _DEV] for label, texts in drawn.items()}, f"{seed} dev"),
        test=_shuffled({label: texts[:_TEST] for label, texts in drawn.items()}, f"{seed} test"),
        held_out=tuple(sentences),
    )

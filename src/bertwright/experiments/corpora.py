"""text → corpora of an experiment: each is built once in the experiment's folder, or was built before."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertwright.console import say
from bertwright.corpus.build import build_corpus
from bertwright.corpus.manifest import MANIFEST, read_manifest
from bertwright.corpus.merge import shuffle_sentences
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.experiments.spec import TextOrder
from bertwright.files import read_object, write_json
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer, train_bpe
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_paragraphs
from bertwright.text.wordpiece import train_wordpiece

VocabularyKind = Literal["wordpiece", "bytepair"]
CorpusKind = tuple[VocabularyKind, TextOrder]
"""Kind of a corpus: its vocabulary, and the order of its text."""

_SOURCE_FILE = "made-of.json"
"""File beside the corpora that names the text from which they were built."""
_TITLES: Mapping[VocabularyKind, str] = {"wordpiece": "WordPiece", "bytepair": "byte-pair"}


@dataclass(frozen=True)
class Corpora:
    """Corpora of an experiment by kind.

    folders     folders of the corpora that are there
    missing     for each kind that is not there, the message that says why
    texts       inputs that are no corpus folders
    to_build    missing kinds that a run would build
    """

    folders: Mapping[CorpusKind, Path]
    missing: Mapping[CorpusKind, str]
    texts: tuple[str, ...] = ()
    to_build: frozenset[CorpusKind] = frozenset()


def make_corpora(
    inputs: Sequence[str], out: Path, *, vocab_size: int, kinds: Iterable[CorpusKind], build: bool
) -> Corpora:
    """Return the corpora of some kinds. A kind is taken from `inputs`, else from `out`, else built if `build` is true.

    inputs: texts as `bertwright corpus build` takes them, or corpus folders. vocab_size: number of pieces or merges.
    Raises InputError where the corpora in `out` were built from another text, and for two corpora of one vocabulary.
    """
    built, texts = _split_inputs(inputs)
    if texts and build:
        _note_text(out, texts)
    folders: dict[CorpusKind, Path] = {}
    missing: dict[CorpusKind, str] = {}
    to_build: set[CorpusKind] = set()
    for vocabulary, order in sorted(set(kinds)):
        documents = built.get(vocabulary) or out / f"{vocabulary}-{vocab_size}"
        if build and texts and not _is_built(documents):
            _build(texts, documents, vocabulary=vocabulary, vocab_size=vocab_size)
        if not _is_built(documents):
            no_input = f"--corpus: name a {_TITLES[vocabulary]} corpus, or the text to build it from"
            not_built = f"{documents} is not built yet, and --corpus {' '.join(texts)} is not a corpus folder"
            missing[vocabulary, order] = not_built if texts else no_input
            to_build |= {(vocabulary, order)} if texts else set()
            continue
        folder = documents if order == "documents" else _shuffled(documents, out)
        if build and not _is_built(folder):
            say(f"{folder}: shuffling the sentences of {documents}")
            shuffle_sentences(documents, folder)
        if _is_built(folder):
            folders[vocabulary, order] = folder
        else:
            missing[vocabulary, order] = f"its corpus {folder.name} is not built yet"
            to_build.add((vocabulary, order))
    return Corpora(folders, missing, tuple(texts), frozenset(to_build))


def _split_inputs(inputs: Sequence[str]) -> tuple[dict[VocabularyKind, Path], list[str]]:
    """Return the corpora among the inputs by their vocabulary, and the texts."""
    built: dict[VocabularyKind, Path] = {}
    texts: list[str] = []
    for name in inputs:
        if not _is_built(Path(name)):
            texts.append(name)
            continue
        is_bytepair = isinstance(Corpus.open(name).tokenizer, BPETokenizer)
        vocabulary: VocabularyKind = "bytepair" if is_bytepair else "wordpiece"
        if vocabulary in built:
            second = f"a second {_TITLES[vocabulary]} corpus beside {built[vocabulary]}"
            raise InputError(f"--corpus {name}: {second}; name one of each kind")
        built[vocabulary] = Path(name)
    return built, texts


def check_text(texts: Sequence[str], out: Path) -> list[str]:
    """Return the paths of the text from which the corpora in `out` are built.

    Raises InputError for absent inputs, and where the corpora there were built from another text.
    """
    path = out / _SOURCE_FILE
    paths = [str(Path(text).absolute()) if Path(text).exists() else text for text in texts]
    if not path.is_file():
        find_inputs(texts)
    elif (earlier := read_object(path).get("text")) != paths:
        names = ", ".join(earlier) if isinstance(earlier, list) else str(earlier)
        raise InputError(
            f"--corpus {' '.join(texts)}: the corpora in {out} were built from {names}; choose another --out"
        )
    return paths


def _note_text(out: Path, texts: Sequence[str]) -> None:
    """Check the text from which the corpora in `out` are built, and write its names beside them."""
    paths = check_text(texts, out)
    if not (out / _SOURCE_FILE).is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / _SOURCE_FILE, {"text": paths})


def _build(texts: Sequence[str], folder: Path, *, vocabulary: VocabularyKind, vocab_size: int) -> None:
    """Learn the vocabulary if there is none yet, and build the corpus; an interrupted build is resumed."""
    tokenizer_folder = folder.with_name(f"tokenizer-{folder.name}")
    if not tokenizer_folder.is_dir():
        say(f"{tokenizer_folder}: learning {vocab_size:,} {'merges' if vocabulary == 'bytepair' else 'pieces'}")
        paragraphs = read_paragraphs(find_inputs(texts), TextSettings())
        tokenizer: BaseTokenizer
        if vocabulary == "bytepair":
            tokenizer = train_bpe(paragraphs, merges=vocab_size)
        else:
            tokenizer = train_wordpiece(paragraphs, vocab_size=vocab_size)
        tokenizer.save(tokenizer_folder)
    say(f"{folder}: building the corpus")
    build_corpus(list(texts), tokenizer=tokenizer_folder, out=folder)


def _shuffled(documents: Path, out: Path) -> Path:
    """Return the folder for the corpus with the shuffled sentences of `documents`."""
    digest = hashlib.sha256(read_manifest(documents).fingerprint.encode()).hexdigest()[:8]
    return out / f"shuffled-{digest}"


def _is_built(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()

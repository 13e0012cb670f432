"""text → the corpora of an experiment: made once in its folder, or given ready-built."""

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
from bertwright.experiments.spec import Text
from bertwright.files import read_object, write_json
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer, train_bpe
from bertwright.text.documents import TextSettings, find_inputs, read_all
from bertwright.text.wordpiece import train_tokenizer

Pieces = Literal["wordpiece", "bytepair"]
Kind = tuple[Pieces, Text]
"""The vocabulary of a corpus, and what it keeps of the text."""

_NOTE = "made-of.json"
_WORDS: Mapping[Pieces, str] = {"wordpiece": "WordPiece", "bytepair": "byte-pair"}


@dataclass(frozen=True)
class Corpora:
    """What there is. missing: what to give, for what there is not."""

    folders: Mapping[Kind, Path]
    missing: Mapping[Kind, str]


def make_corpora(given: Sequence[str], out: Path, *, vocabulary: int, wanted: Iterable[Kind], make: bool) -> Corpora:
    """The wanted corpora below `out`: those given ready-built, those there already, and where `make`, new ones.

    given: inputs as `bertwright corpus build` takes them, or folders of built corpora. InputError where `out` was made
    of another text.
    """
    ready, texts = _sorted(given)
    if texts and make:
        _note_text(out, texts)
    folders: dict[Kind, Path] = {}
    missing: dict[Kind, str] = {}
    for pieces, text in sorted(set(wanted)):
        documents = ready.get(pieces) or out / f"{pieces}-{vocabulary}"
        if make and texts and not _is_built(documents):
            _build(texts, documents, pieces=pieces, vocabulary=vocabulary)
        if not _is_built(documents):
            asked = f"--corpus: name the text of a {_WORDS[pieces]} corpus, or such a corpus"
            unmade = f"{documents} is not made yet of --corpus {' '.join(texts)}, which is no corpus"
            missing[pieces, text] = unmade if texts else asked
            continue
        folder = documents if text == "documents" else _shuffled(documents, out)
        if make and not _is_built(folder):
            say(f"{folder}: the sentences of {documents}, shuffled")
            shuffle_sentences(documents, folder)
        if _is_built(folder):
            folders[pieces, text] = folder
        else:
            missing[pieces, text] = f"its corpus {folder.name} is not made yet"
    return Corpora(folders, missing)


def _sorted(given: Sequence[str]) -> tuple[dict[Pieces, Path], list[str]]:
    """Ready-built corpora by their vocabulary, and texts."""
    ready: dict[Pieces, Path] = {}
    texts: list[str] = []
    for name in given:
        if not _is_built(Path(name)):
            texts.append(name)
            continue
        pieces: Pieces = "bytepair" if isinstance(Corpus.open(name).tokenizer, BPETokenizer) else "wordpiece"
        if pieces in ready:
            raise InputError(f"--corpus {name}: {ready[pieces]} is a {_WORDS[pieces]} corpus already; name one of each")
        ready[pieces] = Path(name)
    return ready, texts


def _note_text(out: Path, texts: Sequence[str]) -> None:
    """Once made, the corpora stay what they are made of; InputError for another text."""
    path = out / _NOTE
    named = [str(Path(text).absolute()) if Path(text).exists() else text for text in texts]
    if not path.is_file():
        find_inputs(texts)  # what is not there is refused before it is noted
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, {"text": named})
        return
    there = read_object(path).get("text")
    if there != named:
        raise InputError(f"--corpus {' '.join(texts)}: the corpora in {out} are made of {there}; choose another --out")


def _build(texts: Sequence[str], folder: Path, *, pieces: Pieces, vocabulary: int) -> None:
    """Learn the vocabulary where there is none yet, and build the corpus; what was begun goes on."""
    tokenizer = folder.with_name(f"tokenizer-{folder.name}")
    if not tokenizer.is_dir():
        say(f"{tokenizer}: learning {vocabulary:,} {'merges' if pieces == 'bytepair' else 'pieces'}")
        sources = find_inputs(texts)
        paragraphs = (text for document in read_all(sources, TextSettings()) for text in document.paragraphs)
        made: BaseTokenizer
        if pieces == "bytepair":
            made = train_bpe(paragraphs, merges=vocabulary)
        else:
            made = train_tokenizer(paragraphs, vocab_size=vocabulary)
        made.save(tokenizer)
    say(f"{folder}: building the corpus")
    build_corpus(list(texts), tokenizer=tokenizer, out=folder)


def _shuffled(documents: Path, out: Path) -> Path:
    """Where the shuffled sentences of a corpus lie."""
    print_ = hashlib.sha256(read_manifest(documents).fingerprint.encode()).hexdigest()[:8]
    return out / f"shuffled-{print_}"


def _is_built(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()

"""text → corpora of an experiment: each is built once in the experiment's folder, or was built before.

The facts of each corpus are noted beside the corpora, so that a page can be written where no corpus is.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from bertwright.console import say
from bertwright.corpus.build import build_corpus
from bertwright.corpus.manifest import MANIFEST, read_manifest
from bertwright.corpus.merge import shuffle_sentences
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.experiments.spec import TEXT_ORDERS, TextOrder
from bertwright.files import read_object, write_json
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer, train_bpe
from bertwright.text.document import TextSettings
from bertwright.text.documents import absolute_name, find_inputs, read_paragraphs
from bertwright.text.wordpiece import train_wordpiece

VocabularyKind = Literal["wordpiece", "bytepair"]
CorpusKind = tuple[VocabularyKind, TextOrder]
"""Kind of a corpus: its vocabulary, and the order of its text."""

_SOURCE_FILE = "made-of.json"
"""File beside the corpora that names the text from which they were built."""
_TITLES: Mapping[VocabularyKind, str] = {"wordpiece": "WordPiece", "bytepair": "byte-pair"}


@dataclass(frozen=True)
class CorpusFacts:
    """Facts of a corpus that a page has: the name of its folder, its fingerprint, and its counts."""

    name: str
    fingerprint: str
    tokens: int
    documents: int
    vocab_size: int


@dataclass(frozen=True)
class Corpora:
    """Corpora of an experiment by kind.

    folders     folders of the corpora that are there; only a name where a corpus is known from its note
    facts       facts of the corpora by folder
    missing     for each kind that is not there, the message that says why
    texts       inputs that are no corpus folders
    to_build    missing kinds that a run would build
    """

    folders: Mapping[CorpusKind, Path]
    facts: Mapping[Path, CorpusFacts]
    missing: Mapping[CorpusKind, str]
    texts: tuple[str, ...] = ()
    to_build: frozenset[CorpusKind] = frozenset()


def make_corpora(
    inputs: Sequence[str],
    out: Path,
    *,
    vocab_size: int,
    kinds: Iterable[CorpusKind],
    build: bool,
    use_notes: bool = False,
) -> Corpora:
    """Return the corpora of some kinds. A kind is taken from `inputs`, else from `out`, else built if `build` is true.

    inputs: texts as `bertwright corpus build` takes them, or corpus folders. vocab_size: number of pieces or merges.
    use_notes: take a corpus that is not there from its note in `out`, if the note has the name of an input, or no input
    is named.
    Raises InputError where the corpora in `out` were built from another text, and for two corpora of one vocabulary.
    """
    built, texts = _split_inputs(inputs)
    if texts and build:
        _note_text(out, texts)
    notes = _read_notes(out) if use_notes else {}
    folders: dict[CorpusKind, Path] = {}
    facts: dict[Path, CorpusFacts] = {}
    missing: dict[CorpusKind, str] = {}
    to_build: set[CorpusKind] = set()
    for vocabulary, order in sorted(set(kinds)):
        kind = vocabulary, order
        default = out / f"{vocabulary}-{vocab_size}"
        documents = built.get(vocabulary) or default
        if build and texts and not _is_built(documents):
            _build(texts, documents, vocabulary=vocabulary, vocab_size=vocab_size)
        of_documents = _find_facts(documents, notes.get((vocabulary, "documents"), ()), texts, default=default.name)
        if of_documents is None:
            missing[kind] = _not_built(vocabulary, documents, texts, notes)
            to_build |= {kind} if texts else set()
            continue
        if not _is_built(documents):
            documents = Path(of_documents.name)
        folder = documents if order == "documents" else out / _shuffled_name(of_documents.fingerprint)
        if build and not _is_built(folder):
            say(f"{folder}: shuffling the sentences of {documents}")
            shuffle_sentences(documents, folder)
        of_folder: CorpusFacts | None = of_documents
        if order == "sentences":
            of_folder = _find_facts(folder, notes.get(kind, ()), [folder.name], default=folder.name)
        if of_folder is None:
            missing[kind] = f"its corpus {folder.name} is not built yet"
            to_build.add(kind)
        else:
            folders[kind], facts[folder] = folder, of_folder
    return Corpora(folders, facts, missing, tuple(texts), frozenset(to_build))


def note_corpora(corpora: Corpora, out: Path) -> None:
    """Write the facts of the corpora into `out`, a file for each kind and fingerprint, from which a page can be made.

    A note that is there already stays as it is.
    """
    for (vocabulary, order), folder in corpora.folders.items():
        facts = corpora.facts[folder]
        path = out / f"{vocabulary}-{order}-{facts.fingerprint[:12]}.json"
        if not path.is_file():
            out.mkdir(parents=True, exist_ok=True)
            write_json(path, {"vocabulary": vocabulary, "order": order, **asdict(facts)})


def _read_notes(out: Path) -> Mapping[CorpusKind, Sequence[CorpusFacts]]:
    """Return the facts that were noted in `out`, by the kind of the corpus."""
    notes: dict[CorpusKind, list[CorpusFacts]] = {}
    for vocabulary in _TITLES:
        for order in TEXT_ORDERS:
            for path in sorted(out.glob(f"{vocabulary}-{order}-*.json")):
                note = read_object(path)
                names = [field.name for field in fields(CorpusFacts)]
                if not set(names) <= set(note):
                    raise InputError(f"{path}: expected {', '.join(names)}, got {', '.join(note)}")
                facts = CorpusFacts(**{name: note[name] for name in names})
                notes.setdefault((vocabulary, order), []).append(facts)
    return notes


def _find_facts(
    folder: Path, notes: Sequence[CorpusFacts], inputs: Sequence[str], *, default: str
) -> CorpusFacts | None:
    """Return the facts of a corpus, or else those of the one note that fits; None where there is neither.

    A note fits if it has the name of an input, or the name of the corpus that is built by default. Without inputs and
    without such a note, a note that is alone fits. Raises InputError where several fit.
    """
    if _is_built(folder):
        manifest = read_manifest(folder)
        counts = manifest.tokens, manifest.documents, manifest.vocab_size
        return CorpusFacts(folder.name, manifest.fingerprint, *counts)
    fitting = [facts for facts in notes if facts.name in {default, *(Path(name).name for name in inputs)}]
    if not fitting and not inputs:
        fitting = list(notes)
    if len(fitting) > 1:
        known = ", ".join(f"{facts.name} ({facts.fingerprint[:12]})" for facts in fitting)
        raise InputError(f"--corpus: the records are of several corpora, {known}; name the folder of one of them")
    return fitting[0] if fitting else None


def _not_built(
    vocabulary: VocabularyKind,
    documents: Path,
    texts: Sequence[str],
    notes: Mapping[CorpusKind, Sequence[CorpusFacts]],
) -> str:
    """Return the message about a corpus that is not there."""
    if not texts:
        return f"--corpus: name a {_TITLES[vocabulary]} corpus, or the text to build it from"
    message = f"{documents} is not built yet, and --corpus {' '.join(texts)} is not a corpus folder"
    known = ", ".join(facts.name for facts in notes.get((vocabulary, "documents"), ()))
    return f"{message}; the records are of {known}" if known else message


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
    paths = list(map(absolute_name, texts))
    if not path.is_file():
        find_inputs(texts)
    elif (earlier := read_object(path).get("text")) not in (paths, list(texts)):  # earlier versions kept some names
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


def _shuffled_name(fingerprint: str) -> str:
    """Return the name of the corpus with the shuffled sentences of a corpus of documents."""
    return f"shuffled-{hashlib.sha256(fingerprint.encode()).hexdigest()[:8]}"


def _is_built(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()

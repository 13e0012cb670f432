"""The commands of the group tokenizer: text → vocabulary; a published vocabulary → tokenizer folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from bertwright.commands import CommandResult
from bertwright.commands.arguments import AsWordPiece, DocumentBreaks, TextField, TextInputs
from bertwright.console import say
from bertwright.errors import InputError

if TYPE_CHECKING:
    from bertwright.text.base_tokenizer import BaseTokenizer

_OnError = Annotated[
    Literal["stop", "skip"], arg(help="Stop at text that cannot be read, or skip it and print how often.")
]


def tokenizer_train_command(
    inputs: TextInputs,
    /,
    *,
    out: Path,
    vocab_size: int | None = None,
    kind: Literal["wordpiece", "bpe", "byte-bpe"] = "wordpiece",
    merges: int | None = None,
    cased: bool = False,
    strip_accents: bool = False,
    documents: DocumentBreaks = "blank-lines",
    field: TextField = "text",
    on_error: _OnError = "stop",
) -> CommandResult:
    """Learn a vocabulary from text: WordPiece, or byte pairs of GPT-1 or GPT-2. The same text gives the same bytes.

    Args:
        out: Tokenizer folder to write.
        vocab_size: Size of the vocabulary, special tokens included; not with bpe (default: 8,000; the paper: 30,000).
        kind: wordpiece; bpe for GPT-1's byte pairs, which lower-case the text and remove accents; byte-bpe for the
            byte-level pairs of GPT-2 and RoBERTa, which keep every character.
        merges: Number of merges; a byte-pair vocabulary also has the characters of the text (default: GPT-1's 40,000).
        cased: Keep capitals (WordPiece). Without this option the text is lower-cased. Accents are kept either way.
        strip_accents: Remove accents, as the released uncased vocabularies do (WordPiece). This also decomposes Hangul.
    """
    from bertwright.files import refuse_occupied
    from bertwright.text.base_tokenizer import BaseTokenizer
    from bertwright.text.bpe import MERGES, train_bpe
    from bertwright.text.byte_pairs import train_byte_pairs
    from bertwright.text.wordpiece import VOCABULARY, train_wordpiece

    refuse_occupied(out)
    size = VOCABULARY if vocab_size is None else vocab_size
    if kind != "bpe" and merges is not None:
        raise InputError(f"--merges {merges}: needs --kind bpe; a vocabulary of another kind has a --vocab-size")
    if kind != "wordpiece":
        _refuse_wordpiece_only(kind, vocab_size=vocab_size, cased=cased, strip_accents=strip_accents)
    with _paragraphs(inputs, documents, field, on_error) as texts:
        if kind == "bpe":
            tokenizer: BaseTokenizer = train_bpe(texts, merges=MERGES if merges is None else merges)
        elif kind == "byte-bpe":
            tokenizer = train_byte_pairs(texts, vocab_size=size)
        else:
            tokenizer = train_wordpiece(texts, vocab_size=size, cased=cased, strip_accents=strip_accents)
    return _save(tokenizer, out)


def tokenizer_import_command(
    vocabulary: Positional[Path], /, *, out: Path, cased: bool = False, as_wordpiece: AsWordPiece = False
) -> CommandResult:
    """Make a tokenizer from a released vocab.txt, with the rules of Google's tokenizer.

    Args:
        vocabulary: File vocab.txt.
        out: Tokenizer folder to write.
        cased: The vocabulary is cased. Without this option text is lower-cased and accents are removed.
    """
    from bertwright.doctor.model import casing
    from bertwright.files import refuse_occupied
    from bertwright.text.wordpiece import import_vocabulary

    if vocabulary.suffix == ".json":
        raise InputError(
            f"{vocabulary}: expected a vocab.txt. A byte-pair vocabulary needs no import: corpus build takes a folder "
            "with vocab.json and merges.txt, or tokenizer.json, and bertwright import takes a whole GPT-1"
        )
    refuse_occupied(out)
    tokenizer = import_vocabulary(vocabulary, cased=cased, as_wordpiece=as_wordpiece)
    finding = casing(tokenizer, not cased)
    if finding.level != "ok":
        say(f"{vocabulary}: {finding.text}; {finding.advice}")
    return _save(tokenizer, out)


def tokenizer_extend_command(
    source: Positional[Path],
    inputs: TextInputs,
    /,
    *,
    add: int,
    out: Path,
    documents: DocumentBreaks = "blank-lines",
    field: TextField = "text",
    on_error: _OnError = "stop",
) -> CommandResult:
    """Add pieces to a vocabulary: those with which a text has the fewest tokens. The ids of the old pieces stay.

    Args:
        source: Tokenizer folder, model folder or run folder.
        add: Number of pieces to add.
        out: Tokenizer folder to write. To continue training a model with it: pretrain --init-from.
    """
    from bertwright.files import refuse_occupied
    from bertwright.text.extend_vocabulary import extend_tokenizer
    from bertwright.text.open_tokenizer import open_tokenizer_folder
    from bertwright.text.wordpiece import Tokenizer

    refuse_occupied(out)
    old = open_tokenizer_folder(source)
    if not isinstance(old, Tokenizer):
        raise InputError(
            f"{source}: expected a WordPiece tokenizer, got another kind; only a WordPiece vocabulary is extended: "
            "learn one from all the text instead (tokenizer train)"
        )
    with _paragraphs(inputs, documents, field, on_error) as texts:
        extended = extend_tokenizer(old, texts, add=add)
    pieces_per_word = {"before": extended.pieces_before, "after": extended.pieces_after}
    return {**_save(extended.tokenizer, out), "pieces_per_word": pieces_per_word}


def _refuse_wordpiece_only(kind: str, *, vocab_size: int | None, cased: bool, strip_accents: bool) -> None:
    """Raise InputError where --kind bpe or byte-bpe comes with an option of WordPiece."""
    if vocab_size is not None and kind == "bpe":
        raise InputError(
            f"--vocab-size {vocab_size}: is not for --kind bpe; give the number of --merges, without the characters of "
            "the text"
        )
    if cased or strip_accents:
        option = "--cased" if cased else "--strip-accents"
        does = "lower-cases text and strips accents, as GPT-1 does" if kind == "bpe" else "keeps text as it is"
        raise InputError(f"{option}: needs WordPiece; --kind {kind} {does}")


@contextmanager
def _paragraphs(
    inputs: tuple[str, ...], documents: DocumentBreaks, field: str, on_error: Literal["stop", "skip"]
) -> Iterator[Iterator[str]]:
    """Yield the paragraphs of the inputs; print how many texts were skipped."""
    from bertwright.text.document import TextSettings, raise_error
    from bertwright.text.documents import find_inputs, read_paragraphs

    skipped = 0

    def skip(error: InputError) -> None:
        nonlocal skipped
        skipped += 1
        if skipped == 1:
            say(f"skipped: {error}")

    settings = TextSettings(documents=documents, field=field)
    yield read_paragraphs(find_inputs(inputs), settings, raise_error if on_error == "stop" else skip)
    if skipped:
        say(f"texts left out, since they cannot be read: {skipped:,}")


def _save(tokenizer: "BaseTokenizer", out: Path) -> dict[str, Any]:
    """Write a tokenizer into a new folder; return the folder, and facts about the vocabulary."""
    from bertwright.files import new_folder

    with new_folder(out) as folder:
        tokenizer.save(folder)
    return {"tokenizer": str(out), "vocab_size": tokenizer.vocab_size, "cased": tokenizer.cased, "hash": tokenizer.hash}

"""The commands tokenizer and corpus: text → tokenizer → shards."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from bertwright.console import say
from bertwright.errors import InputError

if TYPE_CHECKING:
    from bertwright.corpus.manifest import Manifest
    from bertwright.text.base_tokenizer import BaseTokenizer

Result = Mapping[str, Any]


def tokenizer_train(
    inputs: Positional[tuple[str, ...]],
    /,
    *,
    out: Path,
    vocab_size: int | None = None,
    kind: Literal["wordpiece", "bpe"] = "wordpiece",
    merges: int | None = None,
    cased: bool = False,
    strip_accents: bool = False,
    documents: Literal["blank-lines", "lines", "file"] = "blank-lines",
    field: str = "text",
) -> Result:
    """Learn a vocabulary, BERT's WordPiece or GPT-1's byte pairs; the same text gives the same bytes.

    Args:
        inputs: files, folders or globs: plain text, JSON lines, Parquet, Wikipedia dumps, WikiExtractor output; packed
            as .gz, .bz2, .xz, .zst; or hub:NAME:CONFIG:SPLIT, a dataset of the Hugging Face Hub.
        out: the tokenizer folder to write.
        vocab_size: pieces in all, special tokens included (the paper: 30,000); of a WordPiece vocabulary.
        kind: wordpiece, or bpe: GPT-1's byte pairs, whose text is lower-cased and without accents.
        merges: of a byte-pair vocabulary, the joined pieces, to which the letters are added (default: GPT-1's 40,000).
        cased: keep capitals (WordPiece); accents are kept with it and without.
        strip_accents: take accents off as the released uncased vocabularies do (this decomposes Hangul too; WordPiece).
        documents: what parts documents of plain text: blank lines, or each line, or each file is one.
        field: the field of JSON lines, or the column, that holds the text.
    """
    from bertwright.text.base_tokenizer import BaseTokenizer
    from bertwright.text.bpe import MERGES, train_bpe
    from bertwright.text.documents import TextSettings, find_inputs, read_all
    from bertwright.text.wordpiece import train_tokenizer

    _refuse_existing(out)
    settings = TextSettings(documents=documents, field=field)
    texts = (text for document in read_all(find_inputs(inputs), settings) for text in document.paragraphs)
    if kind == "bpe":
        _refuse_wordpiece_only(vocab_size=vocab_size, cased=cased, strip_accents=strip_accents)
        made: BaseTokenizer = train_bpe(texts, merges=MERGES if merges is None else merges)
    elif merges is not None:
        raise InputError(f"--merges {merges}: is for --kind bpe; a WordPiece vocabulary has a --vocab-size")
    elif vocab_size is None:
        raise InputError("--vocab-size N: say how many pieces the vocabulary is to have (the paper: 30,000)")
    else:
        made = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, strip_accents=strip_accents)
    _save(made, out)
    return {"tokenizer": str(out), "vocab_size": made.vocab_size, "hash": made.hash}


def tokenizer_import(vocabulary: Positional[Path], /, *, out: Path, cased: bool = False) -> Result:
    """Take a released vocab.txt with Google's rules.

    Args:
        vocabulary: the vocab.txt file.
        out: the tokenizer folder to write.
        cased: for a cased vocabulary; without it text is lower-cased and accents are taken off.
    """
    from bertwright.doctor.model import casing
    from bertwright.text.wordpiece import import_vocabulary

    if vocabulary.suffix == ".json":
        raise InputError(
            f"{vocabulary}: a vocab.txt is imported here; a byte-pair vocabulary needs no import: corpus build takes a "
            "folder with vocab.json and merges.txt, or tokenizer.json, and bertwright import a whole GPT-1"
        )
    _refuse_existing(out)
    made = import_vocabulary(vocabulary, cased=cased)
    found = casing(made, not cased)
    if found.level != "ok":
        say(f"{vocabulary}: {found.text}; {found.advice}")
    _save(made, out)
    return {"tokenizer": str(out), "vocab_size": made.vocab_size, "hash": made.hash}


def tokenizer_extend(
    source: Positional[Path],
    inputs: Positional[tuple[str, ...]],
    /,
    *,
    add: int,
    out: Path,
    documents: Literal["blank-lines", "lines", "file"] = "blank-lines",
    field: str = "text",
) -> Result:
    """Add the pieces that shorten a text most behind those of a vocabulary, whose ids stay as they are.

    Args:
        source: a tokenizer folder, model folder or run folder.
        inputs: files, folders or globs: plain text, JSON lines, Wikipedia dumps, WikiExtractor output, Parquet,
            plain or as .gz, .bz2, .xz, .zst; or hub:NAME:CONFIG:SPLIT, a dataset of the Hugging Face Hub.
        add: how many pieces.
        out: the tokenizer folder to write; a model of the source can be trained on with it: pretrain --init-from.
        documents: what parts documents of plain text: blank lines, or each line, or each file is one.
        field: the field of JSON lines that holds the text.
    """
    from bertwright.text.documents import TextSettings, find_inputs, read_all
    from bertwright.text.extend_vocabulary import extend_tokenizer
    from bertwright.text.open_tokenizer import open_tokenizer_folder, wordpiece

    _refuse_existing(out)
    advice = "only a WordPiece vocabulary is extended; learn one from all the text instead: tokenizer train --kind bpe"
    old = wordpiece(open_tokenizer_folder(source), place=source, advice=advice)
    settings = TextSettings(documents=documents, field=field)
    texts = (text for document in read_all(find_inputs(inputs), settings) for text in document.paragraphs)
    made = extend_tokenizer(old, texts, add=add)
    _save(made.tokenizer, out)
    return {
        "tokenizer": str(out),
        "vocab_size": made.tokenizer.vocab_size,
        "hash": made.tokenizer.hash,
        "pieces_per_word": {"before": made.pieces_before, "after": made.pieces_after},
    }


def corpus_build(
    inputs: Positional[tuple[str, ...]],
    /,
    *,
    tokenizer: Path,
    out: Path,
    workers: int | None = None,
    documents: Literal["blank-lines", "lines", "file"] = "blank-lines",
    lines: Literal["text", "wrapped", "sentences"] = "text",
    field: str = "text",
    language: str = "en",
    on_error: Literal["stop", "skip"] = "stop",
    keep_duplicates: bool = False,
    shard: str | None = None,
) -> Result:
    """Turn text into tokenised shards; the number of workers changes no byte.

    Stopped or killed, the same command goes on from the last whole shard, to the same bytes.

    Args:
        inputs: files, folders or globs: plain text, JSON lines, Parquet, Wikipedia dumps, WikiExtractor output; packed
            as .gz, .bz2, .xz, .zst; or hub:NAME:CONFIG:SPLIT, a dataset of the Hugging Face Hub.
        tokenizer: a tokenizer folder, or a model folder, run folder or small-wiki for its tokenizer.
        out: the corpus folder to write; must be empty or absent.
        workers: processes that tokenise (default: one per core).
        documents: what parts documents of plain text: blank lines, or each line, or each file is one.
        lines: what a line of plain text is: a paragraph, a piece of a wrapped block, or one sentence.
        field: the field of JSON lines, or the column, that holds the text.
        language: of the text, for the sentence rules.
        on_error: at text that cannot be read, stop; or leave it out and count it in the manifest.
        keep_duplicates: use documents again that equal an earlier one.
        shard: i/n, such as 2/8: build the i-th of n parts, on a machine of its own; then: corpus merge.
    """
    from bertwright.corpus.build import build_corpus
    from bertwright.text.documents import TextSettings

    settings = TextSettings(documents=documents, lines=lines, field=field, language=language)
    manifest = build_corpus(
        inputs,
        tokenizer=tokenizer,
        out=out,
        settings=settings,
        workers=workers,
        skip=on_error == "skip",
        keep_duplicates=keep_duplicates,
        part=_part(shard),
    )
    return _built(out, manifest)


def corpus_merge(parts: Positional[tuple[Path, ...]], /, *, out: Path, keep_duplicates: bool = False) -> Result:
    """Make one corpus of several: a manifest that names their shards, which stay where they are.

    Args:
        parts: corpus folders of one tokenizer, in the order of their text.
        out: the corpus folder to write; must be empty or absent.
        keep_duplicates: use documents again that equal an earlier one.
    """
    from bertwright.corpus.merge import merge_corpora

    return _built(out, merge_corpora(parts, out, keep_duplicates=keep_duplicates))


def corpus_inspect(corpus: Positional[Path], /) -> Result:
    """What a corpus holds: sizes, lengths, [UNK] share, a sample, and warnings where it will hurt."""
    from bertwright.corpus.checks import inspect_corpus

    report = inspect_corpus(corpus)
    return {**report.model_dump(mode="json"), "text": report.render()}


def corpus_verify(corpus: Positional[Path], /) -> Result:
    """Check every byte of a corpus, its manifest and tokenizer included, against what was noted when it was built."""
    from bertwright.corpus.checks import verify

    checked = verify(corpus)
    return {"corpus": str(corpus), "good": True, "documents": checked.num_documents, "tokens": checked.num_tokens}


def _built(out: Path, manifest: "Manifest") -> Result:
    names = ("documents", "sentences", "tokens", "dropped_documents", "fingerprint")
    skipped = manifest.skipped
    for message in skipped.first:
        say(f"left out: {message}")
    return {
        "corpus": str(out),
        **{name: getattr(manifest, name) for name in names},
        "duplicates": manifest.duplicates.documents if manifest.duplicates else 0,
        "skipped_files": skipped.files,
        "skipped_records": skipped.records,
        "shards": len(manifest.shards),
    }


def _part(text: str | None) -> tuple[int, int] | None:
    """'2/8' → (2, 8)."""
    if text is None:
        return None
    try:
        i, n = (int(number) for number in text.split("/"))
    except ValueError:
        raise InputError(f"--shard {text}: write i/n with i from 1 to n, such as 2/8") from None
    return i, n


def _refuse_wordpiece_only(*, vocab_size: int | None, cased: bool, strip_accents: bool) -> None:
    if vocab_size is not None:
        raise InputError(f"--vocab-size {vocab_size}: is for WordPiece; --kind bpe has --merges, and the letters")
    if cased or strip_accents:
        option = "--cased" if cased else "--strip-accents"
        raise InputError(f"{option}: is for WordPiece; --kind bpe lower-cases and strips accents, as GPT-1 does")


def _save(made: "BaseTokenizer", out: Path) -> None:
    from bertwright.files import new_folder

    with new_folder(out) as folder:
        made.save(folder)


def _refuse_existing(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already and is not empty; choose another --out")
    for parent in out.absolute().parents:
        if parent.exists():
            if not parent.is_dir():
                raise InputError(f"{out}: {parent} is a file; choose another --out")
            return

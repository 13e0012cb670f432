"""The commands of the group corpus: text → tokenised shards; shards → counts, samples and duplicates."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import DocumentBreaks, KeepDuplicates, Repeatable, TextField, TextInputs
from bertwright.commands.options import SettingsOptions
from bertwright.console import say
from bertwright.errors import InputError
from bertwright.objectives.settings import ExampleSettings
from bertwright.pretraining.settings import PLAIN, merged

SIMILAR = 0.8
"""Default similarity of near-duplicates."""
SHINGLE = 5
"""Default number of words or tokens of a shingle."""
_SHOWN_DUPLICATES = 10
_LISTED_AT_ONCE = 100_000  # duplicates whose texts are in memory at a time
TableFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet", "lines"]

if TYPE_CHECKING:
    from bertwright.corpus.manifest import Manifest, SampleSettings
    from bertwright.text.document import TextSettings


def corpus_build_command(
    inputs: TextInputs,
    /,
    *,
    tokenizer: Path,
    out: Path,
    workers: int | None = None,
    documents: DocumentBreaks = "blank-lines",
    lines: Literal["text", "wrapped", "sentences"] = "text",
    field: TextField = "text",
    language: str = "en",
    on_error: Literal["stop", "skip"] = "stop",
    keep_duplicates: KeepDuplicates = False,
    shard: str | None = None,
    words: str | None = None,
    mix: Repeatable = (),
    seed: int | None = None,
) -> CommandResult:
    """Turn text into tokenised shards. The number of workers changes no byte.

    After a stop or a kill, the same command continues after the last complete shard. The result has the same bytes.

    Args:
        tokenizer: Tokenizer folder, or a model folder, run folder or small-wiki for its tokenizer.
        out: Corpus folder to write: an absent or empty one, or one with an unfinished build of the same command.
        workers: Number of processes that tokenise (default: one per core).
        lines: A line of plain text is a paragraph (text), part of a wrapped paragraph (wrapped), or a sentence.
        language: Language of the text, for the rules that find sentences.
        on_error: Stop at text that cannot be read, or skip it and count it in the manifest.
        shard: Build only the i-th of n parts (i/n, such as 2/8), each on a machine of its own; corpus merge joins them.
        words: Draw documents at random up to this number of words of text, such as 10M, 1.5M or 100k.
        mix: With --words, and in place of INPUTS: a source and its fraction of the words, as SOURCE=FRACTION such as
            wiki=0.3; repeat it for each source. A source is what an input is.
        seed: With --words: seed of the draw (default: 0).
    """
    from bertwright.corpus.build import build_corpus
    from bertwright.text.document import TextSettings

    settings = TextSettings(documents=documents, lines=lines, field=field, language=language)
    sample = _sample_settings(words, mix, seed=seed, inputs=inputs, shard=shard)
    if lines == "text":
        names = tuple(source.name for source in sample.mix) if sample else ()
        _warn_of_wrapped_lines(names or inputs, settings)
    manifest = build_corpus(
        inputs,
        tokenizer=tokenizer,
        out=out,
        settings=settings,
        workers=workers,
        skip=on_error == "skip",
        keep_duplicates=keep_duplicates,
        part=_parse_part(shard),
        sample=sample,
    )
    return _built(out, manifest)


def corpus_merge_command(
    parts: Positional[tuple[Path, ...]], /, *, out: Path, keep_duplicates: KeepDuplicates = False
) -> CommandResult:
    """Merge several corpora into one: write a manifest that names their shards. The shards stay where they are.

    Args:
        parts: Corpus folders with the same tokenizer, in the order of their text.
        out: Corpus folder to write: an absent or empty one.
    """
    from bertwright.corpus.merge import merge_corpora

    return _built(out, merge_corpora(parts, out, keep_duplicates=keep_duplicates))


def corpus_inspect_command(
    corpus: Positional[Path],
    /,
    *,
    rows: int | None = None,
    length: int = 64,
    seed: int = 0,
    settings: Annotated[Mapping[str, Any], SettingsOptions(ExampleSettings, plain=PLAIN.examples)],
) -> CommandResult:
    """Show the sizes, the lengths, the fraction of [UNK] and a sample of a corpus. Warn of likely problems.

    Args:
        rows: Print this many rows of masked LM instead: pieces, segments, predicted positions with what replaced them,
            and the label of the second sentence. The other options are those of pretrain, and need this one.
        length: Tokens of a row.
        seed: Seed of the rows.
    """
    if rows is not None:
        from bertwright.objectives.shown_rows import as_json, first_rows

        chosen = ExampleSettings.model_validate(merged(PLAIN.examples.model_dump(), settings))
        shown = first_rows(corpus, chosen, rows=rows, length=length, seed=seed)
        lines = [line for number, row in enumerate(shown) for line in (*row.lines(number), "")]
        return {"corpus": str(corpus), "rows": as_json(shown), "text": "\n".join(lines).rstrip()}
    if settings or seed or length != 64:
        raise InputError("--length, --seed and the options of the examples need --rows N, the number of rows to print")
    from bertwright.corpus.checks import inspect_corpus

    report = inspect_corpus(corpus)
    return {**report.model_dump(mode="json"), "text": report.render()}


def corpus_verify_command(corpus: Positional[Path], /) -> CommandResult:
    """Check every byte of a corpus, its manifest and tokenizer included, against the digests of its build."""
    from bertwright.corpus.checks import verify

    verified = verify(corpus)
    return {"corpus": str(corpus), "good": True, "documents": verified.num_documents, "tokens": verified.num_tokens}


def corpus_duplicates_command(
    source: Positional[Path],
    /,
    *,
    near: bool = False,
    threshold: float | None = None,
    shingle: int | None = None,
    text_column: str = "text",
    input_format: TableFormat = "auto",
    out: Path | None = None,
) -> CommandResult:
    """List the documents of a corpus, or the rows of a table, that equal an earlier one; with --near also those that
    are similar to one. Nothing is removed.

    With --near, the similarity of two documents is the Jaccard index of their shingles. A document is listed beside the
    most similar earlier one that is not listed itself.

    Args:
        source: Corpus folder, or a table of texts.
        near: Find similar documents too.
        threshold: With --near: similarity from which documents are listed (default: 0.8).
        shingle: With --near: number of words, or of a corpus tokens, of a shingle (default: 5). Fewer for short texts.
        text_column: Column of a table's texts.
        input_format: Format of a table, where the ending of its name does not say it. With lines, each line is a text.
        out: Table to write with all of them (tsv, csv, jsonl or parquet); without it the first ten are printed.
    """
    from bertwright.corpus.manifest import MANIFEST
    from bertwright.corpus.near_duplicates import CorpusDocuments
    from bertwright.output_paths import refuse_target
    from bertwright.tables.near_duplicates import LISTED, TableDocuments, refuse_list_name, write_list
    from bertwright.text.near_duplicates import Documents, find_equal, find_near, listed

    if not near and (threshold is not None or shingle is not None):
        raise InputError("--threshold and --shingle need --near; add it, or leave them out")
    if shingle is not None and shingle < 1:
        raise InputError(f"--shingle {shingle}: expected 1 or more")
    if out is not None:
        refuse_list_name(out)
        refuse_target(str(out), source=str(source), option="--out", read="SOURCE")
    is_corpus = (source / MANIFEST).is_file()
    if is_corpus and (text_column, input_format) != ("text", "auto"):
        raise InputError(f"{source}: is a corpus, which has no columns; leave --text-column and --input-format out")
    documents: Documents = CorpusDocuments(source) if is_corpus else TableDocuments(source, text_column, input_format)
    if near:
        size = SHINGLE if shingle is None else shingle
        pairs = find_near(lambda: documents.shingles(size), threshold=SIMILAR if threshold is None else threshold)
    else:
        pairs = find_equal(documents.digests())
    rows = listed(documents, pairs[:_SHOWN_DUPLICATES])
    if out is not None:
        begins = range(0, max(1, len(pairs)), _LISTED_AT_ONCE)
        write_list(out, (listed(documents, pairs[begin : begin + _LISTED_AT_ONCE]) for begin in begins))
    counts = {"documents": len(documents), "duplicates": len(pairs), "groups": len({each.like for each in pairs})}
    way, groups = "are like" if near else "equal", f", in {counts['groups']:,} groups" if pairs else ""
    lines = [f"{len(pairs):,} of {counts['documents']:,} documents {way} an earlier one{groups}"]
    for document, like, similarity, text, like_text in rows:
        lines += [f"{document} like {like}: {similarity:.3f}", f"    {text[:100]}", f"    {like_text[:100]}"]
    first = [dict(zip(LISTED, row, strict=True)) for row in rows]
    return {**counts, "first": first, **({"out": str(out)} if out else {}), "text": "\n".join(lines)}


def _built(out: Path, manifest: "Manifest") -> CommandResult:
    """Return the counts of a new corpus, and print a message for each of the first texts that were skipped."""
    names = ("documents", "sentences", "tokens", "words", "dropped_documents", "fingerprint")
    skipped = manifest.skipped
    for message in skipped.first:
        say(f"skipped: {message}")
    drawn = {"drawn": [each.model_dump() for each in manifest.sample.drawn]} if manifest.sample else {}
    return {
        "corpus": str(out),
        "language": manifest.text["language"],
        **{name: getattr(manifest, name) for name in names},
        **drawn,
        "duplicates": manifest.duplicates.documents if manifest.duplicates else 0,
        "skipped_files": skipped.files,
        "skipped_records": skipped.records,
        "shards": len(manifest.shards),
    }


def _sample_settings(
    words: str | None, mix: tuple[str, ...], *, seed: int | None, inputs: tuple[str, ...], shard: str | None
) -> "SampleSettings | None":
    """Return the settings of a sample; None without --words. Raises InputError where the options contradict."""
    from bertwright.corpus.manifest import SampleSettings
    from bertwright.corpus.sample import parse_mix
    from bertwright.text.word_counts import parse_words

    if words is None:
        if mix or seed is not None:
            raise InputError(f"{'--mix' if mix else '--seed'}: needs --words, the number of words to draw, such as 10M")
        return None
    if shard is not None:
        raise InputError(f"--shard {shard} --words {words}: a sample is drawn from all inputs; leave --shard out")
    if mix and inputs:
        raise InputError(f"--mix names the sources of the text; leave the input {inputs[0]} out, or add it to the mix")
    return SampleSettings(words=parse_words(words), seed=seed or 0, mix=parse_mix(mix))


def _parse_part(text: str | None) -> tuple[int, int] | None:
    """Return (i, n) for the text 'i/n'; None for None."""
    if text is None:
        return None
    try:
        i, n = (int(number) for number in text.split("/"))
    except ValueError:
        raise InputError(f"--shard {text}: expected i/n with i from 1 to n, such as 2/8") from None
    return i, n


def _warn_of_wrapped_lines(inputs: tuple[str, ...], settings: "TextSettings") -> None:
    """Say so where the lines of the text, each of which became a paragraph, look wrapped. Nothing is downloaded."""
    from bertwright.text.documents import find_inputs, read_paragraphs
    from bertwright.text.wrapped_lines import looks_wrapped

    files = [text for text in inputs if not text.startswith("hub:") and "://" not in text]
    with suppress(Exception):  # the build reports text that cannot be read
        if files and looks_wrapped(read_paragraphs(find_inputs(files), settings)):
            say(
                f"{files[0]}: most lines are about as long as the longest and end within a sentence; if they are parts "
                "of paragraphs, --lines wrapped joins them"
            )

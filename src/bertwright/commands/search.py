"""The commands index and search: texts → an index of their vectors, and queries → the nearest texts."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from bertwright.commands import CommandResult
from bertwright.commands.arguments import BadRowsOption, DeviceOption, PrecisionOption, Repeatable
from bertwright.errors import InputError
from bertwright.tables.files import InputFormat

_Tables = Annotated[
    Positional[tuple[str, ...]],
    arg(
        help="Tables (csv, tsv, JSON lines, Parquet), or .txt with one text a line; packed or not; - for a pipe. Of a "
        "folder each text file (.txt, .md, .rst) is read whole, and cut into passages."
    ),
]
_TextColumn = Annotated[Repeatable, arg(help="Column of the text (default: text, sentence or the only one).")]


def index_command(
    texts: _Tables = (),
    /,
    *,
    out: Path,
    model: str | None = None,
    add: bool = False,
    remove: Repeatable = (),
    remove_ids: Path | None = None,
    join: bool = False,
    verify: bool = False,
    text_column: _TextColumn = (),
    id_column: str | None = None,
    passages: int | None = None,
    width: int | None = None,
    approximate: bool = False,
    input_format: InputFormat = "auto",
    on_error: BadRowsOption = "stop",
    precision: PrecisionOption = "auto",
    device: DeviceOption = "cpu",
) -> CommandResult:
    """Compute the vectors of texts and write them to a folder in which `search` finds the nearest ones.

    Ids, texts and all other columns are kept. An existing index is changed with --add or --remove, and not built again.

    Args:
        out: Folder of the index; with --add, --remove and --remove-ids an existing one.
        model: MODEL: a model folder or a run folder (with --add: by default the model that the index names).
        add: Add the texts to the index in --out.
        remove: Id of a row to remove from the index in --out; once for each.
        remove_ids: File with an id on each line: rows to remove.
        join: Make one segment of all segments of the index in --out, without the rows that were removed.
        verify: Compare the digests of all files of the index in --out.
        text_column: Column of the text (default: text, sentence or the only one); the texts of several are joined.
        id_column: Column of the ids (default: id or _id; without them the number of the row).
        passages: Cut long texts into passages of whole sentences, of at most this number of tokens; the id of the
            second one of a text is ID#2. Files of folders are always cut (default: 128, or what the model reads).
        width: Number of first components of the vectors, for a model with Matryoshka widths.
        approximate: For hundreds of thousands of texts and more: a query is compared with a part of the texts, and may
            miss some. The report has the measured recall. Needs the extra search.
        input_format: Format of the files, where the endings of their names do not say it.
    """
    from bertwright.search.run import add_texts, index_texts, join_segments, remove_rows, verify_index
    from bertwright.search.texts import TextTables

    of_texts = bool(texts or add or model or text_column or id_column or approximate)
    of_texts = of_texts or (width, passages, input_format, on_error) != (None, None, "auto", "stop")
    of_texts = of_texts or (precision, device) != ("auto", "cpu")
    removes = bool(remove or remove_ids)
    for option, chosen, others in (("--join", join, removes or verify), ("--verify", verify, removes)):
        if chosen and (of_texts or others):
            raise InputError(f"{option}: takes an index alone, --out; give the other options in another command")
    if join or verify:
        return join_segments(out) if join else verify_index(out)
    if removes:
        if of_texts:
            raise InputError("--remove: removes rows of --out; give TEXTS and the options of texts in another command")
        return remove_rows(out, ids=remove, ids_file=remove_ids)
    if not texts:
        raise InputError("index: expected TEXTS, tables with texts; or --remove ID, to remove rows of --out")
    reading: Any = {"text": text_column, "id": id_column, "format": input_format, "on_error": on_error}
    tables = TextTables(texts, **reading, passages=passages is not None)
    computing: Any = {"passages": passages, "precision": precision, "device": device}
    if add:
        if approximate:
            raise InputError("--approximate: an index stays as it was built, approximate or not; leave the option out")
        if width is not None:
            raise InputError(f"--width {width}: an index has one width, that of its first texts; leave the option out")
        return add_texts(tables, out, model=model, **computing)
    if model is None:
        raise InputError("--model: expected the model folder that computes the vectors")
    return index_texts(tables, out, model=model, width=width, approximate=approximate, **computing)


def search_command(
    index: Positional[Path],
    query: Positional[str | None] = None,
    /,
    *,
    queries: str | None = None,
    model: str | None = None,
    top_k: int = 10,
    exact: bool = False,
    rerank: str | None = None,
    relevant: str | None = None,
    candidates: int | None = None,
    text_column: _TextColumn = (),
    id_column: str | None = None,
    input_format: InputFormat = "auto",
    on_error: BadRowsOption = "stop",
    precision: PrecisionOption = "auto",
    device: DeviceOption = "cpu",
) -> CommandResult:
    """Print the texts of an index that are nearest to a query: score, id and text, the nearest first.

    With --json the hits have all fields.

    Args:
        index: Folder that `bertwright index` wrote.
        query: Text to search with.
        queries: Table or .txt with many queries, in place of QUERY; - for a pipe.
        model: MODEL: by default the one that the index names. Another one than that which made the index is refused.
        top_k: Number of texts for each query.
        exact: Compare all texts of an approximate index too.
        rerank: MODEL that was fine-tuned on pairs: it reads the query together with each of the best texts, and orders
            them anew.
        relevant: Label of --rerank whose probability is the score, where its two labels do not tell which one it is.
        candidates: Number of texts that --rerank reads for each query (default: 50, or --top-k where that is more).
        text_column: Column of --queries with the text (default: text, sentence or the only one).
        id_column: Column of --queries with the ids (default: id or _id; without them the number of the row).
        input_format: Format of --queries, where the ending of its name does not say it.
    """
    from bertwright.search.run import SearchRequest, search_texts
    from bertwright.search.texts import TextTables

    if (query is None) == (queries is None):
        raise InputError("search: expected QUERY or --queries FILE, one of the two")
    of_tables = {"--text-column": text_column, "--id-column": id_column, "--input-format": input_format != "auto"}
    for option, value in (of_tables | {"--on-error": on_error != "stop"}).items():
        if value and queries is None:
            raise InputError(f"{option}: is for the file of --queries; leave the option out")
    if candidates is not None and rerank is None:
        raise InputError(f"--candidates {candidates}: are texts that --rerank reads; add --rerank, or leave it out")
    tables = None
    if queries is not None:
        if Path(queries).is_dir():
            raise InputError(f"--queries {queries}: expected a table or .txt with many queries, got a folder")
        tables = TextTables((queries,), text=text_column, id=id_column, format=input_format, on_error=on_error)
    request = SearchRequest(
        index,
        query,
        tables,
        model=model,
        top_k=top_k,
        exact=exact,
        rerank=rerank,
        candidates=candidates,
        relevant=relevant,
        precision=precision,
        device=device,
    )
    return search_texts(request)

"""The commands `index` and `search`: tables of texts → index, and queries → the best rows."""

import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bertwright.console import redirect_messages, say
from bertwright.errors import InputError, shown
from bertwright.files import refuse_occupied
from bertwright.search.index import Added, SearchIndex, check_indexable
from bertwright.search.index_files import INDEX_MANIFEST
from bertwright.search.nearest import Hit
from bertwright.search.new_rows import IndexedText
from bertwright.search.passages import PassageCutter, in_passages
from bertwright.search.rerank import Reranker, default_candidates, most_relevant
from bertwright.search.texts import TextTables
from bertwright.shipped import shipped
from bertwright.tables.bad_rows import is_blank
from bertwright.tasks.sentence_vectors import say_cut
from bertwright.tasks.static_vectors import TextVectors, open_vectors
from bertwright.text.decompress import decoded_lines, read_lines
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device

_Blocks = Iterable[list[IndexedText]]
_MANY: Final = 16
"""Number of segments above which it is said that they can be joined."""
_SHOWN: Final = 100
"""Number of characters of a text that a printed line shows."""


def index_texts(
    tables: TextTables,
    out: Path,
    *,
    model: str,
    width: int | None,
    passages: int | None,
    approximate: bool,
    precision: str,
    device: Device,
) -> dict[str, Any]:
    """Write a new index of tables; return its size and its rate. Raises InputError for bad texts and a used folder.

    passages: largest number of tokens of a passage; None for that of `PassageCutter`.
    """
    if (out / INDEX_MANIFEST).is_file():
        raise InputError(f"--out {out}: is an index already; add --add to add the texts to it, or name another folder")
    refuse_occupied(out)
    encoder = open_encoder(model, precision, device)
    encoder.check_width(width, "--width")
    cutter = PassageCutter(encoder, passages) if tables.has_passages else None
    _check_tables(tables)
    started = time.monotonic()
    if not encoder.is_described:
        say(
            f"{model}: does not describe vectors of texts, as models do that are trained for them; the mean of all "
            "tokens is taken, and a search with it is poor: bertwright finetune embed trains it"
        )
    blocks = in_passages(tables.blocks(), cutter) if cutter else tables.blocks()
    index, added = SearchIndex.build(out, encoder, blocks, model=model, width=width, approximate=approximate)
    return _added(index, added, tables, started)


def add_texts(
    tables: TextTables, out: Path, *, model: str | None, passages: int | None, precision: str, device: Device
) -> dict[str, Any]:
    """Add tables to an index; return its new size. `model` None is the model that the index names.

    A text whose passages are in the index as they are is left out.
    """
    index = SearchIndex.open(out, verify=True)
    encoder = open_encoder(model or model_of(index), precision, device)
    cutter = PassageCutter(encoder, passages) if tables.has_passages else None
    new = _NewTexts(index, cutter)
    started = time.monotonic()
    try:
        _check_tables(tables, index, new.of)
        blocks = new.of(tables.blocks())
        index, added = index.add(encoder, in_passages(blocks, cutter) if cutter else blocks)
    except InputError:
        if not new.are_none:
            raise
        say(f"{out}: all texts are in the index as they are; nothing was added")
        return _described(index, added=0, cut=0)
    if len(index.segments) > _MANY:
        say(f"{out} has {len(index.segments)} segments; bertwright index --out {out} --join makes one of them")
    return _added(index, added, tables, started)


class _NewTexts:
    """Texts that an index does not have; those whose passages it has as they are, are left out and counted."""

    def __init__(self, index: SearchIndex, cutter: PassageCutter | None) -> None:
        self._index, self._cutter = index, cutter
        self.are_none = False
        """True where all texts were read, and all are left out."""

    def of(self, blocks: _Blocks) -> Iterator[list[IndexedText]]:
        """Yield blocks of the texts that are kept; print at the end how many are left out."""
        kept = left_out = 0
        for block in blocks:
            new = [text for text in block if not self._has(text)]
            kept, left_out = kept + len(new), left_out + len(block) - len(new)
            yield new
        self.are_none = not kept and left_out > 0
        if left_out:
            say(f"{self._index.folder}: {left_out:,} texts are in the index as they are, and are left out")

    def _has(self, text: IndexedText) -> bool:
        if self._cutter is None or text.is_numbered or not text.row.passage:
            return False
        passages = self._index.passages_of(text.row.id)
        return bool(passages) and passages == self._cutter.passages(text.row.text)


def _added(index: SearchIndex, added: Added, tables: TextTables, started: float) -> dict[str, Any]:
    """Return the size of an index, and the numbers and the rate of the rows that were added since `started`."""
    added.unknown.say(f"{index.folder}: the added texts", index.manifest.model)
    if added.cut:
        advice = "" if tables.passages else "; --passages N cuts long texts into passages of at most N tokens"
        say(
            f"{added.cut:,} of {added.rows:,} texts have more tokens than the model reads, and the rest of each is not "
            f"searched{advice}"
        )
    return _described(index, added=added.rows, cut=added.cut, seconds=time.monotonic() - started)


def _check_tables(
    tables: TextTables, index: SearchIndex | None = None, new: Callable[[_Blocks], _Blocks] = lambda blocks: blocks
) -> None:
    """Raise InputError for the first row that cannot be indexed, before the first vector is computed.

    Rows that are left out are told later, where the tables are read for the index. A pipe can be read only once.
    """
    if tables.can_be_read_again:
        with redirect_messages(lambda _: None):
            check_indexable(new(tables.blocks()), index)


def remove_rows(out: Path, *, ids: Sequence[str], ids_file: Path | None) -> dict[str, Any]:
    """Remove rows by their ids, and by those in a file with an id on each line; return the new size of the index."""
    index = SearchIndex.open(out, verify=True)
    before = len(index)
    if not all(map(str.strip, ids)):
        raise InputError("--remove: expected the id of a row or of a text, got an empty one")
    index = index.remove([*((id, "--remove") for id in ids), *(_ids_in(ids_file) if ids_file else ())])
    return _described(index, removed=before - len(index))


def join_segments(out: Path) -> dict[str, Any]:
    """Join the segments of an index; return its size, and the number of segments before."""
    index = SearchIndex.open(out, verify=True)
    before = len(index.segments)
    return _described(index.join(), joined=before)


def verify_index(out: Path) -> dict[str, Any]:
    """Compare the digests of all files of an index; return its size. Raises InputError for a damaged file."""
    index = SearchIndex.open(out, verify=True)
    return _described(index, verified=sum(len(segment.entry.files) for segment in index.segments))


@dataclass(frozen=True)
class SearchRequest:
    """Queries for an index: one text, or tables of them.

    model       None is the model that the index names
    exact       True compares all rows of an approximate index too
    rerank      a reranker that orders the best rows anew; None keeps the order of the vectors
    candidates  number of rows that it orders; None is `default_candidates`
    relevant    label whose probability is its score; None is `relevant_label`
    """

    index: Path
    query: str | None
    queries: TextTables | None
    model: str | None
    top_k: int
    exact: bool
    rerank: str | None
    candidates: int | None
    precision: str
    device: Device
    relevant: str | None = None


def search_texts(request: SearchRequest) -> dict[str, Any]:
    """Return the best rows of each query, the best first. Raises InputError for another model, and empty queries."""
    if request.top_k < 1:
        raise InputError(f"--top-k {request.top_k}: expected at least 1")
    if request.relevant is not None and not request.rerank:
        raise InputError(f"--relevant {request.relevant}: names a label of the reranker; name that with --rerank")
    if request.rerank and request.candidates is not None and request.candidates < request.top_k:
        raise InputError(f"--candidates {request.candidates}: expected at least --top-k, {request.top_k}")
    if request.query is not None and is_blank(request.query):
        raise InputError("QUERY: expected a text, got an empty one")
    index = SearchIndex.open(request.index)
    if request.exact and not index.manifest.approximate:
        raise InputError(
            f"--exact: every search of {index.folder} compares all texts, since it is no approximate index; leave the "
            "option out"
        )
    encoder = open_encoder(request.model or model_of(index), request.precision, request.device)
    reranker = None
    if request.rerank:
        computing: Any = {"precision": request.precision, "device": request.device}
        reranker = Reranker.open(request.rerank, relevant=request.relevant, **computing)
    best_rows = _best_rows(request, index, encoder, reranker)
    if reranker is not None:
        say_cut(reranker.num_cut, reranker.num_read, "pairs of query and document")
    return best_rows


def _best_rows(
    request: SearchRequest, index: SearchIndex, encoder: TextVectors, reranker: Reranker | None
) -> dict[str, Any]:
    """Return the best rows of the query, or of each row of the table of queries."""
    if request.query is not None:
        [hits] = _answers(request, index, encoder, reranker, [request.query])
        return {"query": request.query, "hits": [asdict(hit) for hit in hits], "text": "\n".join(hit_lines(hits))}
    answers: list[dict[str, Any]] = []
    lines: list[str] = []
    for block in request.queries.blocks() if request.queries else ():
        found_hits = _answers(request, index, encoder, reranker, [each.row.text for each in block])
        for query, hits in zip((each.row for each in block), found_hits, strict=True):
            answers.append({"id": query.id, "query": query.text, "hits": [asdict(hit) for hit in hits]})
            lines += [f"{_printable(shown(query.id))}  {_short(query.text)}", *hit_lines(hits), ""]
    return {"queries": answers, "text": "\n".join(lines).rstrip()}


def _answers(
    request: SearchRequest,
    index: SearchIndex,
    encoder: TextVectors,
    reranker: Reranker | None,
    queries: Sequence[str],
) -> list[list[Hit]]:
    if reranker is None:
        return index.search(encoder, queries, request.top_k, exact=request.exact)
    candidates = request.candidates or default_candidates(request.top_k)
    hits_of_all = index.search(encoder, queries, candidates, exact=request.exact)
    return [_reranked(hits, query, reranker, request.top_k) for query, hits in zip(queries, hits_of_all, strict=True)]


def _reranked(hits: Sequence[Hit], query: str, reranker: Reranker, top_k: int) -> list[Hit]:
    scores = reranker.scores(query, [hit.text for hit in hits]).tolist()
    return [replace(hits[index], score=score) for index, score in most_relevant(scores, top_k)]


def hit_lines(hits: Sequence[Hit]) -> list[str]:
    """Return a line for each row: score, id, and the beginning of its text, without control characters."""
    ids = [_printable(shown(hit.id)) for hit in hits]
    width = max(map(len, ids), default=0)
    return [f"{hit.score:9.4f}  {id:{width}}  {_short(hit.text)}" for id, hit in zip(ids, hits, strict=True)]


def open_encoder(model: str, precision: str, device: Device) -> TextVectors:
    """Open a model folder for vectors, in the precision and on the device of inference, or a static table."""
    prepare_processor()
    return open_vectors(model, precision, device)


def model_of(index: SearchIndex) -> str:
    """Return the model that an index names. Raises InputError where it is not there any more."""
    model = index.manifest.model
    if model not in shipped() and not Path(model).is_dir():
        raise InputError(
            f"{index.folder}: the model that made this index is not at {model} any more; name it with --model"
        )
    return model


def _ids_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the id on each line that is not empty, and its location."""
    if not path.exists():
        raise InputError(f"--remove-ids {path}: there is no such file")
    for number, line in decoded_lines(path, read_lines(path)):
        if line.strip():
            yield line.rstrip("\r\n"), f"{path}:{number}"


def _described(index: SearchIndex, *, seconds: float | None = None, **counts: int) -> dict[str, Any]:
    manifest = index.manifest
    rate = {} if seconds is None else {"texts_per_second": round(counts["added"] / max(seconds, 1e-9), 1)}
    recalls = [entry.lists.recall for entry in manifest.segments if entry.lists]
    rate |= {"recall@10": min(recalls)} if recalls else {}
    if manifest.approximate:
        rate["rows_without_lists"] = sum(segment.num_kept for segment in index.segments if not segment.entry.lists)
    size = {
        "rows": len(index),
        "segments": len(index.segments),
        "width": manifest.width,
        "similarity": manifest.similarity,
    }
    return {"index": str(index.folder), "model": manifest.model, **size, **counts, **rate}


def _short(text: str) -> str:
    line = _printable(" ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _printable(text: str) -> str:
    """Return a text without control characters, with which it could change the terminal."""
    return "".join(letter for letter in text if unicodedata.category(letter) != "Cc")

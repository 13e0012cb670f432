"""index folders → indexes in use, each with the served model that made it; query vector → rows of the index."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from fastapi import Request

from bertwright.errors import InputError
from bertwright.search.exact import as_compared
from bertwright.search.index import SearchIndex
from bertwright.search.nearest import Hit
from bertwright.search.rerank import default_candidates
from bertwright.serving.predictor import Predictor
from bertwright.serving.reranking import check_query, reads_windows
from bertwright.serving.schemas import SearchIndexRequest
from bertwright.serving.service import Service
from bertwright.training.hardware import usable_cores


class UnknownIndex(InputError):
    """A request for an index that is not served."""


@dataclass(frozen=True)
class ServedIndex:
    """An index and the name of the served model that made it."""

    index: SearchIndex
    model: str


def open_indexes(folders: Mapping[str, str], models: Mapping[str, Predictor]) -> dict[str, ServedIndex]:
    """Open index folders by name, with their lists of near vectors.

    Raises InputError for a damaged index, and where no model is that of the index; MissingExtra for lists without
    faiss.
    """
    return {name: _open_index(folder, models) for name, folder in folders.items()}


def _open_index(folder: str, models: Mapping[str, Predictor]) -> ServedIndex:
    index = SearchIndex.open(folder, verify=True)
    for segment in index.segments:
        segment.open_lists()
    noted = index.manifest.model
    likely_first = sorted(models, key=lambda name: str(Path(models[name].source).resolve()) != noted)
    for name in likely_first:
        if models[name].fingerprint == index.manifest.fingerprint:
            return ServedIndex(index, name)
    raise InputError(
        f"--index {folder}: expected the model that made this index among the served ones ({', '.join(models)}), which "
        f"is {noted}; add it with --model, or build the index again with a model that is served"
    )


class SearchService:
    """The indexes that are served, by name; their queries and rerankers are computed by the models of the service.

    As many searches as there are cores run at a time. Others wait for a thread, and a request whose time is over leaves
    the queue.
    """

    def __init__(self, service: Service, indexes: Mapping[str, ServedIndex]) -> None:
        self.service, self.indexes = service, dict(indexes)
        self._threads = ThreadPoolExecutor(max_workers=usable_cores(), thread_name_prefix="search")

    def index(self, name: str | None) -> tuple[str, ServedIndex]:
        """Return name and index; for None those of the first one. Raises UnknownIndex for an unknown name."""
        if not self.indexes:
            raise UnknownIndex("no index is served; start the service with --index INDEX, made by bertwright index")
        if name is None:
            return next(iter(self.indexes.items()))
        if name not in self.indexes:
            raise UnknownIndex(f"there is no index {name[:60]!r}; there are {', '.join(self.indexes)}")
        return name, self.indexes[name]

    async def hits(self, served: ServedIndex, search: SearchIndexRequest, request: Request) -> tuple[list[Hit], bool]:
        """Return the best rows for a query, the best first, and True where the query or a row to rerank was cut.

        They are the nearest rows, or the best of these by the reranker.

        Raises InputError for an empty query, and for a reranker that is none; UnknownModel for an unknown one.
        """
        check_query(search.query)
        if search.rerank is None:
            for name in ("candidates", "relevant"):
                if getattr(search, name) is not None:
                    raise InputError(f"{name}: is for a reranker; name one as rerank, or leave {name} out")
            return await self._nearest(served, search.query, request, top_k=search.top_k)
        name, predictor = self.service.model(search.rerank)
        self.service.check_reranker(name, search.relevant)
        candidates = self._num_candidates(search)
        hits, truncated = await self._nearest(served, search.query, request, top_k=candidates)
        if not hits:
            return [], truncated
        most = self.service.settings.max_characters
        texts = [hit.text[:most] for hit in hits]
        # All of them, since one that was cut may not be among the best.
        ranked = await self.service.rerank(name, search.query, texts, request, relevant=search.relevant)
        truncated = truncated or any(each.truncated for each in ranked)
        if reads_windows(predictor.pipeline):  # other models read far less
            truncated = truncated or any(len(hit.text) > most for hit in hits)
        best = [replace(hits[each.index], score=each.score) for each in ranked[: search.top_k]]
        return best, truncated

    def _num_candidates(self, search: SearchIndexRequest) -> int:
        """Return the number of rows to rerank. Raises InputError for fewer than the results, and for too many."""
        most, limit = self.service.settings.max_inputs, "the service's limit of inputs in a request"
        if search.candidates is not None and search.candidates < search.top_k:
            raise InputError(f"candidates {search.candidates}: expected at least top_k, {search.top_k}")
        if search.candidates is not None and search.candidates > most:
            raise InputError(f"candidates {search.candidates}: expected at most {most}, {limit}")
        if search.top_k > most:
            raise InputError(f"top_k {search.top_k}: expected at most {most} with rerank, {limit}")
        return search.candidates or min(default_candidates(search.top_k), most)

    async def _nearest(
        self, served: ServedIndex, query: str, request: Request, *, top_k: int
    ) -> tuple[list[Hit], bool]:
        pipeline = await self.service.vector_pipeline(served.model)
        prompted = pipeline.for_queries(f"model {served.model}")
        (vector,) = await self.service.answer(served.model, prompted, [query], request)
        manifest = served.index.manifest
        queries = as_compared(vector.values[None, : manifest.width], manifest.similarity)
        loop = asyncio.get_running_loop()
        hits = await loop.run_in_executor(self._threads, served.index.hits, queries, top_k)
        return hits[0], vector.truncated

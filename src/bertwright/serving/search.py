"""index folders → indexes in use, each with the served model that made it; query vector → rows of the index."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fastapi import Request

from bertwright.errors import InputError
from bertwright.search.exact import as_compared
from bertwright.search.index import Hit, SearchIndex
from bertwright.serving.encoder_pipelines import VectorPipeline
from bertwright.serving.predictor import Predictor
from bertwright.serving.reranking import check_query
from bertwright.serving.schemas import SearchIndexRequest
from bertwright.serving.service import Service
from bertwright.tasks.sentence_vectors import prompt_of

_CANDIDATES: Final = 50
"""Number of rows that are reranked, unless a request names another."""


class UnknownIndex(InputError):
    """A request for an index that is not served."""


@dataclass(frozen=True)
class ServedIndex:
    """An index and the name of the served model that made it."""

    index: SearchIndex
    model: str


def open_indexes(folders: Mapping[str, str], models: Mapping[str, Predictor]) -> dict[str, ServedIndex]:
    """Open index folders by name. Raises InputError for a damaged index, and where no model is that of the index."""
    return {name: _open_index(folder, models) for name, folder in folders.items()}


def _open_index(folder: str, models: Mapping[str, Predictor]) -> ServedIndex:
    index = SearchIndex.open(folder)
    noted = index.manifest.model
    likely_first = sorted(models, key=lambda name: str(Path(models[name].source).resolve()) != noted)
    for name in likely_first:  # each model that is compared holds its encoder for vectors
        if models[name].pipeline_for("vectors").sentences.fingerprint == index.manifest.fingerprint:
            return ServedIndex(index, name)
    raise InputError(
        f"--index {folder}: expected the model that made this index among the served ones ({', '.join(models)}), which "
        f"is {noted}; add it with --model, or build the index again with a model that is served"
    )


class SearchService:
    """The indexes that are served, by name; their queries and rerankers are computed by the models of the service."""

    def __init__(self, service: Service, indexes: Mapping[str, ServedIndex]) -> None:
        self.service, self.indexes = service, dict(indexes)

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
        """Return the best rows for a query, the best first, and True where the query was cut.

        They are the nearest rows, or the best of these by the reranker.

        Raises InputError for an empty query, and for a reranker that is none; UnknownModel for an unknown one.
        """
        check_query(search.query)
        if search.rerank is None:
            if search.candidates is not None:
                raise InputError("candidates: are rows to rerank; name a reranker as rerank, or leave candidates out")
            return await self._nearest(served, search.query, request, top_k=search.top_k)
        name, _ = self.service.model(search.rerank)
        self.service.check_reranker(name)
        if search.candidates is not None and search.candidates < search.top_k:
            raise InputError(f"candidates {search.candidates}: expected at least top_k, {search.top_k}")
        candidates = search.candidates or max(search.top_k, _CANDIDATES)
        hits, truncated = await self._nearest(served, search.query, request, top_k=candidates)
        most = self.service.settings.max_characters  # a model reads far less
        texts = [hit.text[:most] for hit in hits]
        ranked = await self.service.rerank(name, search.query, texts, request, top_k=search.top_k) if hits else []
        return [replace(hits[each.index], score=each.score) for each in ranked], truncated

    async def _nearest(
        self, served: ServedIndex, query: str, request: Request, *, top_k: int
    ) -> tuple[list[Hit], bool]:
        pipeline = await self.service.pipeline_for(served.model, "vectors")
        assert isinstance(pipeline, VectorPipeline)
        prompt = prompt_of(pipeline.sentences.settings, "query")
        prompted = pipeline.with_prompt(None, prompt, f"model {served.model}")
        (vector,) = await self.service.answer(served.model, prompted, [query], request)
        manifest = served.index.manifest
        queries = as_compared(vector.values[None, : manifest.width], manifest.similarity)
        hits = await asyncio.to_thread(served.index.hits, queries, top_k)
        return hits[0], vector.truncated

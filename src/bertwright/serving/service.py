"""a request's inputs → rows → batches → results: the models that are served, and what they count."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bertwright.errors import InputError
from bertwright.serving.batcher import Batcher, Computation
from bertwright.serving.embeddings import Pool
from bertwright.serving.encoder_pipelines import VectorPipeline
from bertwright.serving.pipeline import EncodedInputs, Pipeline, parse_input
from bertwright.serving.pipelines import Use
from bertwright.serving.predictor import Predictor
from bertwright.serving.reranking import check_query, ranked_texts, relevance
from bertwright.serving.results import RankedText, Vector
from bertwright.serving.settings import ServeSettings
from bertwright.tasks.classification.relevance import NoReranker

_LOOP_CHARACTERS: Final = 10_000
"""Largest number of characters that are tokenised in the event loop; more would hold up other requests."""


_LACKS: Final[dict[Use, str]] = {
    "fill": "without the head that fills [MASK]",
    "next sentence": "without a next-sentence head",
    "inside": "without attention to show",
    "explain": "that was not fine-tuned with its encoder, which an explanation needs",
    "score": "without a head over the vocabulary, and gives sentences no score",
}
"""Part of the message for a model that has no pipeline for a use; every model has vectors."""


class UnknownModel(InputError):
    """A request for a model that is not served."""


class Service:
    """The models that are served, and the one thread that computes for all of them."""

    def __init__(self, models: Mapping[str, Predictor], settings: ServeSettings) -> None:
        self.models, self.settings = dict(models), settings
        self.opened = int(time.time())
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("bertwright_requests", "requests answered", ("path", "status"), **options)
        self.seconds = Histogram("bertwright_request_seconds", "from the first byte to the last", ("path",), **options)
        self.inputs = Counter("bertwright_inputs", "inputs of accepted requests", ("model", "use"), **options)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        batch_rows = Histogram("bertwright_batch_inputs", "rows computed together", buckets=sizes, **options)
        batch_tokens = Counter("bertwright_tokens", "tokens computed", **options)
        waiting = Gauge("bertwright_waiting_tokens", "tokens that wait to be computed", **options)

        def observe(rows: int, tokens: int) -> None:
            batch_rows.observe(rows)
            batch_tokens.inc(tokens)

        limits = {"batch_tokens": settings.batch_tokens, "max_waiting_tokens": settings.max_waiting_tokens}
        self.batcher = Batcher(**limits, observe=observe)
        waiting.set_function(lambda: float(self.batcher.waiting_tokens))

    def model(self, name: str | None) -> tuple[str, Predictor]:
        """Return name and model; for None those of the first model. Raises UnknownModel for an unknown name."""
        if name is None:
            return next(iter(self.models.items()))
        if name not in self.models:
            raise UnknownModel(f"there is no model {name[:60]!r}; there are {', '.join(self.models)}")
        return name, self.models[name]

    async def pipeline_for(self, name: str, use: Use) -> Pipeline[Any, Any]:
        """Return a model's pipeline for a use; the first call opens it, in a thread.

        Raises InputError, with the model's name in the service, where the model has none.
        """
        model = self.models[name]
        if not model.can(use):
            raise InputError(f"model {name} is a model for {model.kind} {_LACKS[use]}")
        pipeline: Pipeline[Any, Any] = await asyncio.to_thread(model.pipeline_for, use)
        return pipeline

    async def answer(
        self, name: str, pipeline: Pipeline[Any, Any], values: Sequence[Any], request: Request, **options: Any
    ) -> list[Any]:
        """Return the results for the inputs of a request; `options` are those of the pipeline's `forward`.

        Raises InputError for inputs that the pipeline does not take, and Overloaded where the queue is full.
        """
        self._check_number(values)
        size = sum(len(str(value)) for value in values)
        inputs = await _run(size, self._encode, name, pipeline, values)
        tokens = [len(row) for row in inputs.rows]
        request.state.log |= {"model": name, "use": pipeline.kind, "inputs": len(values), "tokens": sum(tokens)}
        key = (name, pipeline.batch_key, *sorted(options.items()))
        computation = Computation(key, partial(pipeline.forward, **options))
        accepted = partial(self.inputs.labels(name, pipeline.kind).inc, len(values))
        outputs = await self.batcher.outputs(computation, inputs.rows, tokens, accepted=accepted)
        results: list[Any] = await _run(size, pipeline.results, inputs, outputs)
        return results

    async def vector_pipeline(self, name: str) -> VectorPipeline:
        """Return the pipeline for the vectors of a model; the first call opens it, in a thread."""
        pipeline = await self.pipeline_for(name, "vectors")
        assert isinstance(pipeline, VectorPipeline)
        return pipeline

    async def vectors(
        self,
        name: str,
        texts: Sequence[str],
        request: Request,
        *,
        pool: Pool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[Vector]:
        """Return a vector for each text.

        dimensions: the size of the vectors, a Matryoshka width of the folder, or None. Raises InputError for another
        one, and as `VectorPipeline.with_prompt`.
        """
        pipeline = (await self.vector_pipeline(name)).with_prompt(prompt_name, prompt, f"model {name}")
        size = pipeline.size(pool)
        widths = () if pool else pipeline.widths
        if dimensions not in (None, size, *widths):
            others = f", a Matryoshka width ({', '.join(map(str, widths))})" if widths else ""
            raise InputError(
                f"dimensions {dimensions}: expected {size}, the size of the vectors of model {name}{others}, or none"
            )
        return await self.answer(name, pipeline, texts, request, pool=pool, width=dimensions if widths else None)

    def check_reranker(self, name: str, relevant: str | None = None) -> str | None:
        """Return the label whose probability is the relevance, None for a number.

        relevant: the label that the request names. Raises InputError for another model, and for labels of which none is
        known as the relevant one.
        """
        try:
            return relevance(self.models[name].pipeline, f"model {name}", relevant=relevant)
        except NoReranker:
            if others := [each for each, other in self.models.items() if other.reranks]:
                raise InputError(f"model {name} is no reranker; expected one of {', '.join(others)}") from None
            raise

    async def rerank(
        self,
        name: str,
        query: str,
        texts: Sequence[str],
        request: Request,
        *,
        top_k: int | None = None,
        relevant: str | None = None,
    ) -> list[RankedText]:
        """Return the `top_k` most relevant texts for a query by the model of a name, the best first; None: all.

        Raises InputError for an empty query, and as `check_reranker`.
        """
        label = self.check_reranker(name, relevant)
        check_query(query)
        pairs = [[query, text] for text in texts]
        results = await self.answer(name, self.models[name].pipeline, pairs, request)
        return ranked_texts(results, texts, label=label, top_k=top_k)

    def _check_number(self, values: Sequence[Any]) -> None:
        """Raise InputError for too many inputs, or too many choices in all inputs."""
        most = self.settings.max_inputs
        if len(values) > most:
            raise InputError(f"{len(values):,} inputs; at most {most:,} in one request")
        num_choices = sum(len(value["choices"]) for value in values if isinstance(value, dict) and "choices" in value)
        if num_choices > most:
            raise InputError(f"{num_choices:,} choices; at most {most:,} in one request")

    def _encode(self, name: str, pipeline: Pipeline[Any, Any], values: Sequence[Any]) -> EncodedInputs:
        most, items = self.settings.max_characters, []
        for index, value in enumerate(values):
            item = parse_input(pipeline, tuple(value) if isinstance(value, list) else value, index)
            if item is None:
                json_form = "in JSON a pair is a list, and a choice an object"
                raise InputError(f"input {index}: model {name} takes {pipeline.form}; {json_form}")
            for text in pipeline.texts(item):
                if len(text) > most:
                    raise InputError(f"input {index}: a text of {len(text):,} characters; at most {most:,}")
            items.append(item)
        inputs: EncodedInputs = pipeline.encode(items)
        return inputs


async def _run(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the function's result; for texts of many characters it runs in a thread."""
    return await asyncio.to_thread(function, *arguments) if size > _LOOP_CHARACTERS else function(*arguments)

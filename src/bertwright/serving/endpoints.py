"""HTTP endpoint → service → JSON: every endpoint and its description."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import numpy as np
from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bertwright.errors import InputError, RunFailed
from bertwright.model.config import BackboneConfig, SingleBackboneConfig
from bertwright.model.families import family_of
from bertwright.scoring.settings import ScoreSettings
from bertwright.serving import examples, schemas
from bertwright.serving.pipelines import Use
from bertwright.serving.predictor import Predictor
from bertwright.serving.results import Explanation, FilledText, RankedText, Vector
from bertwright.serving.scoring import ScorePipeline
from bertwright.serving.search import SearchService, ServedIndex
from bertwright.serving.service import Service
from bertwright.serving.settings import ExplainSettings
from bertwright.serving.tei import TAG, add_tei_endpoints
from bertwright.text.base_tokenizer import MaskTokenizer
from bertwright.text.published_tokenizer import BERT_MASK

TAGS: Final = [
    {"name": "Tasks", "description": "Answers of a fine-tuned model: labels, numbers, entities, answers, choices."},
    {"name": "Pre-trained heads", "description": "Masked LM and next-sentence prediction of a pre-trained model."},
    {"name": "Encoder", "description": "Vectors and attention. Every model has vectors."},
    {"name": "Search", "description": "Rows of an index for a query, and documents by their relevance for it."},
    TAG,
    {"name": "Service", "description": "The models that are served, and the state of the service."},
]
"""Groups of the endpoints in the OpenAPI description, in order."""
_TASKS, _HEADS, _ENCODER, _SEARCH, _, _SERVICE = ([tag["name"]] for tag in TAGS)
_MOST_PIECES: Final = 20_000
"""Largest number of candidates for [MASK] in one answer: its JSON is made in the event loop."""


def add_endpoints(app: FastAPI, service: Service, search: SearchService) -> None:
    """Add all endpoints to the application."""
    _add_task_endpoints(app, service)
    _add_pretraining_endpoints(app, service)
    _add_encoder_endpoints(app, service)
    _add_search_endpoints(app, service, search)
    add_tei_endpoints(app, service)
    _add_status_endpoints(app, service, search)


def _add_task_endpoints(app: FastAPI, service: Service) -> None:
    @app.post("/v1/predict", tags=[*_TASKS])
    async def predict(
        body: Annotated[schemas.PredictionRequest, Body(openapi_examples=examples.PREDICT)], request: Request
    ) -> schemas.PredictResponse:
        """Answer as the model was trained: labels, a number, entities, answers, choices, filled masks.

        The form of an input is that of the task: a text, a list of two texts, `{"question", "context"}`, or
        `{"context", "choices"}`. `/v1/models` lists the form and the labels of each model. Results have the order of
        the inputs; `truncated` is true where a part of an input was not read. With `explain` the answer has
        `explanations` too: the words that spoke for each answer, and against it.
        """
        name, model = service.model(body.model)
        if model.kind == "vectors":
            raise InputError(f"model {name} is an encoder alone; /v1/embeddings gives its vectors")
        values = [value if isinstance(value, str | list) else value.model_dump() for value in body.inputs]
        explanations = await _explanations(service, name, values, request, body.explain)
        if model.kind == "fill":
            texts = _texts(name, body.inputs)
            filled = await _fill(service, name, texts, request)
            return schemas.PredictResponse(model=name, kind=model.kind, results=[*filled])
        results = await service.answer(name, model.pipeline, values, request)
        return schemas.PredictResponse(model=name, kind=model.kind, results=results, explanations=explanations)

    @app.post("/v1/answer", tags=[*_TASKS])
    async def answer(
        body: Annotated[schemas.AnswerRequest, Body(openapi_examples=examples.ANSWER)], request: Request
    ) -> schemas.AnswerResponse:
        """Find the part of a passage that answers a question.

        `start` and `end` are characters of the passage; both are null where the passage has no answer.
        """
        name, model = service.model(body.model)
        if model.kind != "questions":
            raise InputError(f"model {name} is a model for {model.kind}, not for questions")
        (result,) = await service.answer(name, model.pipeline, [(body.question, body.context)], request)
        return schemas.AnswerResponse(model=name, answer=result)


def _add_pretraining_endpoints(app: FastAPI, service: Service) -> None:
    @app.post("/v1/fill", tags=[*_HEADS])
    async def fill(
        body: Annotated[schemas.FillRequest, Body(openapi_examples=examples.FILL)], request: Request
    ) -> schemas.FillResponse:
        """Give the `top_k` most probable pieces for each [MASK] of each text, with their probabilities."""
        name, _ = service.model(body.model)
        results = await _fill(service, name, body.inputs, request, top_k=body.top_k)
        return schemas.FillResponse(model=name, results=results)

    @app.post("/v1/next-sentence", tags=[*_HEADS])
    async def next_sentence(
        body: Annotated[schemas.PairRequest, Body(openapi_examples=examples.NEXT_SENTENCE)], request: Request
    ) -> schemas.FollowsResponse:
        """Give the probability that the second text follows the first in a document.

        The model must have been pre-trained with next-sentence prediction.
        """
        name, _ = service.model(body.model)
        pipeline = await service.pipeline_for(name, "next sentence")
        (result,) = await service.answer(name, pipeline, [(body.first, body.second)], request)
        return schemas.FollowsResponse(model=name, probability=result.probability, truncated=result.truncated)

    @app.post("/v1/score", tags=[*_HEADS])
    async def score(
        body: Annotated[schemas.ScoreRequest, Body(openapi_examples=examples.SCORE)], request: Request
    ) -> schemas.ScoreResponse:
        """Give the log-likelihood of each sentence, by masked LM its pseudo-log-likelihood, and its bits per character.

        `masking` is for a masked LM: `within-word` (the default) also masks the later pieces of the word, `piece` masks
        one piece at a time. `first_token` is for a language model: `count` or `leave-out`.
        """
        name, _ = service.model(body.model)
        pipeline = await service.pipeline_for(name, "score")
        assert isinstance(pipeline, ScorePipeline)
        most_tokens = service.settings.max_inputs * pipeline.max_length  # as many as inputs of a row each may have
        pipeline = pipeline.with_settings(ScoreSettings(body.masking, body.first_token), most_tokens=most_tokens)
        results = await service.answer(name, pipeline, body.inputs, request)
        return schemas.ScoreResponse(model=name, results=results)


def _add_encoder_endpoints(app: FastAPI, service: Service) -> None:
    @app.post("/v1/embeddings", tags=[*_ENCODER])
    async def embeddings(
        body: Annotated[schemas.EmbeddingsRequest, Body(openapi_examples=examples.EMBEDDINGS)], request: Request
    ) -> schemas.EmbeddingsResponse:
        """Give a vector for each text, as OpenAI's endpoint of that name.

        The model folder describes the vector: pooling, dense layers and normalisation. With `pool` it is the mean or
        the maximum over the tokens of the last layer, or the state of [CLS]. Token ids are not taken. `dimensions` may
        be the size of the vector, or a Matryoshka width of the folder. The default prompt of the folder stands before
        each text; `prompt_name` names another prompt of the folder, and `prompt` is a text, empty for no prompt.
        """
        name, _ = service.model(body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        options: Any = {"prompt_name": body.prompt_name, "prompt": body.prompt}
        vectors = await service.vectors(name, texts, request, pool=body.pool, dimensions=body.dimensions, **options)
        as_base64 = body.encoding_format == "base64"
        data = [_embedding(index, vector, as_base64=as_base64) for index, vector in enumerate(vectors)]
        tokens = request.state.log["tokens"]
        usage = schemas.Usage(prompt_tokens=tokens, total_tokens=tokens)
        return schemas.EmbeddingsResponse(data=data, model=name, usage=usage)

    @app.post("/v1/inside", tags=[*_ENCODER])
    async def inside(
        body: Annotated[schemas.InsideRequest, Body(openapi_examples=examples.INSIDE)], request: Request
    ) -> schemas.InsideResponse:
        """Show the pieces of an input, and the attention between them in one layer.

        `attention` has the weights [heads][from][to]. The input has at most 96 tokens.
        """
        name, model = service.model(body.model)
        pipeline = await service.pipeline_for(name, "inside")
        value = body.text if body.second is None else (body.text, body.second)
        (view,) = await service.answer(name, pipeline, [value], request, layer=body.layer)
        return schemas.InsideResponse(
            model=name,
            pieces=view.pieces,
            segments=view.segments,
            embeddings=summed_embeddings(model.config),
            attention=view.attention,
            layers=model.layers,
            heads=model.heads,
        )


def _add_search_endpoints(app: FastAPI, service: Service, search: SearchService) -> None:
    @app.post("/v1/search", tags=[*_SEARCH])
    async def search_index(
        body: Annotated[schemas.SearchIndexRequest, Body(openapi_examples=examples.SEARCH)], request: Request
    ) -> schemas.SearchResponse:
        """Find the rows of an index that are nearest to a query, the best first.

        With `rerank` a reranker scores the nearest `candidates` rows and orders them; the default is 50, or `top_k`
        where that is more, and at most as many as a request may have inputs. The index is one of `--index`; /v1/models
        lists them.
        """
        name, served = search.index(body.index)
        hits, truncated = await search.hits(served, body, request)
        results = [schemas.SearchResult(id=hit.id, score=hit.score, text=hit.text, fields=hit.fields) for hit in hits]
        return schemas.SearchResponse(
            index=name, model=served.model, rerank=body.rerank, results=results, truncated=truncated
        )

    @app.post("/v1/rerank", tags=[*_SEARCH], response_model_exclude_none=True)
    async def rerank(
        body: Annotated[schemas.RerankRequest, Body(openapi_examples=examples.RERANK)], request: Request
    ) -> schemas.RerankResponse:
        """Order documents by their relevance for a query, the most relevant first.

        The model was fine-tuned on pairs of a query and a document, with a number or with two labels. The relevance is
        the number, which may have any size, or the probability of `relevant_label` of /v1/models. Of a document that is
        an object the `text` is read, and nothing else. `max_tokens_per_doc` and `max_chunks_per_doc` have no effect.
        """
        name, _ = service.model(body.model)
        options: Any = {"top_k": body.top_n, "relevant": body.relevant}
        ranked = await service.rerank(name, body.query, body.documents, request, **options)
        tokens = request.state.log["tokens"]
        return schemas.RerankResponse(
            model=name,
            results=[_ranked_document(document, with_text=body.return_documents) for document in ranked],
            usage=schemas.Usage(prompt_tokens=tokens, total_tokens=tokens),
        )


def _add_status_endpoints(app: FastAPI, service: Service, search: SearchService) -> None:
    @app.get("/v1/models", tags=[*_SERVICE])
    async def models() -> schemas.ModelsResponse:
        """List the models that are served, with the form of their inputs, their labels and uses, and the indexes."""
        return schemas.ModelsResponse(
            data=[_entry(name, model, service.opened) for name, model in service.models.items()],
            indexes=[_index_entry(name, served) for name, served in search.indexes.items()],
        )

    @app.get("/v1/models/{model:path}", tags=[*_SERVICE])
    async def model_entry(model: str) -> schemas.ModelEntry:
        """Give the entry of one model in the list of `/v1/models`."""
        name, predictor = service.model(model)
        return _entry(name, predictor, service.opened)

    @app.get("/health", tags=[*_SERVICE])
    async def health() -> schemas.Health:
        """Give the state of the service, and the names of its models. It needs no token."""
        if not service.batcher.is_running:
            raise RunFailed("the service has stopped working; restart it")
        return schemas.Health(models=list(service.models))

    @app.get("/metrics", response_class=PlainTextResponse, tags=[*_SERVICE])
    async def metrics() -> Response:
        """Give the counters in the format of Prometheus."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


async def _explanations(
    service: Service, name: str, values: Sequence[Any], request: Request, explain: bool | schemas.ExplainOptions
) -> list[Explanation | None] | None:
    """Return an explanation of the answer to each input; None where none was asked for."""
    if explain is False:
        return None
    options = explain if isinstance(explain, schemas.ExplainOptions) else schemas.ExplainOptions()
    pipeline = await service.pipeline_for(name, "explain")
    settings = ExplainSettings(**options.model_dump(), seconds=service.settings.timeout)
    return await service.answer(name, pipeline, values, request, settings=settings)


async def _fill(
    service: Service, name: str, texts: Sequence[str], request: Request, *, top_k: int = 5
) -> list[FilledText]:
    pipeline = await service.pipeline_for(name, "fill")
    tokenizer = cast(MaskTokenizer, pipeline.tokenizer)
    names = {BERT_MASK, tokenizer.pieces[tokenizer.mask_id]}  # a published vocabulary has a name of its own
    masks = sum(text.count(name) for text in texts for name in names)
    if masks * top_k > _MOST_PIECES:
        raise InputError(f"{masks:,} [MASK], {top_k} pieces for each; at most {_MOST_PIECES:,} pieces in all")
    return await service.answer(name, pipeline, texts, request, top_k=top_k)


def _texts(name: str, inputs: Sequence[Any]) -> list[str]:
    for index, value in enumerate(inputs):
        if not isinstance(value, str):
            raise InputError(f"input {index}: model {name} takes a text with [MASK] in it")
    return list(inputs)


def _embedding(index: int, vector: Vector, *, as_base64: bool) -> schemas.Embedding:
    values = vector.values
    encoded = base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode() if as_base64 else values.tolist()
    return schemas.Embedding(index=index, embedding=encoded, truncated=vector.truncated)


def _ranked_document(ranked: RankedText, *, with_text: bool) -> schemas.RerankResult:
    document = schemas.DocumentInput(text=ranked.text) if with_text else None
    return schemas.RerankResult(
        index=ranked.index, relevance_score=ranked.score, document=document, truncated=ranked.truncated
    )


def _index_entry(name: str, served: ServedIndex) -> schemas.IndexEntry:
    manifest = served.index.manifest
    return schemas.IndexEntry(
        id=name, model=served.model, rows=manifest.rows, width=manifest.width, similarity=manifest.similarity
    )


def _entry(name: str, model: Predictor, opened: int) -> schemas.ModelEntry:
    uses: tuple[Use, ...] = ("fill", "next sentence", "score", "inside", "explain")
    return schemas.ModelEntry(
        id=name,
        created=opened,
        kind=model.kind,
        form=model.pipeline.form,
        labels=list(model.labels),
        relevant_label=model.relevant_label,
        uses=["predict"] * (model.kind != "vectors")
        + [use for use in uses if model.can(use)]
        + ["rerank"] * model.reranks,
        layers=model.layers,
        heads=model.heads,
        max_length=model.pipeline.max_length,
        backend=model.backend,
    )


def summed_embeddings(config: BackboneConfig) -> list[str]:
    """Return the embeddings whose sum is the input of a token: its own, and those of segment and position if any."""
    has_positions = isinstance(config, SingleBackboneConfig) and family_of(config).learns_positions
    return ["token", *["segment"] * (config.num_segments > 0), *["position"] * has_positions]

"""HTTP endpoint → service → JSON: the endpoints `/embed`, `/rerank` and `/info` of text-embeddings-inference.

Its clients name no model. So `/embed` and `/info` take the first model, and `/rerank` the first reranker.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Body, FastAPI, Request
from pydantic import BaseModel, BeforeValidator, FailFast, Field

from bertwright.errors import InputError
from bertwright.serving import examples, schemas
from bertwright.serving.predictor import Predictor
from bertwright.serving.results import RankedText, Vector
from bertwright.serving.service import Service
from bertwright.tasks.finite import logistic_of
from bertwright.version import __version__

TAG: Final = {
    "name": "text-embeddings-inference",
    "description": "Vectors, relevances and a description for clients of text-embeddings-inference.",
}
_TAGS: Final = [TAG["name"]]
_DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16"}
"""Precision of a model → its name in `/info`; any other has the same name."""


class _TruncatingRequest(schemas.ModelRequest):
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] = "right"


class EmbedRequest(_TruncatingRequest):
    """Request for the vectors of one text or several.

    With `truncate` false a text that has more tokens than the model reads is refused."""

    inputs: Annotated[
        schemas.UnicodeText | Annotated[list[schemas.UnicodeText], Field(min_length=1, max_length=100_000)],
        BeforeValidator(schemas.refuse_token_ids),
    ]
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = None


class RankRequest(_TruncatingRequest):
    """A query and the texts that are scored; `raw_scores` gives the number of a model that learned numbers."""

    query: schemas.Query
    texts: Annotated[list[schemas.UnicodeText], Field(min_length=1), FailFast()]
    raw_scores: bool = False
    return_text: bool = False


class Rank(BaseModel):
    """Text with its index in the request, from 0 on, and its score; `text` where it was asked for."""

    index: int
    score: float
    text: str | None = None


class Info(BaseModel):
    """Description of the model and the limits of the service; `model_type` has one field, the type's name."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_type: dict[Literal["embedding", "reranker", "classifier"], dict[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = None
    max_client_batch_size: int
    auto_truncate: bool = True
    tokenization_workers: int = 1
    version: str = __version__
    sha: str | None = None
    docker_label: str | None = None


def add_tei_endpoints(app: FastAPI, service: Service) -> None:
    """Add the endpoints to the application."""

    @app.post("/embed", tags=[*_TAGS])
    async def embed(
        body: Annotated[EmbedRequest, Body(openapi_examples=examples.TEI_EMBED)], request: Request
    ) -> list[list[float]]:
        """Give a vector for each text, of length 1 unless `normalize` is false.

        With `normalize` false a vector is what the model folder describes, which may be of length 1 too.
        """
        name, _ = service.model(body.model)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        vectors = await service.vectors(name, texts, request, dimensions=body.dimensions, prompt_name=body.prompt_name)
        _refuse_truncated(body, name, vectors)
        return [(_normalized(each) if body.normalize else each.values).tolist() for each in vectors]

    @app.post("/rerank", tags=[*_TAGS], response_model_exclude_none=True)
    async def rerank(
        body: Annotated[RankRequest, Body(openapi_examples=examples.TEI_RERANK)], request: Request
    ) -> list[Rank]:
        """Score texts by their relevance for a query, the most relevant first.

        The score is the probability of the relevant label, or the logistic function of the number that the model gives;
        with `raw_scores` it is the number itself.
        """
        rerankers = (name for name, model in service.models.items() if model.reranks)
        name, _ = service.model(next(rerankers, None) if body.model is None else body.model)
        label = service.check_reranker(name)
        if label is not None and body.raw_scores:
            raise InputError(
                f"raw_scores: model {name} gives the probability of {label!r}, which has no other score; leave "
                "raw_scores out"
            )
        ranked = await service.rerank(name, body.query, body.texts, request)
        in_order = sorted(ranked, key=lambda each: each.index)
        _refuse_truncated(body, name, in_order)
        is_raw = label is not None or body.raw_scores
        return [
            Rank(
                index=each.index,
                score=each.score if is_raw else logistic_of(each.score),
                text=each.text if body.return_text else None,
            )
            for each in ranked
        ]

    @app.get("/info", tags=[*_TAGS])
    async def info() -> Info:
        """Describe the first model and the limits of the service. All models are in `/v1/models`."""
        name, model = service.model(None)
        settings = service.settings
        return Info(
            model_id=name,
            model_dtype=_DTYPES.get(model.backend, model.backend),
            model_type=await _model_type(service, name, model),
            max_concurrent_requests=settings.max_connections,
            max_input_length=model.pipeline.max_length,
            max_batch_tokens=settings.batch_tokens,
            max_client_batch_size=settings.max_inputs,
        )


async def _model_type(
    service: Service, name: str, model: Predictor
) -> dict[Literal["embedding", "reranker", "classifier"], dict[str, Any]]:
    """Return the type of a model with its labels, or with its pooling."""
    if model.kind != "classification":
        return {"embedding": {"pooling": "+".join((await service.vector_pipeline(name)).pooling)}}
    labels = model.labels or ("score",)
    ids = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    return {"reranker": ids} if model.reranks else {"classifier": ids}


def _refuse_truncated(body: _TruncatingRequest, name: str, results: Sequence[Vector | RankedText]) -> None:
    """Raise InputError where an input was cut and the request does not allow it; results are in the order of inputs."""
    cut = [index for index, result in enumerate(results) if result.truncated]
    if body.truncate is False and cut:
        raise InputError(
            f"input {cut[0]}: has more tokens than model {name} reads; leave truncate out, and its end is not read"
        )


def _normalized(vector: Vector) -> Any:
    """Return the vector [D] divided by its length; one of zeros as it is."""
    length = float(np.linalg.norm(vector.values))
    return vector.values / length if length else vector.values

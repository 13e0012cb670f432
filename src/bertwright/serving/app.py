"""models → a service over HTTP: the endpoints, their description, and what they count."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException

from bertwright.console import redirect_messages
from bertwright.errors import InputError, RunFailed
from bertwright.serving import schemas
from bertwright.serving.batcher import Batcher, Overloaded, Work
from bertwright.serving.middleware import Guard
from bertwright.serving.pipelines import Head
from bertwright.serving.predictor import Predictor, checked, look_inside
from bertwright.serving.settings import ServeSettings
from bertwright.tables.reader import refuse_halves
from bertwright.version import __version__

_AT_ONCE: Final = 10_000
"""Characters that are checked and counted in the event loop itself; more take so long that others would wait."""
_MOST_PIECES: Final = 20_000
"""Candidates for [MASK] in one answer, which is made of JSON while others wait."""
_NOT_JSON: Final = "the request's body is not JSON"
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": schemas.ErrorResponse, "description": text}
    for code, text in {
        400: "not JSON, or a body whose end may be read in two ways",
        401: "no token, or another",
        404: "no such model",
        408: "sent too slowly",
        413: "too large",
        415: "not sent as JSON",
        421: "asked under a foreign name",
        422: "not what the model takes",
        503: "too much to do, where Retry-After says when to come back; not done in time; or a model that fails",
    }.items()
}


class UnknownModel(InputError):
    """A request for a model that is not served."""


class Service:
    """The models that are served, and the one thread that computes for all of them."""

    def __init__(self, models: Mapping[str, Predictor], settings: ServeSettings, *, rate: float) -> None:
        self.models, self.settings = dict(models), settings
        self.registry = CollectorRegistry()
        counted: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("bertwright_requests", "requests answered", ("path", "status"), **counted)
        self.seconds = Histogram("bertwright_request_seconds", "from the first byte to the last", ("path",), **counted)
        self.inputs = Counter("bertwright_inputs", "inputs of accepted requests", ("model", "use"), **counted)
        batch_inputs = Histogram(
            "bertwright_batch_inputs", "inputs computed together", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **counted
        )
        batch_tokens = Counter("bertwright_tokens", "tokens computed", **counted)
        waiting = Gauge("bertwright_waiting_tokens", "tokens that wait to be computed", **counted)

        def seen(inputs: int, tokens: int) -> None:
            batch_inputs.observe(inputs)
            batch_tokens.inc(tokens)

        self.batcher = Batcher(
            batch_tokens=settings.batch_tokens,
            most_seconds=settings.max_wait,
            longest_seconds=settings.timeout,
            rate=rate,
            seen=seen,
        )
        waiting.set_function(lambda: float(self.batcher.waiting_tokens))

    def model(self, name: str | None) -> tuple[str, Predictor]:
        """A model by name, the first one without; UnknownModel for another."""
        if name is None:
            return next(iter(self.models.items()))
        if name not in self.models:
            raise UnknownModel(f"there is no model {name[:60]!r}; there are {', '.join(self.models)}")
        return name, self.models[name]

    async def answers(
        self, name: str, head: Head[Any], given: Sequence[Any], told: dict[str, Any], **how: Any
    ) -> list[Any]:
        """The results for inputs of a request; InputError for what the head does not take."""
        items, tokens = await self.read(name, head, given)
        told |= {"model": name, "use": head.kind, "inputs": len(items), "tokens": sum(tokens)}
        self.inputs.labels(name, head.kind).inc(len(items))
        kind = (name, head.kind)
        work = Work((kind, *sorted(how.items())), kind, partial(_quietly, partial(head.answers, **how)))
        return await self.batcher.answers(work, items, tokens)

    async def read(self, name: str, head: Head[Any], given: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """Inputs, checked, and how many tokens each is."""
        most = self.settings.max_inputs
        if len(given) > most:
            raise InputError(f"{len(given):,} inputs; at most {most:,} in one request")
        choices = [len(value["choices"]) for value in given if isinstance(value, dict) and "choices" in value]
        if sum(choices) > most:
            raise InputError(f"{sum(choices):,} choices; at most {most:,} in one request")
        if sum(len(str(value)) for value in given) > _AT_ONCE:
            return await asyncio.to_thread(self._read, name, head, given)
        return self._read(name, head, given)

    def _read(self, name: str, head: Head[Any], given: Sequence[Any]) -> tuple[list[Any], list[int]]:
        items = []
        for place, value in enumerate(given):
            item = checked(head, tuple(value) if isinstance(value, list) else value, place)
            if item is None:
                raise InputError(
                    f"input {place}: model {name} takes {head.form}; in JSON a pair is a list, and a choice an object"
                )
            for text in head.texts(item):
                if len(text) > self.settings.max_characters:
                    most = self.settings.max_characters
                    raise InputError(f"input {place}: a text of {len(text):,} characters; at most {most:,}")
            items.append(item)
        words = self.models[name].words
        return items, [head.tokens(item, words) for item in items]


def create_app(
    models: Mapping[str, Predictor], settings: ServeSettings | None = None, *, rate: float = 20_000.0, log: bool = False
) -> FastAPI:
    """The application for the models by name. rate: tokens a second, as far as it is known; it is measured on the way.

    log: a line of JSON on standard error for each request.
    """
    settings = settings or ServeSettings()
    service = Service(models, settings, rate=rate)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await service.batcher.stop()

    app = FastAPIOffline(  # its /docs loads nothing from other hosts
        redoc_url=None,
        title="bertwright",
        version=__version__,
        summary="Answers of BERT models: labels, entities, answers to questions, filled masks, vectors.",
        lifespan=life,
        responses=_REFUSALS,
    )
    _handle_errors(app)
    _add_endpoints(app, service)
    _add_page(app)
    app.add_middleware(Guard, settings=settings, requests=service.requests, seconds=service.seconds, log=log)
    return app


def _add_endpoints(app: FastAPI, service: Service) -> None:
    def told(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = request.state.told
        return found

    @app.post("/v1/predict")
    async def predict(asked: schemas.PredictRequest, request: Request) -> schemas.PredictResponse:
        """What the model was trained for: labels, a number, entities, answers, choices, filled masks."""
        name, model = service.model(asked.model)
        if model.kind == "vectors":
            raise InputError(f"model {name} is an encoder alone; /v1/embeddings gives its vectors")
        if model.kind == "fill":
            found = await fill(schemas.FillRequest(model=name, inputs=_texts(name, asked.inputs)), request)
            return schemas.PredictResponse(model=name, kind=model.kind, results=[*found.results])
        values = [value if isinstance(value, str | list) else value.model_dump() for value in asked.inputs]
        results = await service.answers(name, model.head, values, told(request))
        return schemas.PredictResponse(model=name, kind=model.kind, results=results)

    @app.post("/v1/fill")
    async def fill(asked: schemas.FillRequest, request: Request) -> schemas.FillResponse:
        """The likeliest pieces for each [MASK]."""
        name, model = service.model(asked.model)
        head = await _head(model, "fill")
        masks = sum(text.count("[MASK]") for text in asked.inputs)
        if masks * asked.top_k > _MOST_PIECES:
            raise InputError(f"{masks:,} [MASK], {asked.top_k} pieces for each; at most {_MOST_PIECES:,} pieces in all")
        results = await service.answers(name, head, asked.inputs, told(request), top_k=asked.top_k)
        return schemas.FillResponse(model=name, results=results)

    @app.post("/v1/answer")
    async def answer(asked: schemas.AnswerRequest, request: Request) -> schemas.AnswerResponse:
        """The piece of a passage that answers a question."""
        name, model = service.model(asked.model)
        if model.kind != "questions":
            raise InputError(f"model {name} is a model for {model.kind}, not for questions")
        found = await service.answers(name, model.head, [(asked.question, asked.context)], told(request))
        return schemas.AnswerResponse(model=name, answer=found[0])

    @app.post("/v1/next-sentence")
    async def next_sentence(asked: schemas.PairRequest, request: Request) -> schemas.FollowsResponse:
        """How likely the second text follows the first."""
        name, model = service.model(asked.model)
        head = await _head(model, "next sentence")
        found = await service.answers(name, head, [(asked.first, asked.second)], told(request))
        return schemas.FollowsResponse(model=name, probability=found[0].probability, truncated=found[0].truncated)

    @app.post("/v1/embeddings")
    async def embeddings(asked: schemas.EmbeddingsRequest, request: Request) -> schemas.EmbeddingsResponse:
        """One vector for each text."""
        name, model = service.model(asked.model)
        head = await _head(model, "vectors")
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        found = await service.answers(name, head, texts, told(request), pool=asked.pool)
        as_text = asked.encoding_format == "base64"
        data = [
            schemas.Embedding(
                index=index,
                embedding=_base64(one.values) if as_text else one.values.tolist(),
                truncated=one.truncated,
            )
            for index, one in enumerate(found)
        ]
        read = told(request)["tokens"]
        return schemas.EmbeddingsResponse(
            data=data, model=name, usage=schemas.Usage(prompt_tokens=read, total_tokens=read)
        )

    @app.post("/v1/inside")
    async def inside(asked: schemas.InsideRequest, request: Request) -> schemas.InsideResponse:
        """The pieces of an input, and the attention between them in one layer."""
        name, model = service.model(asked.model)

        def look(items: Sequence[Any]) -> list[Any]:
            return [look_inside(model, *item) for item in items]

        given = (asked.text, asked.second or "")
        size = sum(map(len, given))
        if size > _AT_ONCE:
            raise InputError(f"texts of {size:,} characters; so much is not drawn")
        refuse_halves(given)
        told(request).update(model=name, use="inside", inputs=1)
        kind = (name, "inside")
        item = (asked.text, asked.second, asked.layer)
        found = (await service.batcher.answers(Work(kind, kind, partial(_quietly, look)), [item], [max(1, size)]))[0]
        return schemas.InsideResponse(
            model=name,
            pieces=found.pieces,
            segments=found.segments,
            attention=found.attention,
            layers=model.config.layers,
            heads=model.heads,
        )

    @app.get("/v1/models")
    async def models() -> schemas.ModelsResponse:
        """The models that are served."""
        return schemas.ModelsResponse(data=[_entry(name, model) for name, model in service.models.items()])

    @app.get("/health")
    async def health() -> schemas.Health:
        """Whether requests are answered."""
        if not service.batcher.works:
            raise RunFailed("the service has stopped to work")
        return schemas.Health(models=list(service.models))

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI) -> None:
    page = Path(__file__).with_name("page.html").read_text("utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        return page


def _handle_errors(app: FastAPI) -> None:
    def refuse(status: int, message: str, kind: str = "invalid_request", **headers: str) -> JSONResponse:
        return JSONResponse({"error": {"message": message, "type": kind}}, status, headers)

    @app.exception_handler(InputError)
    async def bad_input(_: Request, error: InputError) -> JSONResponse:
        return refuse(404 if isinstance(error, UnknownModel) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        if any(isinstance(one.get("input"), bytes) for one in found):  # what is not called JSON is not read as such
            kind = request.headers.get("content-type")
            how = f"sent as {kind[:60]!r}" if kind else "sent without a Content-Type"
            return refuse(415, f"{how}; send JSON with the header Content-Type: application/json")
        if any(one["type"] == "json_invalid" for one in found):
            return refuse(400, _NOT_JSON)
        places = [".".join(map(str, one["loc"][1:])) or "body" for one in found[:3]]
        told = (f"{place}: {one['msg']}" for place, one in zip(places, found, strict=False))
        return refuse(422, "; ".join(told))

    @app.exception_handler(HTTPException)
    async def known(_: Request, error: HTTPException) -> JSONResponse:
        told = _NOT_JSON if error.status_code == 400 else str(error.detail)  # too deep, or no Unicode
        return refuse(error.status_code, told, **(error.headers or {}))

    @app.exception_handler(Overloaded)
    async def overloaded(_: Request, error: Overloaded) -> JSONResponse:
        return refuse(503, str(error), "overloaded", **{"Retry-After": str(error.seconds)})

    @app.exception_handler(RunFailed)
    async def failed(_: Request, error: RunFailed) -> JSONResponse:
        return refuse(503, str(error), "model_failed")


def _texts(name: str, inputs: Sequence[Any]) -> list[str]:
    for place, value in enumerate(inputs):
        if not isinstance(value, str):
            raise InputError(f"input {place}: model {name} takes a text with [MASK] in it")
    return list(inputs)


async def _head(model: Predictor, use: Any) -> Head[Any]:
    return await asyncio.to_thread(model.used_for, use)


def _quietly(compute: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any]) -> list[Any]:
    with redirect_messages(lambda _: None):
        return compute(items)


def _base64(values: Any) -> str:
    return base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode()


def _entry(name: str, model: Predictor) -> schemas.ModelEntry:
    uses = ["predict"] if model.kind != "vectors" else []
    uses += [use for use in ("fill", "next sentence") if model.can(use)]
    uses += ["inside"] * bool(model.heads and getattr(model.words, "has_special", True))
    return schemas.ModelEntry(
        id=name,
        kind=model.kind,
        form=model.head.form,
        labels=list(model.labels),
        uses=uses,
        layers=model.config.layers,
        heads=model.heads,
        max_length=model.head.max_length,
        backend=model.backend,
    )

"""models → the application over HTTP: middleware, endpoints, errors, the page."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from bertwright.errors import InputError, RunFailed
from bertwright.serving import schemas
from bertwright.serving.batcher import RETRY_SECONDS, Overloaded
from bertwright.serving.endpoints import TAGS, add_endpoints
from bertwright.serving.middleware import RequestMiddleware
from bertwright.serving.predictor import Predictor
from bertwright.serving.search import SearchService, ServedIndex, UnknownIndex
from bertwright.serving.service import Service, UnknownModel
from bertwright.serving.settings import ServeSettings
from bertwright.tasks.finite import NotFinite
from bertwright.version import __version__

_NOT_JSON: Final = "the request's body is not JSON"
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": schemas.ErrorResponse, "description": text}
    for code, text in {
        400: "not JSON, or a body whose end may be read in two ways",
        401: "no token, or a wrong one",
        404: "no such model, or no such index",
        408: "sent too slowly",
        413: "too large",
        415: "not sent as JSON",
        421: "sent to a foreign host name",
        422: "an input that the model does not take",
        500: "an answer of the model that is not finite; the message has the number of the input",
        503: "a full queue, where Retry-After tells when to try again; not done in time; or a model that fails",
    }.items()
}


def create_app(
    models: Mapping[str, Predictor],
    settings: ServeSettings | None = None,
    *,
    indexes: Mapping[str, ServedIndex] | None = None,
    log: bool = False,
) -> FastAPI:
    """Return the application for models and indexes by name.

    With `log` each request is a line of JSON on standard error.
    """
    settings = settings or ServeSettings()
    service = Service(models, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await service.batcher.stop()

    app = FastAPIOffline(  # its /docs loads nothing from other hosts
        redoc_url=None,
        title="bertwright",
        version=__version__,
        summary="Answers of BERT models: labels, entities, answers to questions, filled masks, vectors, searches.",
        description="Requests and answers are JSON. A request without `model` goes to the first model. An error is "
        '`{"error": {"message", "type"}}`; its message names the input by its number, from 0 on.',
        openapi_tags=TAGS,
        lifespan=lifespan,
        responses=_REFUSALS,
    )
    _add_error_handlers(app)
    add_endpoints(app, service, SearchService(service, indexes or {}))
    _add_page(app)
    app.add_middleware(
        RequestMiddleware, settings=settings, requests=service.requests, seconds=service.seconds, log=log
    )
    return app


def _add_page(app: FastAPI) -> None:
    page = Path(__file__).with_name("page.html").read_text("utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        return page


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(InputError)
    async def input_error(_: Request, error: InputError) -> JSONResponse:
        return _refusal(404 if isinstance(error, UnknownModel | UnknownIndex) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        if any(isinstance(part.get("input"), bytes) for part in errors):  # a body without JSON's content type is bytes
            kind = request.headers.get("content-type")
            sent = f"sent as {kind[:60]!r}" if kind else "sent without a Content-Type"
            return _refusal(415, f"{sent}; send JSON with the header Content-Type: application/json")
        if any(part["type"] == "json_invalid" for part in errors):
            return _refusal(400, _NOT_JSON)
        fields = [".".join(map(str, part["loc"][1:])) or "body" for part in errors[:3]]
        messages = (f"{field}: {part['msg']}" for field, part in zip(fields, errors, strict=False))
        return _refusal(422, "; ".join(messages))

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        message = _NOT_JSON if error.status_code == 400 else str(error.detail)  # 400: nested too deep, or no Unicode
        return _refusal(error.status_code, message, **(error.headers or {}))

    @app.exception_handler(Overloaded)
    async def overloaded(_: Request, error: Overloaded) -> JSONResponse:
        return _refusal(503, str(error), "overloaded", **{"Retry-After": str(RETRY_SECONDS)})

    @app.exception_handler(NotFinite)
    async def not_finite(_: Request, error: NotFinite) -> JSONResponse:
        return _refusal(500, str(error), "model_failed")

    @app.exception_handler(RunFailed)
    async def run_failed(_: Request, error: RunFailed) -> JSONResponse:
        return _refusal(503, str(error), "model_failed")


def _refusal(status: int, message: str, kind: str = "invalid_request", **headers: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind}}, status, headers)

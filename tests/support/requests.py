"""Requests to the application of models, without a network."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2 as httpx

from bertwright.serving.app import create_app
from bertwright.serving.predictor import Predictor
from bertwright.serving.search import ServedIndex
from bertwright.serving.settings import ServeSettings


class Requests:
    """Requests to the application within one event loop, its life included."""

    def __init__(
        self, models: dict[str, Predictor], *, indexes: Mapping[str, ServedIndex] | None = None, **settings: Any
    ) -> None:
        self.app = create_app(models, ServeSettings(**settings), indexes=indexes)

    def __call__(self, *requests: tuple[Any, ...], together: bool = False) -> list[httpx.Response]:
        """(method, path, JSON or bytes, headers) of each → its response."""

        async def ask() -> list[httpx.Response]:
            async with self.app.router.lifespan_context(self.app):
                transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                    calls = [self._one(client, *request) for request in requests]
                    return list(await asyncio.gather(*calls)) if together else [await call for call in calls]

        return asyncio.run(ask())

    async def _one(
        self, client: httpx.AsyncClient, method: str, path: str, body: Any = None, headers: Any = None
    ) -> httpx.Response:
        body_argument = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        headers = {"content-type": "application/json", **(headers or {})}
        return await client.request(method, path, headers=headers, **body_argument)

"""models → a process that answers requests at a port until a signal comes."""

import errno
import json
import logging
import math
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from bertwright.console import say
from bertwright.errors import InputError, RunFailed, legible
from bertwright.portable import IS_POSIX
from bertwright.serving.app import create_app
from bertwright.serving.connection import connections
from bertwright.serving.middleware import is_local, now
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.search import ServedIndex
from bertwright.serving.settings import AnswerPrecision, ServeSettings
from bertwright.tasks.finite import NOT_FINITE, NotFinite


def open_models(folders: Mapping[str, str], *, precision: AnswerPrecision) -> dict[str, Predictor]:
    """Open the models by name. Raises RunFailed for a model whose output is not finite."""
    models = {name: load(folder, precision=precision) for name, folder in folders.items()}
    for model in models.values():
        try:
            model.pipeline.answer([model.pipeline.example])  # the first answer also packs the weights
        except NotFinite:
            raise RunFailed(f"{model.source}: cannot be served: {NOT_FINITE}") from None
    return models


def serve(
    models: Mapping[str, Predictor],
    settings: ServeSettings,
    *,
    indexes: Mapping[str, ServedIndex] | None = None,
    ready: Callable[[str], Any] = lambda url: None,
) -> None:
    """Answer requests until SIGINT or SIGTERM, then finish the accepted ones. `ready` is called with the address."""
    indexes = indexes or {}
    listening = _listening_socket(settings)
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    if not is_local(settings.host) and settings.token is None:
        say(f"{url} has no --token: anyone who reaches it may use it")
    descriptions = [f"{name}: {model.kind}, {model.backend}" for name, model in models.items()]
    descriptions += [f"index {name}: {len(served.index):,} rows" for name, served in indexes.items()]
    say(f"serving at {url} ({'; '.join(descriptions)}); Ctrl-C ends it")
    config = uvicorn.Config(
        create_app(models, settings, indexes=indexes, log=True),
        http=connections(settings.read_timeout),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=math.ceil(settings.timeout),
    )
    _log_as_json()
    server = _Server(config, lambda: ready(url))
    try:
        server.run(sockets=[listening])
    except (KeyboardInterrupt, SystemExit):  # uvicorn raises the signal again after its shutdown
        if not server.started:
            raise
    finally:
        listening.close()


class _JsonHandler(logging.Handler):
    """Writes uvicorn's messages as lines of JSON like those of requests; errors with their position in the code."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        line = {"time": now(), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            frames = traceback.extract_tb(record.exc_info[1].__traceback__)
            line["error"] = type(record.exc_info[1]).__name__  # its message may hold a text of a request
            line["at"] = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        print(json.dumps(line), file=sys.stderr, flush=True)


def _log_as_json() -> None:
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.propagate = name == "uvicorn.error"  # to the logger uvicorn
        logger.handlers = [] if logger.propagate else [_JsonHandler()]
        logger.setLevel(logging.WARNING)


class _Server(uvicorn.Server):
    """uvicorn's server, which calls `ready` when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()


def _listening_socket(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sets TCP_NODELAY, which saves 40 ms an answer, only where the socket's protocol is TCP
    server = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if IS_POSIX:  # on Windows the option would let another program take the port
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((settings.host, settings.port))
        server.listen(min(settings.max_connections, 1024))
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            message = (
                f"--port {settings.port}: another program listens there; name another port, or 0 for any free port"
            )
            raise InputError(message) from None
        raise InputError(f"--host {settings.host} --port {settings.port}: {error.strerror}") from None
    except OverflowError as error:
        server.close()
        raise InputError(f"--port {settings.port}: {error}") from None
    except (TypeError, ValueError):  # the name holds a zero byte, or is not UTF-8
        server.close()
        raise InputError(f"--host {legible(settings.host)}: expected the name or address of a host") from None
    return server

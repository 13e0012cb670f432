"""The service as a process: models opened and tried, a port taken, requests answered until a signal comes."""

import errno
import json
import logging
import math
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import uvicorn

from bertwright.console import redirect_messages, say
from bertwright.errors import InputError, RunFailed, legible
from bertwright.serving.app import create_app
from bertwright.serving.connection import connections
from bertwright.serving.middleware import is_local, now
from bertwright.serving.predictor import Asked, Predictor, load
from bertwright.serving.settings import ServeSettings

_TURNS: Final = 3


def open_models(named: Mapping[str, str], *, precision: Asked) -> tuple[dict[str, Predictor], float]:
    """The models by name, each tried once, and about how many tokens a second the slowest answers."""
    models = {name: load(place, precision=precision) for name, place in named.items()}
    return models, min(tried(model) for model in models.values())


def tried(model: Predictor) -> float:
    """Tokens a second; RunFailed for a model whose numbers are not finite."""
    head = model.head
    inputs = [head.example] * 8
    try:
        with redirect_messages(lambda _: None):
            head.answers(inputs)  # the first call packs what later ones need
            begin = time.perf_counter()
            for _ in range(_TURNS):
                head.answers(inputs)
            seconds = time.perf_counter() - begin
    except RunFailed as error:
        raise RunFailed(f"{model.place}: cannot be served: {error}") from None
    tokens = sum(int(head.tokens(one, model.words)) for one in inputs)
    return _TURNS * tokens / seconds


def serve(
    models: Mapping[str, Predictor],
    settings: ServeSettings,
    *,
    rate: float,
    ready: Callable[[str], Any] = lambda url: None,
) -> None:
    """Answer until SIGINT or SIGTERM, then finish what was accepted. `ready` is told the address."""
    listening = _bound(settings)
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    if not is_local(settings.host) and settings.token is None:
        say(f"anyone who reaches {url} may use it: it has no --token")
    told = "; ".join(f"{name}: {model.kind}, {model.backend}" for name, model in models.items())
    say(f"serving at {url} ({told}); Ctrl-C ends it")
    config = uvicorn.Config(
        create_app(models, settings, rate=rate, log=True),
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
    except (KeyboardInterrupt, SystemExit):  # uvicorn raises the signal once more when all is done
        if not server.started:
            raise
    finally:
        listening.close()


class _AsJson(logging.Handler):
    """What uvicorn has to say, as lines like those of requests; what went wrong inside, with where."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        line = {"time": now(), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            frames = traceback.extract_tb(record.exc_info[1].__traceback__)
            line["error"] = type(record.exc_info[1]).__name__  # its text may hold what somebody wrote
            line["at"] = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        print(json.dumps(line), file=sys.stderr, flush=True)


def _log_as_json() -> None:
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = ([_AsJson()] if name != "uvicorn.error" else []), name == "uvicorn.error"
        logger.setLevel(logging.WARNING)


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()


def _bound(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns off waiting for fuller packets, 40 ms an answer, only where the socket says that it is TCP
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(min(settings.max_connections, 1024))
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            told = f"--port {settings.port}: another program listens there; name another, or 0 for any that is free"
            raise InputError(told) from None
        raise InputError(f"--host {settings.host} --port {settings.port}: {error.strerror}") from None
    except OverflowError as error:
        found.close()
        raise InputError(f"--port {settings.port}: {error}") from None
    except (TypeError, ValueError):  # no host is called so: it holds no character, or half of one
        found.close()
        raise InputError(f"--host {legible(settings.host)}: is no name or address of a host") from None
    return found

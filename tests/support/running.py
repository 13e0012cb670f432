"""The application at a port of this machine, in a thread."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn

from bertwright.serving.app import create_app
from bertwright.serving.predictor import Predictor
from bertwright.serving.settings import ServeSettings


@contextmanager
def running(models: Mapping[str, Predictor], **settings: Any) -> Iterator[int]:
    """Serve the models; the port."""
    app = create_app(models, ServeSettings(**settings))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it accepts connections from here on
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()

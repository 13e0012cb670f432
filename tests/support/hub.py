"""A server on this machine that stands for the Hugging Face Hub."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def hub_server(handler: type[BaseHTTPRequestHandler], home: Path) -> Iterator[dict[str, str]]:
    """Serve requests with `handler`; give the environment in which it is the Hub and `home` the cache."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                "HF_HOME": str(home),
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_HUB_OFFLINE": "0",
                "HF_DATASETS_OFFLINE": "0",
            }
        finally:
            server.shutdown()

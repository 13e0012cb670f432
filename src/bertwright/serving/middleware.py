"""network → endpoints: access, limits of size and time, metrics and the log of requests.

A request is read completely, within a time and a size, before it is processed. Where a client goes away, its request is
cancelled. The log has a line of JSON for each request and never holds a text.
"""

import asyncio
import hmac
import ipaddress
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from prometheus_client import Counter, Histogram

from bertwright.errors import shown
from bertwright.serving.settings import ServeSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_HOST: Final = re.compile(rb"(?:\[([0-9a-f]*:[0-9a-f:.]+)\]|([0-9a-z.-]+))(?::[0-9]*)?", re.IGNORECASE)
"""An IPv6 address in brackets, a name, or an IPv4 address; a port may follow (RFC 9112, 3.2)."""
_WITH_TOKEN: Final = ("/v1/", "/metrics", "/embed", "/rerank", "/info")
"""Beginnings of the paths that need the token."""
_DISCARDED_BYTES: Final = 64_000_000
"""Largest number of bytes of a too large request that are read and discarded."""
_DISCARD_SECONDS: Final = 5.0
"""Longest time for reading them."""
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; connect-src 'self'; "
        b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class _Refused(Exception):
    """A request that is refused: status and message of the answer, and whether the connection is closed."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request", close: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.close = status, message, kind, close


class RequestMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: Any, *, settings: ServeSettings, requests: Counter, seconds: Histogram, log: bool = True
    ) -> None:
        self.app, self.settings, self.log = app, settings, log
        self._requests, self._seconds = requests, seconds

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Process a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), [0]
        scope["state"] = {**scope.get("state", {}), "log": {}}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            await self._process(scope, receive, send_with_headers, status)
        except _Refused as refused:
            await _send_refusal(send_with_headers, refused)
        except Exception:
            if not status[0]:
                await _send_refusal(send_with_headers, _Refused(500, "the service failed", kind="failed", close=True))
            raise
        finally:
            self._record(scope, status[0], time.perf_counter() - begin)

    async def _process(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, status: list[int]) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        _check_framing(scope["http_version"], headers)
        self._check_host(headers)
        self._check_token(scope["path"], headers)
        body = await self._body(headers, receive)
        sent = False

        async def receive_body() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        answer = asyncio.ensure_future(self.app(scope, receive_body, send))
        disconnect = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({answer, disconnect}, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
                return
            if disconnect.done():
                status[0] = 499  # nginx's status for a client that closed the connection; it is only logged
                return
            if not status[0]:
                raise _Refused(503, f"not answered within {self.settings.timeout:g} s", kind="timeout")
        finally:
            for task in (answer, disconnect):
                task.cancel()
            await asyncio.gather(answer, disconnect, return_exceptions=True)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Refuse foreign host names where the service is local: a page of another site could use them to reach it."""
        if not is_local(self.settings.host):
            return
        host = headers.get(b"host", b"")
        parts = _HOST.fullmatch(host)
        if not parts or not is_local((parts[1] or parts[2]).decode()):
            message = f"expected the host localhost, 127.0.0.1 or [::1], got {shown(host.decode('latin-1'))!r}"
            raise _Refused(421, f"{message}; start the service with --host for other names", close=True)

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Refuse a wrong token. The scheme is in either case, before any number of spaces (RFC 9110, 11.1 and 11.4)."""
        if self.settings.token is None or not path.startswith(_WITH_TOKEN):
            return
        scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
        is_known = hmac.compare_digest(sent.lstrip(b" "), self.settings.token.encode())
        if scheme.lower() != b"bearer" or not is_known:
            raise _Refused(
                401, "send the service's token as Authorization: Bearer TOKEN", kind="unauthorized", close=True
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        most = self.settings.max_body
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            if b"expect" not in headers:  # a client that waits for "100 Continue" has sent no body yet
                await _discard_body(receive)
            raise _Refused(413, f"a request of {int(length):,} bytes; at most {most:,}", close=True)
        try:
            async with asyncio.timeout(self.settings.read_timeout):
                body, more = bytearray(), True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(499, "gone", close=True)
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        if more:
                            await _discard_body(receive)
                        raise _Refused(413, f"a request of more than {most:,} bytes", close=True)
        except TimeoutError:
            raise _Refused(408, f"not sent within {self.settings.read_timeout:g} s", close=True) from None
        return bytes(body)

    def _record(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if self.log:
            line = {
                "time": now(),
                "method": scope["method"],
                "path": route,
                "status": status,
                "ms": round(1000 * seconds, 1),
                **scope["state"]["log"],
            }
            print(json.dumps(line), file=sys.stderr, flush=True)


def is_local(host: str) -> bool:
    """Return whether a name or address, in any spelling, means this machine alone."""
    host = host.lower().removesuffix(".")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def now() -> str:
    """Return the time for a line of the log."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _check_framing(version: str, headers: dict[bytes, bytes]) -> None:
    """Refuse a body whose end can be read in two ways (RFC 9112, 6.1 and 6.3).

    A proxy may read the other end. Then a part of the body would be a request here that the proxy has not seen. h11
    refuses other such requests: different lengths, and codings other than `chunked`.
    """
    if b"transfer-encoding" not in headers:
        return
    if b"content-length" in headers:
        raise _Refused(400, "sent with Content-Length and with Transfer-Encoding; send one of the two", close=True)
    if version < "1.1":
        raise _Refused(400, f"Transfer-Encoding is unknown to HTTP/{version}; send Content-Length", close=True)


async def _discard_body(receive: Receive) -> None:
    """Read on for a while: else a client that still sends finds the connection closed and reads no answer."""
    left = _DISCARDED_BYTES
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_refusal(send: Send, refused: _Refused) -> None:
    body = json.dumps({"error": {"message": refused.message, "type": refused.kind}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

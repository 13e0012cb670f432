"""Connections whose client ends its sending, goes away, or sends bytes that two readers read in two ways."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from bertwright.serving.connection import _QUIET_SECONDS, connections

Application = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def client_of(app: Application) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's two ends of a connection to the application."""
    config = uvicorn.Config(app, http=connections(20.0), log_config=None, lifespan="off")
    config.load()
    state = ServerState()

    def connected() -> asyncio.Protocol:
        protocol: Any = config.http_protocol_class
        made: asyncio.Protocol = protocol(config=config, server_state=state, app_state={})
        return made

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(20):
            yield reader, writer
    except BaseException:
        for task in state.tasks:  # what the application waits for will not come
            task.cancel()
        raise
    finally:
        writer.close()
        server.close()
        while state.tasks or state.connections:
            await asyncio.sleep(0.01)


async def whole_request(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    return body


async def respond(send: Any, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the path and the body, a little later."""
    body = await whole_request(receive)
    await asyncio.sleep(0.05)  # the end of the client's sending comes first
    await respond(send, scope["path"].encode() + b" " + body)


@pytest.mark.parametrize(
    ("sent", "bodies"),
    [
        (GET, [b"/ "]),
        (GET.replace(b"1.1", b"1.0"), [b"/ "]),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), [b"/ "]),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"), [b"/ "]),
        (GET.replace(b"GET /", b"POST /a").replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n {"), [b"/a  {"]),
        (
            GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            + b"0\r\n\r\n",
            [b"/ x"],
        ),
        (GET + GET.replace(b"/ ", b"/second ") + GET.replace(b"/ ", b"/third "), [b"/ ", b"/second ", b"/third "]),
        (GET + GET[:9], [b"/ "]),
        (GET + GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\nhalf"), [b"/ "]),
    ],
)
def test_a_client_that_sends_no_more_gets_the_answers_that_are_due(
    sent: bytes, bodies: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.serving.connection._QUIET_SECONDS", 60.0)  # no probe stands among the answers

    async def gets() -> bytes:
        async with client_of(forgiving) as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            return await reader.read()

    async def forgiving(scope: Any, receive: Any, send: Any) -> None:
        try:
            await echo(scope, receive, send)
        except AssertionError:  # half of a request, whose client is taken for gone
            await respond(send, b"nobody reads this")

    answers = asyncio.run(gets()).split(b"HTTP/1.1 ")
    assert answers[0] == b""
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers[1:]] == bodies
    assert all(answer.startswith(b"200 ") for answer in answers[1:])


def test_a_client_that_waits_for_long_is_answered_all_the_same() -> None:
    async def waits() -> tuple[bytes, bytes]:
        is_told = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await whole_request(receive)
            await is_told.wait()
            await respond(send, b"at last")

        async with client_of(slow) as (reader, writer):
            writer.write(GET)
            writer.write_eof()
            signs = [await reader.readuntil(b"\r\n\r\n") for _ in range(3)]
            is_told.set()
            return b"".join(signs), await reader.read()

    signs, answer = asyncio.run(waits())
    assert signs == 3 * b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.rpartition(b"HTTP/1.1 ")[2].startswith(b"200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nat last")


def test_a_client_of_http_1_0_is_sent_no_sign() -> None:
    """Such a client would take the sign for the answer."""

    async def waits() -> bytes:
        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await whole_request(receive)
            await asyncio.sleep(2 * _QUIET_SECONDS)
            await respond(send, b"at last")

        async with client_of(slow) as (reader, writer):
            writer.write(GET.replace(b"1.1", b"1.0"))
            writer.write_eof()
            return await reader.read()

    assert asyncio.run(waits()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("ends_its_sending_first", [False, True])
def test_a_client_that_is_gone_is_noticed(ends_its_sending_first: bool) -> None:
    async def notices() -> list[str]:
        seen: list[str] = []
        is_read, is_gone = asyncio.Event(), asyncio.Event()

        async def patient(scope: Any, receive: Any, send: Any) -> None:
            await whole_request(receive)
            is_read.set()
            seen.append((await receive())["type"])
            is_gone.set()

        async with client_of(patient) as (reader, writer):
            writer.write(GET)
            await is_read.wait()
            if ends_its_sending_first:
                writer.write_eof()
                await reader.readuntil(b"\r\n\r\n")
                assert not seen
            writer.close()
            await is_gone.wait()
        return seen

    assert asyncio.run(notices()) == ["http.disconnect"]


@pytest.mark.parametrize(
    "lines",
    [
        b"Transfer-Encoding:\r\n chunked\r\n",
        b"X: a\r\n Transfer-Encoding: chunked\r\n",
        b"Content-Length: 1\r\n\t2\r\n",
        b"X: a\n\tb\r\n",
        b"X: a\r\n \r\n",
        b" X: a\r\n",
    ],
)
@pytest.mark.parametrize(("before", "in_pieces"), [(b"", False), (b"", True), (GET, False)])
def test_a_header_line_that_goes_on_in_the_next_is_refused(lines: bytes, before: bytes, in_pieces: bool) -> None:
    calls = []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["headers"])
        await echo(scope, receive, send)

    async def refused() -> bytes:
        async with client_of(counted) as (reader, writer):
            sent = before + b"POST / HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n0\r\n\r\n"
            if in_pieces:  # no more than the first space of the line
                fold = re.search(rb"\n[ \t]", sent)
                assert fold
                sent = sent[: fold.end()]
                for sign in sent[:-1]:
                    writer.write(bytes([sign]))
                    await asyncio.sleep(0.001)  # so that each is read by itself
                sent = sent[-1:]
            writer.write(sent)
            return await reader.read()

    answers = asyncio.run(refused()).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * bool(before) + [b"400"]
    assert len(calls) == bool(before)
    assert b"connection: close" in answers[-1].lower()


def test_spaces_at_the_beginning_of_a_body_are_no_part_of_the_head() -> None:
    async def gets() -> bytes:
        async with client_of(echo) as (reader, writer):
            for body in (b" \t{}", b"\n x", b"\r\n y"):
                head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX:  a b\t \r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
            writer.write_eof()
            return await reader.read()

    answers = asyncio.run(gets()).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [b"/  \t{}", b"/ \n x", b"/ \r\n y"]

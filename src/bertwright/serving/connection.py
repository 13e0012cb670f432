"""One connection with a client: how long it may take, what is no request, and when the client counts as gone."""

import asyncio
import re
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_UNREAD_SECONDS: Final = 30.0
"""After which a client that does not read its answer is let go."""
_QUIET_SECONDS: Final = 0.25
"""How long an answer may take before a client that sends no more is sent a sign, and the pause until the next one."""
_PAUSE_SECONDS: Final = 0.05
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_FOLD: Final = re.compile(rb"\n[ \t]")


def connections(read_seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol for uvicorn whose clients have so many seconds to send the lines of a request."""

    class Timed(Connection):
        seconds = read_seconds

    return Timed


class Connection(H11Protocol):
    """uvicorn's protocol with a limit on the time of a client, and an answer for one that only ended its sending.

    A client that ends its sending half and one that is gone look alike: the connection's end is read (RFC 9112, 9.6).
    asyncio would close the connection. Here it stays open while the answer to a whole request is due. Where that takes
    a while, the client is sent "100 Continue", which a client throws away that did not ask for it (RFC 9110, 15.2.1).
    A machine whose client is gone answers with a reset, so that the next sign finds no connection.
    """

    seconds: ClassVar[float] = 10.0
    _begun: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _next_sign: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Strict(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client its time for the first request."""
        super().connection_made(transport)
        self._begun = self.loop.call_later(self.seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Take what came, and give the client its time for the next request."""
        super().data_received(data)
        is_complete = self.conn.their_state is not h11.IDLE
        if is_complete and self._begun:
            self._begun.cancel()
            self._begun = None
        elif not is_complete and self._begun is None:  # the next request on the same connection
            self._begun = self.loop.call_later(self.seconds, self._give_up)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn says None, and asyncio asks for a truth value
        """Keep the connection open where an answer is due; half of a request gets none."""
        if self._owes_answer and self._next_sign is None:
            self._next_sign = self.loop.call_later(_QUIET_SECONDS, self._send_sign, _PAUSE_SECONDS)
        return self._owes_answer

    def on_response_complete(self) -> None:
        """Begin with the next request that came already; without one, part from a client that sends no more."""
        super().on_response_complete()
        if self._next_sign and not self._owes_answer:
            self.transport.close()

    def pause_writing(self) -> None:
        """Let go of a client that does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it reads again."""
        if self._unread:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all that waits for the client."""
        for timer in (self._begun, self._unread, self._next_sign):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _owes_answer(self) -> bool:
        """A request came whole, and its answer is not written."""
        is_whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        return is_whole and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _send_sign(self, pause: float) -> None:
        knows_signs = (self.conn.their_http_version or b"") >= b"1.1"  # RFC 9110, 15.2
        is_begun = self.conn.our_state is not h11.SEND_RESPONSE
        if knows_signs and self._owes_answer and not is_begun and not self.transport.is_closing():
            sign = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(sign))
        self._next_sign = self.loop.call_later(pause, self._send_sign, 2 * pause)

    def _give_up(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


class _Strict(h11.Connection):
    """h11 without folded header lines, which RFC 9112, 5.2 lets a server refuse.

    h11 joins them. A proxy that does not would see a header, such as Transfer-Encoding, where h11 sees the rest of the
    line before, or the other way round; and so the two would see different requests.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, or refuse the head of a request."""
        if self.their_state is h11.IDLE:
            received, _ = self.trailing_data
            if _FOLD.search(_BLANK_LINE.split(received, maxsplit=1)[0]):
                raise h11.RemoteProtocolError("a header line that goes on in the next line")
        return super().next_event()

"""A client's connection: limits of time, strict header lines, and clients that are gone."""

import asyncio
import re
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_UNREAD_SECONDS: Final = 30.0
"""Seconds after which the connection of a client that does not read its answer is closed."""
_QUIET_SECONDS: Final = 0.25
"""Seconds after which a client that ended its sending, and has no answer yet, is sent a probe."""
_PAUSE_SECONDS: Final = 0.05
"""Seconds between the first two probes; each later pause is twice as long."""
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_FOLD: Final = re.compile(rb"\n[ \t]")


def connections(read_seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol class for uvicorn. Its clients have `read_seconds` to send the head of a request."""

    class Timed(Connection):
        seconds = read_seconds

    return Timed


class Connection(H11Protocol):
    """uvicorn's protocol with limits on a client's time, and with an answer for a client that only ended its sending.

    A client that ends its sending half and a client that is gone look alike: the end of the stream is read (RFC 9112,
    9.6). asyncio would close the connection. Here it stays open until a complete request is answered. Where the answer
    takes longer, the client is sent a probe, "100 Continue", which clients ignore (RFC 9110, 15.2.1). If the client is
    gone, its machine answers with a reset, and the next probe finds the connection closed.
    """

    seconds: ClassVar[float] = 10.0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _probe_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Strict(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Read data; stop the clock after the head of a request, and start it for the next request."""
        super().data_received(data)
        is_complete = self.conn.their_state is not h11.IDLE
        if is_complete and self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None
        elif not is_complete and self._head_timer is None:  # the next request on the same connection
            self._head_timer = self.loop.call_later(self.seconds, self._give_up)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn says None, and asyncio asks for a truth value
        """Return whether the connection stays open: only for the answer to a complete request."""
        if self._owes_answer and self._probe_timer is None:
            self._probe_timer = self.loop.call_later(_QUIET_SECONDS, self._send_probe, _PAUSE_SECONDS)
        return self._owes_answer

    def on_response_complete(self) -> None:
        """Start the next received request; without one, close the connection of a client that ended its sending."""
        super().on_response_complete()
        if self._probe_timer and not self._owes_answer:
            self.transport.close()

    def pause_writing(self) -> None:
        """Start the clock for a client that does not read its answer."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the clock of a client that reads again."""
        if self._write_timer:
            self._write_timer.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the client."""
        for timer in (self._head_timer, self._write_timer, self._probe_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _owes_answer(self) -> bool:
        """Return whether a complete request was received whose answer is not written."""
        is_complete = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        return is_complete and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _send_probe(self, pause: float) -> None:
        takes_probes = (self.conn.their_http_version or b"") >= b"1.1"  # RFC 9110, 15.2
        is_head_timer = self.conn.our_state is not h11.SEND_RESPONSE
        if takes_probes and self._owes_answer and not is_head_timer and not self.transport.is_closing():
            probe = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(probe))
        self._probe_timer = self.loop.call_later(pause, self._send_probe, 2 * pause)

    def _give_up(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


class _Strict(h11.Connection):
    """h11 that refuses folded header lines, as RFC 9112, 5.2 allows.

    h11 joins such lines. A proxy that does not join them would see a header, such as Transfer-Encoding, where h11 sees
    the rest of the line before. So the two would see different requests.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event. Raises RemoteProtocolError for a folded header line."""
        if self.their_state is h11.IDLE:
            received, _ = self.trailing_data
            if _FOLD.search(_BLANK_LINE.split(received, maxsplit=1)[0]):
                raise h11.RemoteProtocolError("a header line that continues in the next line")
        return super().next_event()

"""How a service is run: every limit, with what it is where nothing else is asked for."""

from typing import Annotated

from pydantic import Field

from bertwright.config import Positive, PositiveNumber, Settings


class ServeSettings(Settings):
    """Limits of one service; times in seconds."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN`; None: nothing."""
    max_body: Positive = 1_000_000
    """Bytes of a request."""
    max_inputs: Positive = 256
    """Inputs of a request."""
    max_characters: Positive = 100_000
    """Of one text."""
    max_wait: PositiveNumber = 5.0
    """How long an accepted request may have to wait for those before it; beyond it there is 503."""
    timeout: PositiveNumber = 30.0
    """How long a request may take once it was read."""
    read_timeout: PositiveNumber = 10.0
    """How long a client may take to send a request."""
    max_connections: Positive = 512
    batch_tokens: Positive = 4096
    """Tokens, padding included, that are computed together; a longer batch makes those behind it wait."""

"""Settings of the HTTP service: its address and its limits."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from bertwright.config import Option, Positive, PositiveNumber, Settings

AnswerPrecision = Literal["auto", "fp32", "bf16", "int8"]
"""Number format in which a model answers: auto is bf16 where that is faster on this machine, else fp32."""


class ServeSettings(Settings):
    """Address and limits of one service; times are in seconds."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    host: Annotated[str, Option("service")] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all addresses of this machine."""
    port: Annotated[int, Field(ge=0, le=65535), Option("service")] = 8000
    """Port to listen on; 0 takes a free one."""
    token: Annotated[str | None, Option("service")] = None
    """Bearer token that every request must carry. The environment variable BERTWRIGHT_TOKEN hides it from `ps`."""
    max_body: Annotated[Positive, Option("limits")] = 1_000_000
    """Largest request, in bytes."""
    max_inputs: Annotated[Positive, Option("limits")] = 256
    """Largest number of inputs in a request."""
    max_characters: Annotated[Positive, Option("limits")] = 100_000
    """Longest text, in characters."""
    max_waiting_tokens: Annotated[Positive, Option("limits")] = 8_192
    """Number of queued tokens above which requests are refused with 503. A BERT-base answers the default's in about 15
    seconds on two cores, half of the timeout."""
    timeout: Annotated[PositiveNumber, Option("limits")] = 30.0
    """Longest time in seconds from the end of a request to its answer."""
    read_timeout: PositiveNumber = 10.0
    """Longest time in seconds that a client may take to send a request."""
    max_connections: Positive = 512
    batch_tokens: Annotated[Positive, Option("machine")] = 4096
    """Tokens of a batch, padding included. Longer batches make later requests wait."""

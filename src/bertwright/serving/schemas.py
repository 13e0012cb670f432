"""The JSON of requests and answers, as in the OpenAPI description, and the settings of a service."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from bertwright.serving.results import ExtractedAnswer, FilledText, PredictResult

UnicodeText = Annotated[str, Field(description="Unicode text")]
ModelName = Annotated[str | None, Field(description="one of /v1/models; the first one where it is left out")]


_MOST_NAMES = 20


def _check_names(value: object) -> object:
    if isinstance(value, dict) and len(value) > _MOST_NAMES:
        raise ValueError(f"an object of {len(value):,} names")
    return value


class _Object(BaseModel):
    """An object without unknown names. Objects with many names are refused at once: each would be an error message."""

    model_config = ConfigDict(extra="forbid")
    _names = model_validator(mode="before")(_check_names)


class _Request(_Object):
    model: ModelName = None


class QuestionInput(_Object):
    """A question and the passage that may answer it."""

    question: UnicodeText
    context: UnicodeText


class ChoiceInput(_Object):
    """A context and two or more continuations."""

    context: UnicodeText
    choices: Annotated[list[UnicodeText], FailFast()]


PredictInput = (
    UnicodeText | Annotated[list[UnicodeText], Field(min_length=2, max_length=2)] | QuestionInput | ChoiceInput
)
"""An input of the form that the model was trained for: a text, a pair as a list of two texts, a question, a choice."""


class PredictionRequest(_Request):
    """Inputs of the form that the model was trained for."""

    inputs: Annotated[list[PredictInput], Field(min_length=1), FailFast()]


class FillRequest(_Request):
    """Texts with [MASK] in them."""

    inputs: Annotated[list[UnicodeText], Field(min_length=1), FailFast()]
    top_k: Annotated[int, Field(ge=1, le=100)] = 5


class AnswerRequest(_Request):
    """A question and a passage."""

    question: UnicodeText
    context: UnicodeText


class PairRequest(_Request):
    """Two texts."""

    first: UnicodeText
    second: UnicodeText


def _refuse_token_ids(value: object) -> object:
    """Return the value. Raises for token ids, which are those of another vocabulary than the model's."""
    if isinstance(value, list) and value and isinstance(value[0], int | list) and not isinstance(value[0], bool):
        raise PydanticCustomError(
            "token_ids",
            "expected a text or a list of texts, got token ids; send the texts, which the service tokenises itself (in "
            "LangChain: check_embedding_ctx_length=False)",
        )
    return value


class EmbeddingsRequest(_Request):
    """A request as for OpenAI's endpoint of that name; `pool` is an addition."""

    input: Annotated[
        UnicodeText | Annotated[list[UnicodeText], Field(min_length=1, max_length=100_000)],
        BeforeValidator(_refuse_token_ids),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    pool: Literal["mean", "max", "cls"] = "mean"
    user: str | None = None


class InsideRequest(_Request):
    """A text, or two texts, whose pieces and attention in one layer (from 1 on) are shown."""

    text: UnicodeText
    second: UnicodeText | None = None
    layer: Annotated[int, Field(ge=1)] = 1


class PredictResponse(BaseModel):
    """A result for each input, in order."""

    model: str
    kind: str
    results: list[PredictResult]


class FillResponse(BaseModel):
    """The candidates for each [MASK] of each text."""

    model: str
    results: list[FilledText]


class AnswerResponse(BaseModel):
    """The part of the passage that answers the question, or ""."""

    model: str
    answer: ExtractedAnswer


class FollowsResponse(BaseModel):
    """The probability that the second text follows the first."""

    model: str
    probability: float
    truncated: bool = False


class Embedding(BaseModel):
    """A vector as numbers, or as base64 of its little-endian float32 values."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class Usage(BaseModel):
    """Numbers of tokens that were read, [CLS] and [SEP] included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """An answer as of OpenAI's endpoint."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class InsideResponse(BaseModel):
    """Pieces, segments and attention [heads][from][to] of one layer. The positions of the pieces are 0, 1, …"""

    model: str
    pieces: list[str]
    segments: list[int]
    attention: list[list[list[float]]]
    layers: int
    heads: int


class ModelEntry(BaseModel):
    """A model that is served. `uses` lists its endpoints; all models have /v1/embeddings too."""

    id: str
    object: Literal["model"] = "model"
    kind: str
    form: str
    labels: list[str]
    uses: list[str]
    layers: int
    heads: int
    max_length: int
    backend: str


class ModelsResponse(BaseModel):
    """An answer as of OpenAI's endpoint, with more fields for each model."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Health(BaseModel):
    """State of the service; `status` is "ok" where requests are answered."""

    status: Literal["ok"] = "ok"
    models: list[str]


class ErrorDetail(BaseModel):
    """Message and type of an error."""

    message: str
    type: str


class ErrorResponse(BaseModel):
    """Every answer that is not a result."""

    error: ErrorDetail

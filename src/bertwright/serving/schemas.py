"""What requests hold and what is answered, as the OpenAPI description says it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from bertwright.serving.results import Answer, Choice, Entities, Filled, Label, Labels, Score

Text = Annotated[str, Field(description="Unicode text")]
ModelName = Annotated[str | None, Field(description="one of /v1/models; the first one where it is left out")]


_MOST_NAMES = 20


def _few_names(given: object) -> object:
    if isinstance(given, dict) and len(given) > _MOST_NAMES:
        raise ValueError(f"an object of {len(given):,} names")
    return given


class _Object(BaseModel):
    """Unknown names are refused, and by the first error alone: a request may hold a hundred thousand."""

    model_config = ConfigDict(extra="forbid")
    _few = model_validator(mode="before")(_few_names)


class _Request(_Object):
    model: ModelName = None


class QuestionInput(_Object):
    """A question and the passage that may answer it."""

    question: Text
    context: Text


class ChoiceInput(_Object):
    """A context and two or more continuations."""

    context: Text
    choices: Annotated[list[Text], FailFast()]


Input = Text | Annotated[list[Text], Field(min_length=2, max_length=2)] | QuestionInput | ChoiceInput
"""A text, a pair as a list of two texts, a question, a choice: what the model was trained for."""


class PredictRequest(_Request):
    """Inputs of the form that the model was trained for."""

    inputs: Annotated[list[Input], Field(min_length=1), FailFast()]


class FillRequest(_Request):
    """Texts with [MASK] in them."""

    inputs: Annotated[list[Text], Field(min_length=1), FailFast()]
    top_k: Annotated[int, Field(ge=1, le=100)] = 5


class AnswerRequest(_Request):
    """One question about one passage."""

    question: Text
    context: Text


class PairRequest(_Request):
    """Two texts."""

    first: Text
    second: Text


class EmbeddingsRequest(_Request):
    """As OpenAI's endpoint of that name; `pool` is ours."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=100_000)]
    encoding_format: Literal["float", "base64"] = "float"
    pool: Literal["mean", "max", "cls"] = "mean"
    user: str | None = None


class InsideRequest(_Request):
    """A text, or two, whose pieces and attention in one layer (from 1 on) are shown."""

    text: Text
    second: Text | None = None
    layer: Annotated[int, Field(ge=1)] = 1


class PredictResponse(BaseModel):
    """A result for each input, in order."""

    model: str
    kind: str
    results: list[Label | Labels | Score | Entities | Answer | Choice | Filled]


class FillResponse(BaseModel):
    """For each text the candidates for each of its [MASK]."""

    model: str
    results: list[Filled]


class AnswerResponse(BaseModel):
    """The piece of the passage, or "" for none."""

    model: str
    answer: Answer


class FollowsResponse(BaseModel):
    """The probability that the second text follows the first."""

    model: str
    probability: float
    truncated: bool = False


class Embedding(BaseModel):
    """One vector; a text of base64 holds its little-endian float32 values."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class Usage(BaseModel):
    """Tokens that were read, [CLS] and [SEP] included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """As OpenAI's."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class InsideResponse(BaseModel):
    """`attention` [heads][from][to] of the layer; `segments` and the places 0, 1, … are what is added to the pieces."""

    model: str
    pieces: list[str]
    segments: list[int]
    attention: list[list[list[float]]]
    layers: int
    heads: int


class ModelEntry(BaseModel):
    """A model that is served; `uses` are the endpoints that it answers beside /v1/embeddings."""

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
    """As OpenAI's, with more on each model."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Health(BaseModel):
    """`status` is "ok" where requests are answered."""

    status: Literal["ok"] = "ok"
    models: list[str]


class Trouble(BaseModel):
    """What is wrong with a request, in words."""

    message: str
    type: str


class ErrorResponse(BaseModel):
    """Every answer that is no result."""

    error: Trouble

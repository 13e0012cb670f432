"""JSON objects of requests and responses, from which the OpenAPI description is made."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from bertwright.errors import shown
from bertwright.scoring.sentences import SentenceScore
from bertwright.scoring.settings import FirstToken, Masking
from bertwright.serving.results import Explanation, ExtractedAnswer, FilledText, PredictResult
from bertwright.serving.settings import ExplainBaseline, ExplainMethod

UnicodeText = Annotated[str, Field(description="Unicode text")]
ModelName = Annotated[str | None, Field(description="id of a model of /v1/models; default: the first model")]

_MOST_FIELDS = 20
"""Largest number of fields of an object in a request."""


def _limit_fields(value: object) -> object:
    """Return `value`; raise ValueError for an object with too many fields."""
    if isinstance(value, dict) and len(value) > _MOST_FIELDS:
        raise ValueError(f"expected an object of at most {_MOST_FIELDS} fields, got {len(value):,}")
    return value


class _Object(BaseModel):
    """JSON object of a request. Unknown fields are refused.

    An object with very many fields is refused as a whole, because each unknown field makes an error message of its own.
    """

    model_config = ConfigDict(extra="forbid")
    _limited = model_validator(mode="before")(_limit_fields)


class ModelRequest(_Object):
    """Request for a model by its id."""

    model: ModelName = None


class QuestionInput(_Object):
    """A question and the passage that may answer it."""

    question: UnicodeText
    context: UnicodeText


class ChoiceInput(_Object):
    """A context and two or more possible continuations."""

    context: UnicodeText
    choices: Annotated[list[UnicodeText], FailFast()]


_INPUT_FIELDS = (set(QuestionInput.model_fields), set(ChoiceInput.model_fields))


def _refuse_other_objects(value: object) -> object:
    """Return the value. Raises for an object that is neither a question nor a choice."""
    if isinstance(value, dict) and set(value) not in _INPUT_FIELDS:
        raise PydanticCustomError(
            "input_object",
            'expected a text, a pair as a list of two texts, {"question": …, "context": …} or {"context": …, '
            '"choices": […]}, got an object with other fields',
        )
    return value


PredictInput = Annotated[
    UnicodeText | Annotated[list[UnicodeText], Field(min_length=2, max_length=2)] | QuestionInput | ChoiceInput,
    BeforeValidator(_refuse_other_objects),
]
"""Input of a fine-tuned model: a text, a pair as a list of two texts, a question with its passage, or a choice."""


class ExplainOptions(_Object):
    """Options of explanations; `word` is the number of the word whose tag is explained, from 0 on."""

    method: ExplainMethod = "gradients"
    baseline: ExplainBaseline = "auto"
    word: Annotated[int, Field(ge=0, le=10**9)] | None = None


class PredictionRequest(ModelRequest):
    """Inputs in the form on which the model was fine-tuned. With `explain` the words that spoke for each answer too."""

    inputs: Annotated[list[PredictInput], Field(min_length=1), FailFast()]
    explain: bool | ExplainOptions = False


class FillRequest(ModelRequest):
    """Texts that contain [MASK]; `top_k` is the number of candidates for each."""

    inputs: Annotated[list[UnicodeText], Field(min_length=1), FailFast()]
    top_k: Annotated[int, Field(ge=1, le=100)] = 5


class AnswerRequest(ModelRequest):
    """A question and a passage."""

    question: UnicodeText
    context: UnicodeText


class PairRequest(ModelRequest):
    """Two texts, of which the second may follow the first."""

    first: UnicodeText
    second: UnicodeText


class ScoreRequest(ModelRequest):
    """Sentences; `masking` is for a masked LM, `first_token` for a language model; null is the model's default."""

    inputs: Annotated[list[UnicodeText], Field(min_length=1), FailFast()]
    masking: Masking | None = None
    first_token: FirstToken | None = None


def refuse_token_ids(value: object) -> object:
    """Return the value. Raises for token ids, which are those of another vocabulary than the model's."""
    first = value[0] if isinstance(value, list) and value else None
    first = first[0] if isinstance(first, list) and first else first
    if isinstance(first, int) and not isinstance(first, bool):
        raise PydanticCustomError(
            "token_ids",
            "expected a text or a list of texts, got token ids; send the texts, which the service tokenises itself (in "
            "LangChain: check_embedding_ctx_length=False)",
        )
    return value


class EmbeddingsRequest(ModelRequest):
    """Request in the format of OpenAI's endpoint for embeddings, with `pool` and a prompt as additional fields.

    `prompt_name` is the name of a prompt in the model folder, `prompt` the text itself; one of them may be given.
    """

    input: Annotated[
        UnicodeText | Annotated[list[UnicodeText], Field(min_length=1, max_length=100_000)],
        BeforeValidator(refuse_token_ids),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    pool: Literal["mean", "max", "cls"] | None = None
    prompt_name: str | None = None
    prompt: Annotated[str, Field(max_length=4_000)] | None = None
    user: str | None = None


class DocumentInput(BaseModel):
    """A document as an object; only its text is read."""

    text: UnicodeText


def _document_text(value: object) -> str:
    """Return the text of a document. Raises for a value that is neither a text nor an object with a text."""
    text = value.get("text") if isinstance(value, dict) else value
    if isinstance(text, str):
        return text
    raise PydanticCustomError(
        "document",
        "expected a text, or an object whose 'text' is one, got {value}",
        {"value": shown(json.dumps(value))},
    )


Query = Annotated[str, Field(max_length=4_000, description="Unicode text of at most 4,000 characters")]


class RerankRequest(ModelRequest):
    """Request in the format of Cohere's and Jina's endpoints for reranking; `top_n` null gives all documents.

    `rank_fields` may be ["text"], since only the text is read. `max_tokens_per_doc` and `max_chunks_per_doc` have no
    effect: the model reads as many tokens as it was trained for. `relevant` is the label whose probability is the
    relevance, for a model whose two labels do not tell which one it is.
    """

    query: Query
    documents: Annotated[
        list[Annotated[UnicodeText, BeforeValidator(_document_text, json_schema_input_type=str | DocumentInput)]],
        Field(min_length=1),
        FailFast(),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    rank_fields: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    max_tokens_per_doc: int | None = None
    max_chunks_per_doc: int | None = None
    relevant: str | None = None


class SearchIndexRequest(_Object):
    """Query for an index; `rerank` is the id of a reranker, `candidates` the number of rows that it scores.

    `relevant` is the label whose probability is its score, for a model whose two labels do not tell which one it is.
    `index` is the id of an index of /v1/models; default: the first one.
    """

    query: Query
    index: str | None = None
    top_k: Annotated[int, Field(ge=1, le=100)] = 10
    rerank: str | None = None
    candidates: Annotated[int, Field(ge=1)] | None = None
    relevant: str | None = None


def _refuse_list(value: object) -> object:
    """Return the value. Raises for a list, in which a pair is sent elsewhere."""
    if isinstance(value, list):
        raise PydanticCustomError("pair", "expected one text, got a list; the second text of a pair goes into 'second'")
    return value


class InsideRequest(ModelRequest):
    """Request for the pieces of one or two texts and the attention of one layer; layers are counted from 1."""

    text: Annotated[UnicodeText, BeforeValidator(_refuse_list)]
    second: UnicodeText | None = None
    layer: Annotated[int, Field(ge=1)] = 1


class PredictResponse(BaseModel):
    """Results of the inputs, in their order; their explanations where they were asked for, else null."""

    model: str
    kind: str
    results: list[PredictResult]
    explanations: list[Explanation | None] | None = None


class FillResponse(BaseModel):
    """Candidates for each [MASK] of each text."""

    model: str
    results: list[FilledText]


class AnswerResponse(BaseModel):
    """Part of the passage that answers the question; empty if the passage does not answer it."""

    model: str
    answer: ExtractedAnswer


class FollowsResponse(BaseModel):
    """Probability that the second text follows the first."""

    model: str
    probability: float
    truncated: bool = False


class ScoreResponse(BaseModel):
    """Scores of the sentences, in their order: natural logarithms, and bits per character and word."""

    model: str
    results: list[SentenceScore]


class Embedding(BaseModel):
    """Vector of a text: a list of numbers, or its little-endian float32 values in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class Usage(BaseModel):
    """Number of tokens that the model read, [CLS] and [SEP] included; both fields have the same value."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Response in the format of OpenAI's endpoint for embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class RerankResult(BaseModel):
    """Document with its index in the request, from 0 on, and its relevance; `document` where it was asked for."""

    index: int
    relevance_score: float
    document: DocumentInput | None = None
    truncated: bool = False


class RerankResponse(BaseModel):
    """Documents by relevance, the most relevant first, in the format of Cohere's and Jina's endpoints."""

    model: str
    results: list[RerankResult]
    usage: Usage


class SearchResult(BaseModel):
    """Row of an index: its id, its score, its text, and the other fields of its table."""

    id: str
    score: float
    text: str
    fields: dict[str, Any]


class SearchResponse(BaseModel):
    """Rows of an index, the best first. The score is the similarity of the index, or the relevance of the reranker.

    `truncated` is true where a part of the query, or of a row to rerank, was not read.
    """

    index: str
    model: str
    rerank: str | None
    results: list[SearchResult]
    truncated: bool = False


class InsideResponse(BaseModel):
    """Pieces and segments of a row, the embeddings that are summed for a piece, and the attention [head][from][to]."""

    model: str
    pieces: list[str]
    segments: list[int]
    embeddings: list[str]
    attention: list[list[list[float]]]
    layers: int
    heads: int


class ModelEntry(BaseModel):
    """Model that is served. `uses` lists what it can be used for; every model can also be used for embeddings.

    `relevant_label` is the label whose probability is the relevance of a reranker, else null; `created` is a Unix time.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["bertwright"] = "bertwright"
    kind: str
    form: str
    labels: list[str]
    relevant_label: str | None
    uses: list[str]
    layers: int
    heads: int
    max_length: int
    backend: str


class IndexEntry(BaseModel):
    """Index that is served, with the model that made it, the number of its rows, and the width of its vectors."""

    id: str
    model: str
    rows: int
    width: int
    similarity: str


class ModelsResponse(BaseModel):
    """Response in the format of OpenAI's endpoint for models, with more fields for each model, and the indexes."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
    indexes: list[IndexEntry]


class Health(BaseModel):
    """State of the service: "ok" while it answers requests, and the ids of its models."""

    status: Literal["ok"] = "ok"
    models: list[str]


class ErrorDetail(BaseModel):
    """Message and type of an error."""

    message: str
    type: str


class ErrorResponse(BaseModel):
    """Response to a request that was refused or failed."""

    error: ErrorDetail

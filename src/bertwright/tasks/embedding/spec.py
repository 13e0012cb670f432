"""specification of vectors: pairs of texts in, an encoder out whose vectors have a high cosine where texts match.

`tables.py` recognises the layout of a table by its columns.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from bertwright.config import Number, Positive, PositiveNumber
from bertwright.errors import InputError
from bertwright.model.vector_settings import Pooling, VectorSettings
from bertwright.tasks.spec import TaskSpec

Layout = Literal["auto", "pairs", "scored", "nli", "texts", "beir", "corpus"]
"""Kind of data: pairs with or without hard negatives, pairs with a score, pairs with a label of inference, texts alone,
a folder in the layout of BEIR, a corpus."""
CorpusPairs = Literal["overlap", "next", "twins"]
"""Pairs of a corpus: two excerpts of the same passage, two spans that follow each other, or a span and itself, computed
with other dropout (SimCSE)."""
QUERY: Final = "query"
"""Name of the prompt before first texts."""
DOCUMENT: Final = "document"
"""Name of the prompt before second texts and hard negatives, where they are of another kind than the first."""

TEMPERATURE: Final = 0.05
"""Number by which cosines are divided where none is set."""
MINE_MARGIN: Final = 0.05
"""Margin of mined hard negatives where none is set."""


_SAME_NAME: Final = ("pooling", "normalize", "default_prompt", "query_length")
"""Settings of the task that have their name in `VectorSettings` too."""


def _listed(value: Any) -> Any:
    """Return the parts of a text with commas, as `--task-setting` has it; any other value unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class VectorTask(TaskSpec):
    """Vectors of texts, learned from pairs of texts that match, or that have a score."""

    settable: ClassVar[tuple[str, ...]] = (
        "layout",
        "scores",
        "temperature",
        "symmetric",
        "widths",
        "spans",
        "pairs",
        "mine",
        "mine_margin",
        "pooling",
        "piece_weights",
        "normalize",
        "query_prompt",
        "document_prompt",
        "default_prompt",
        "query_length",
    )

    temperature: PositiveNumber | None = None  # cosines are divided by it; None: TEMPERATURE, or that of the pairs
    symmetric: bool = False  # True: second texts find their first texts too
    widths: Annotated[tuple[Positive, ...] | None, BeforeValidator(_listed)] = None  # Matryoshka; None: the model's
    spans: CorpusPairs | None = None  # the pairs of a corpus; None: overlap
    pairs: Positive = 100_000  # number of training pairs of a corpus, at most
    mine: Positive | None = None  # number of hard negatives that are mined for each pair; None: none
    mine_margin: Number | None = None  # mined texts are this much less close than the positive; None: MINE_MARGIN
    pooling: Annotated[tuple[Pooling, ...] | None, BeforeValidator(_listed)] = None  # None: the model's
    piece_weights: Number | None = None  # a in the weight a / (a + frequency) of a piece; 0: none; None: as measured
    normalize: bool | None = None  # None: as the model does; True for a model without settings of vectors
    query_prompt: str | None = None  # put before first texts; None: the model's
    document_prompt: str | None = None  # put before second texts; None: the model's
    default_prompt: str | None = None  # name of the prompt of both texts where they are of one kind; None: the model's
    query_length: Annotated[int, Field(ge=8)] | None = None  # tokens of first texts; None: the model's, else as all
    dev: tuple[str, ...] = ("dev", "valid", "val", "validation")  # possible names of the validation file
    vectors: VectorSettings = VectorSettings()  # the settings of the model folder; `with_vectors` completes them

    # How the data are read. A model folder stores no task of this kind, but a run does.
    layout: Layout = "auto"
    scores: Annotated[tuple[float, float] | None, BeforeValidator(_listed)] = None  # lowest, highest
    text: tuple[str, ...] = ()  # the columns of both texts; empty: those of the layout
    label: str | None = None  # the column of the score or label; None: that of the layout

    @property
    def divisor(self) -> float:
        """Return the number by which cosines are divided."""
        return TEMPERATURE if self.temperature is None else self.temperature

    @property
    def margin(self) -> float:
        """Return the difference of cosines by which a mined hard negative is below the positive, at least."""
        return MINE_MARGIN if self.mine_margin is None else self.mine_margin

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        widths = self.widths or ()
        if len(set(widths)) < len(widths):
            raise ValueError(f"widths {', '.join(map(str, widths))}: one of them is named twice")
        if self.scores and not self.scores[0] < self.scores[1]:
            raise ValueError(f"scores {self.scores[0]:g},{self.scores[1]:g}: expected LOWEST,HIGHEST")
        return self


def with_vectors(
    task: VectorTask, stored: VectorSettings | None, *, hidden: int, max_length: int, source: str
) -> VectorTask:
    """Return the task with the complete settings of its vectors: those of a model, changed by those of the task.

    stored   settings of the model folder `source`; None where it has none. hidden: width of the model's states.

    Stored Matryoshka widths above a stored `truncate_dim` are left out, since the vectors no longer have them. Raises
    InputError for dense layers, which are not trained, and for a Matryoshka width that the vectors do not have.
    """
    base = stored or VectorSettings(normalize=True)
    if task.default_prompt is not None and task.default_prompt not in (known := _prompts(task, base)):
        raise InputError(
            f"--task-setting default_prompt={task.default_prompt}: expected the name of a prompt "
            f"({', '.join(known) or 'there is none'})"
        )
    if base.dense:
        raise InputError(f"{source}: expected a model without dense layers after the pooling, got {len(base.dense)}")
    changes: dict[str, Any] = {name: getattr(task, name) for name in _SAME_NAME}
    if task.piece_weights is not None or task.pooling not in (None, ("mean",)):
        changes["piece_weights"] = ()  # those of the training text take their place
    changes["prompts"] = _prompts(task, base)
    if task.query_length and task.query_length > max_length:
        raise InputError(f"--task-setting query_length={task.query_length}: expected at most --max-length {max_length}")
    if base.query_length and not task.query_length:
        changes["query_length"] = min(base.query_length, max_length)
    most = base.width or max((*base.widths, *(task.widths or ()), 1))
    if task.widths is None:
        changes["widths"] = tuple(width for width in base.widths if width <= most)
    elif max(task.widths, default=0) > most:
        raise InputError(
            f"--task-setting widths: {max(task.widths)}: expected 1 to {most}, the truncate_dim of {source}"
        )
    else:
        changes["widths"] = tuple(sorted(task.widths, reverse=True))
    changes = {name: value for name, value in changes.items() if value is not None}
    vectors = VectorSettings.model_validate({**dict(base), **changes, "max_length": max_length})
    if task.piece_weights and not vectors.is_plain_mean:
        raise InputError(f"--task-setting piece_weights={task.piece_weights:g}: {vectors.no_plain_mean}")
    for width in vectors.widths:
        vectors.check_width(width, hidden, "--task-setting widths:")
    return task.model_copy(update={"vectors": vectors})


def _prompts(task: VectorTask, base: VectorSettings) -> dict[str, str]:
    """Return the prompts of the model, changed by those of the task."""
    changed = {QUERY: task.query_prompt, DOCUMENT: task.document_prompt}
    return base.prompts | {name: text for name, text in changed.items() if text is not None}


def with_pair_columns(task: VectorTask, *, text: Sequence[str], label: str | None) -> VectorTask:
    """Return the task with other names of the two columns of texts, and of the column of the score or label."""
    if len(text) not in (0, 2):
        raise InputError(f"--text-column {text[0]}: {task.name} needs pairs: name two columns of texts, or none")
    if len(set(text)) < len(text):
        raise InputError(f"--text-column {text[0]}: given twice; a pair needs two columns")
    return task.model_copy(update={"text": tuple(text), "label": label})


EMBED: Final = VectorTask(name="embed")

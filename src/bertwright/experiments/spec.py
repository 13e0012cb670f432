"""table of the paper → experiment: arms, columns and claims as frozen data without torch (paper §4, §5, §C).

An experiment has arms (its rows) and columns (its metrics), the claims that the paper makes about it, and the paper's
own numbers. An arm differs from the base of its scale only in the settings that it changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Changes = Mapping[str, Any]
"""Settings by name, groups of them nested."""
Baseline = Literal["majority", "bag-of-words"]
TextOrder = Literal["documents", "sentences"]
"""Order of a corpus: whole documents, or their sentences, shuffled."""

MARGIN = 0.5
"""Difference in points that counts as no difference, unless a claim has another margin."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes and settings that all arms of all experiments have in common.

    pretraining    settings over the defaults of PretrainSettings; steps x rows x length are the tokens of every arm
    finetuning     settings over the defaults of FinetuneSettings; `finetuning_of`: further ones by task; `features`:
                   further ones for a BiLSTM on frozen states
    tasks          settings of the task by its name: a window of SQuAD must fit a row
    sizes          sizes of table 6, ascending, the base's own among them; `fewer_heads`: the second size with fewer,
                   wider heads; `larger`: the second BERT of tables 1 to 4
    lengths        tokens per row, short and long, of the experiment length-cost
    vocabulary     number of WordPiece pieces, and of byte-pair merges
    rows           (train, dev): largest number of rows of a task, None for all; `rows_of`: other numbers by task
    bilstm         width of the BiLSTM on top of the left-to-right model of table 5
    """

    name: str
    title: str
    pretraining: Changes
    finetuning: Changes
    finetuning_of: Mapping[str, Changes] = field(default_factory=dict)
    features: Changes
    sizes: tuple[str, ...]
    fewer_heads: str
    larger: str
    lengths: tuple[int, int]
    vocabulary: int
    rows: tuple[int | None, int | None]
    rows_of: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    tasks: Mapping[str, Changes] = field(default_factory=dict)
    bilstm: int
    seeds: int
    pretraining_seeds: int


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A row of a table.

    pretraining    settings that differ from the scale's; `second`: those of a second model, joined with the first
    is_trained     False for the model with the weights that pre-training would start from
    at             fraction of the pre-training steps after which the model is taken
    text           order of the corpus
    finetuning     settings that differ from the scale's
    baseline       baseline without a network, None for a model
    series, x      line to which the arm belongs in a picture over x, and its position on it
    """

    name: str
    title: str
    pretraining: Changes = field(default_factory=dict)
    second: Changes | None = None
    is_trained: bool = True
    at: float = 1.0
    text: TextOrder = "documents"
    finetuning: Changes = field(default_factory=dict)
    baseline: Baseline | None = None
    series: str = ""
    x: float | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A metric of all arms.

    task           task to fine-tune on; None for a metric of the pre-training itself
    metric         name of the metric
    finetuning     settings of this column, over those of the arm
    times          factor that turns the metric into the paper's unit
    is_lower_better  True for a metric such as the perplexity
    """

    name: str
    task: str | None
    metric: str
    finetuning: Changes = field(default_factory=dict)
    times: float = 100.0
    is_lower_better: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim about two arms: the first is better on the mean of the columns, or equal to within `within` points.

    statement      the claim in words
    paper          the paper's own numbers
    columns        names of the columns; those without data are left out
    margin         points that count as no difference
    """

    statement: str
    paper: str
    first: str
    second: str
    columns: tuple[str, ...]
    within: float | None = None
    margin: float = MARGIN


@dataclass(frozen=True, kw_only=True)
class Published:
    """The paper's own table; rows: (name, a cell for each column of `head`) each."""

    source: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper; axis: label of the x axis, for a picture whose arms lie on a line."""

    name: str
    title: str
    question: str
    arms: Callable[[Scale], tuple[Arm, ...]]
    columns: tuple[Column, ...]
    claims: tuple[Claim, ...]
    published: Published | None = None
    axis: str | None = None
    note: str = ""

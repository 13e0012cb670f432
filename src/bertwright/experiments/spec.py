"""… → experiment: what a table of the paper compares, as frozen data without torch (paper §4, §5, §C).

An experiment has arms (its rows) and columns (its figures), the claims that the paper draws from it, and the paper's
own figures. An arm differs from the scale's base by the settings that it changes, and by nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Changes = Mapping[str, Any]
"""Settings by name, groups of them nested."""
Baseline = Literal["majority", "bag-of-words"]
Text = Literal["documents", "sentences"]
"""What a corpus keeps of the text: documents in their order, or their sentences, shuffled."""

MARGIN = 0.5
"""Points that are taken for no difference, where a claim names no others."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is: what all arms of all experiments have in common.

    pretraining    over the defaults of PretrainSettings; steps x rows x length is what every arm is given
    finetuning     over the defaults of FinetuneSettings; `finetuning_of`: more, by the name of a task;
                   `features`: more, where a BiLSTM learns from frozen states
    tasks          settings of a task by its name: a window of SQuAD must fit a row
    sizes          of table 6, ascending; the base's own is among them. `fewer_heads`: the second of them with heads
                   as much wider. `larger`: the second BERT of tables 1 to 4
    lengths        of rows, short and long, where the cost of length is asked for
    vocabulary     pieces of the WordPiece vocabulary, and merges of the byte-pair one
    rows           (train, dev): the most that a task is given, None for all; `rows_of`: otherwise, by task
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

    pretraining    settings that differ from the scale's; `second`: of a second model, joined with the first
    is_trained     False: the model as pre-training would begin it
    at             the share of the steps after which the model is taken
    text           what the corpus keeps of the text
    finetuning     settings that differ from the scale's
    baseline       no network at all
    series, x      where the arm lies in a picture over x, and the line it belongs to
    """

    name: str
    title: str
    pretraining: Changes = field(default_factory=dict)
    second: Changes | None = None
    is_trained: bool = True
    at: float = 1.0
    text: Text = "documents"
    finetuning: Changes = field(default_factory=dict)
    baseline: Baseline | None = None
    series: str = ""
    x: float | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure of an arm.

    task           what is fine-tuned; None: a figure of the pre-training itself
    metric         of the task's or of the pre-training's figures
    finetuning     settings of this column, over those of the arm
    times          what the figure is multiplied by to be read as the paper writes it
    is_lower_better  as of a perplexity
    """

    name: str
    task: str | None
    metric: str
    finetuning: Changes = field(default_factory=dict)
    times: float = 100.0
    is_lower_better: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says of two arms: the first is better on the mean of the columns, or as good within `within`.

    paper          what the paper's own figures are
    columns        by name; those without data are left out
    """

    words: str
    paper: str
    first: str
    second: str
    columns: tuple[str, ...]
    within: float | None = None
    margin: float = MARGIN


@dataclass(frozen=True, kw_only=True)
class Published:
    """The paper's own table. rows: (name, a cell for each column of `head`)."""

    source: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure. `axis`: what is along the bottom of its picture, where its arms lie on a line."""

    name: str
    title: str
    question: str
    arms: Callable[[Scale], tuple[Arm, ...]]
    columns: tuple[Column, ...]
    claims: tuple[Claim, ...]
    published: Published | None = None
    axis: str | None = None
    note: str = ""

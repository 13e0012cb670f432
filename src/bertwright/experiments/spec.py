"""table of the paper → experiment: arms, columns and claims as frozen data without torch (paper §4, §5, §C).

An experiment trains and measures several arms. An arm is a model or a baseline: a row of the table. A column is a
metric. A claim is a statement of the paper that compares two arms. An arm holds only the settings in which it differs
from the scale, which has the settings of all arms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Changes = Mapping[str, Any]
"""Settings by name that replace those of the scale; groups of settings are nested."""
Baseline = Literal["bag-of-words", "majority"]
Floor = Literal["majority", "untrained"]
"""Arm whose score a model reaches without any learning."""
HeadChange = Literal["matching-removed", "other-removed", "transplanted"]
"""Change of a pre-trained model: without the head that the start `matching` makes; without another head of the same
layer; or with that head of a second model."""
TextOrder = Literal["documents", "sentences"]
"""Order of a corpus: whole documents, or their sentences, shuffled."""
TEXT_ORDERS: Final[tuple[TextOrder, ...]] = ("documents", "sentences")

LEAST_DELTA = 0.5
"""Smallest difference in points that a claim may call no difference."""
UNKNOWN_DELTA = 1.0
"""Difference in points that counts as no difference where the paper has no numbers and the claim names no other."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes and settings that all arms of all experiments have in common.

    pretraining    settings over the defaults of PretrainSettings; steps x rows x length are the tokens of every arm
    finetuning     settings over the defaults of FinetuneSettings; `finetuning_of`: further ones by task; `features`:
                   further ones for a BiLSTM on frozen states
    tasks          settings of the task by its name: a window of SQuAD must fit a row
    sizes          sizes of table 6, ascending; that of `pretraining` is among them
    fewer_heads    the second size with fewer, wider heads
    larger         size of the second BERT of tables 1 to 4
    lengths        tokens per row, short and long, of the experiment length-cost
    vocabulary     number of WordPiece pieces, and of byte-pair merges
    rows           (train, dev): largest number of rows of a task, None for all; `rows_of`: other numbers by task
    seeds          number of fine-tuning runs of each pre-trained model
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
    lengths: tuple[int, int] = (128, 512)
    vocabulary: int
    rows: tuple[int | None, int | None] = (None, None)
    rows_of: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    tasks: Mapping[str, Changes] = field(default_factory=dict)
    seeds: int = 3
    pretraining_seeds: int = 2


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A row of a table.

    pretraining    settings that differ from the scale's
    joined_with    settings of a second model: it is joined with the first, or the first gets its head
    head           change of a head of the pre-trained model
    is_trained     False for a model with its initial weights
    fraction       fraction of the pre-training steps after which the model is taken
    lengths        ascending lengths of pre-training, in multiples of the scale's steps: the run of each extends that of
                   the one before, and the model is that of the last; empty for one run of the scale's steps
    text           order of the corpus
    finetuning     settings that differ from the scale's
    baseline       baseline without a network, None for a model
    uses_model     True for the model that a person names with --model; such an arm has no pre-training
    series, x      line to which the arm belongs in a picture over x, and its position on it
    """

    name: str
    title: str
    pretraining: Changes = field(default_factory=dict)
    joined_with: Changes | None = None
    head: HeadChange | None = None
    is_trained: bool = True
    fraction: float = 1.0
    lengths: tuple[float, ...] = ()
    text: TextOrder = "documents"
    finetuning: Changes = field(default_factory=dict)
    baseline: Baseline | None = None
    uses_model: bool = False
    series: str = ""
    x: float | None = None

    @property
    def models(self) -> tuple[Changes, ...]:
        """Settings of the pre-trainings of its models: one or two; none for a baseline and a used model."""
        if self.baseline is not None or self.uses_model:
            return ()
        return (self.pretraining,) if self.joined_with is None else (self.pretraining, self.joined_with)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A metric of all arms.

    task           task to fine-tune on; None for a metric of the pre-training itself
    metric         name of the metric
    finetuning     settings of this column; they replace those of the arm
    factor         number by which the metric is multiplied to have the paper's unit
    is_lower_better  True for a metric such as the perplexity
    floor          arm whose score needs no learning: the majority answer, or, where no constant answer scores anything,
                   the model without pre-training
    """

    name: str
    task: str | None
    metric: str
    finetuning: Changes = field(default_factory=dict)
    factor: float = 100.0
    is_lower_better: bool = False
    floor: Floor = "majority"

    @property
    def has_own_unit(self) -> bool:
        """True for a metric that is no score in points, such as a perplexity, seconds or bits; lower is better."""
        return self.is_lower_better


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that compares two arms, column by column.

    statement         the claim in words
    paper             the paper's own numbers
    arm, against      names of two arms: the first is claimed to be better than the second
    beyond            names of two further arms: the claim is an interaction, that the lead of `arm` over `against` is
                      larger than that of the first of these over the second; empty for a claim about two arms
    within            points by which the two are claimed to differ at most; None for a claim that the first is better
    columns           names of the columns, all columns of tasks where empty; those without data are left out
    paper_difference  the paper's own difference in points, None where the paper has no numbers
    unknown_delta     difference that counts as no difference where the paper has no numbers
    published         names of the two arms' rows in the published table, for the paper's difference in each column
    withdrawn         reason why no other arm can replace one of the two: while one is missing, the claim is withdrawn
    confound          second difference between the arms, beside that of the claim: it stands beside the verdict
    caveat            what the comparison leaves open even where it is decided
    """

    statement: str
    paper: str
    arm: str
    against: str
    beyond: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    within: float | None = None
    paper_difference: float | None = None
    unknown_delta: float = UNKNOWN_DELTA
    published: tuple[str, str] | None = None
    withdrawn: str = ""
    confound: str = ""
    caveat: str = ""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms that it compares: two, or four of an interaction."""
        return (self.arm, self.against, *self.beyond)

    @property
    def delta(self) -> float:
        """Difference in points that counts as none: `within`, or half of the paper's own difference."""
        if self.within is not None:
            return self.within
        if self.paper_difference is None:
            return self.unknown_delta
        return max(LEAST_DELTA, abs(self.paper_difference) / 2)


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """Learning rates that are tried for each arm before its pre-trainings.

    minutes      minutes of each pre-training, on all cores that it uses, in place of the scale's steps; None: the steps
    rate_share   fraction of the minutes or steps that each trial of a learning rate gets
    factors      learning rates that are tried, as factors of the scale's
    """

    minutes: float | None = None
    rate_share: float = 0.15
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table of numbers from the paper; each row: its name, then a cell for each column of `head`."""

    source: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper.

    axis      label of the x axis, for a picture whose arms lie on a line
    limits    what the experiment does not show, a sentence each
    rate_search  learning rates that are tried for each arm; None: every arm has the scale's rate and steps
    pretraining_seeds  number of pre-training seeds where a scale has fewer; with a used model of fine-tuning seeds
    uses_model  True where the arms are uses of one used model, and each fine-tuning is an observation
    """

    name: str
    title: str
    question: str
    arms: Callable[[Scale], tuple[Arm, ...]]
    columns: tuple[Column, ...]
    claims: tuple[Claim, ...]
    published: Published | None = None
    axis: str | None = None
    note: str = ""
    limits: tuple[str, ...] = ()
    rate_search: RateSearch | None = None
    pretraining_seeds: int = 1
    uses_model: bool = False

    def columns_of(self, claim: Claim) -> tuple[str, ...]:
        """Return the names of the columns on which a claim compares its arms."""
        return claim.columns or tuple(column.name for column in self.columns if column.task is not None)

    def paper_differences(self, claim: Claim) -> dict[str, float]:
        """Return the paper's difference of the claim's arms for each column that the published table has."""
        if self.published is None or claim.published is None:
            return {}
        rows = {row[0]: row[1:] for row in self.published.rows}
        first, second = (rows[name] for name in claim.published)
        by_name = {
            name: float(one) - float(other)
            for name, one, other in zip(self.published.head, first, second, strict=True)
            if "–" not in (one, other)
        }
        return {name: by_name[name] for name in self.columns_of(claim) if name in by_name}

"""table of the paper → experiment: figure 5, number of steps (paper §C.1), and three that the paper did not measure.

The three are: rows per step at equal tokens, row length at equal tokens, and documents against shuffled sentences.
"""

from dataclasses import replace
from typing import Any, Final

from bertwright.experiments.spec import Arm, Claim, Column, Experiment, Published, Scale
from bertwright.experiments.tables import arms, columns


def _arms_after_steps(_: Scale) -> tuple[Arm, ...]:
    """Return three models after fractions of their steps and at the end; x: percent of the steps.

    Table 5's model without next sentences keeps no snapshots, so figure 5 has a pre-training of its own.
    """
    no_nsp = replace(arms.NO_NSP, pretraining={**arms.NO_NSP.pretraining, "snapshots": arms.FRACTIONS})
    return tuple(
        replace(
            arm,
            name=f"{arm.name}-{round(100 * fraction)}",
            title=f"{title}, {round(100 * fraction)} % of the steps",
            fraction=fraction,
            series=title,
            x=100 * fraction,
        )
        for arm, title in ((arms.BERT, "BERT"), (no_nsp, "masked LM alone"), (arms.LEFT, "left-to-right"))
        for fraction in (*arms.FRACTIONS, 1.0)
    )


_UNFAIR: Final = (
    "`bert` against `left` cannot replace it, because `bert` learns next sentences and `left` does not: that would "
    "compare two changes at once"
)

FIGURE_5: Final = Experiment(
    name="figure5",
    title="Figure 5: the number of training steps",
    question="Do more steps help? Does masked LM learn more slowly, because it learns from 15 % of the pieces only?",
    arms=_arms_after_steps,
    columns=(columns.MNLI_MATCHED, *columns.SENTENCE_COLUMNS),
    claims=(
        Claim(
            statement="The last 40 % of the steps still help.",
            paper="84.4 after a million steps, about a point more than after 500,000",
            arm="bert-100",
            against="bert-60",
            paper_difference=1.0,
            caveat="At the end the learning rate is zero; after 60 % of the steps it is not. The difference may come "
            "from that.",
        ),
        Claim(
            statement="Left-to-right is ahead at the beginning.",
            paper="79.4 against 78.6 after 3 % of the steps",
            arm="left-3",
            against="no-nsp-3",
            paper_difference=0.8,
            withdrawn=_UNFAIR,
        ),
        Claim(
            statement="Masked LM is ahead at the end.",
            paper="84.4 against 82.2",
            arm="no-nsp-100",
            against="left-100",
            paper_difference=2.2,
            withdrawn=_UNFAIR,
        ),
    ),
    published=Published(
        source="figure 5, MNLI dev, read from the plot; columns are thousands of steps of a million",
        head=("30", "50", "100", "200", "400", "600", "800", "1000"),
        rows=(
            ("masked LM", "78.6", "79.6", "80.5", "82.2", "83.2", "84.0", "84.3", "84.4"),
            ("left-to-right", "79.4", "79.8", "80.3", "81.0", "81.7", "81.9", "82.1", "82.2"),
        ),
    ),
    axis="share of the steps, in percent",
    note="All points of a line come from the same pre-trainings. Before the end of a pre-training its learning rate is "
    "higher than at the end.",
    limits=(
        "`bert` and `left` differ in next-sentence prediction and in direction. Compare `left` with `no-nsp` only.",
    ),
)


# Rows per step at equal tokens (paper §A.2: GPT-1 had 32,000 words a step, BERT 128,000).

_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers by which the rows per step of the scale are multiplied."""
_PAPERS_RATE, _PAPERS_ROWS = 1e-4, 256
_MUON_RATE: Final = 6e-3
"""Default of muon_rate, repeated here because its module needs torch, and experiments are listed without torch."""


def _batch_size_arms(scale: Scale) -> tuple[Arm, ...]:
    """Return arms with more rows and fewer steps, at equal tokens; learning rates grow with the root of the rows."""
    base = scale.pretraining
    rows, optimizer = base.get("batch_size", _PAPERS_ROWS), base.get("optimizer", {})
    rates = {"learning_rate": optimizer.get("learning_rate", _PAPERS_RATE)}
    if optimizer.get("method") == "muon":
        rates["muon_rate"] = optimizer.get("muon_rate", _MUON_RATE)

    def arm(factor: float) -> Arm:
        batch_size = max(1, round(factor * rows))
        changes: dict[str, Any] = {
            "batch_size": batch_size,
            "steps": round(base["steps"] * rows / batch_size),
            "optimizer": {name: rate * (batch_size / rows) ** 0.5 for name, rate in rates.items()},
        }
        return Arm(
            name=f"batch-{factor:g}",
            title=f"{batch_size} rows",
            pretraining=arms.BERT.pretraining if batch_size == rows else changes,
            series="BERT",
            x=float(batch_size),
        )

    return tuple(arm(factor) for factor in _FACTORS)


BATCH_SIZE: Final = Experiment(
    name="batch-size",
    title="Rows of a step",
    question="With the same number of tokens: are many small steps better, or few large ones?",
    arms=_batch_size_arms,
    columns=(columns.PERPLEXITY, *columns.SENTENCE_COLUMNS),
    claims=(
        Claim(
            statement="Steps of four times the rows are better.",
            paper="BERT takes four times GPT-1's, which §A.4 lists as a difference; not measured",
            arm="batch-4",
            against="batch-1",
        ),
        Claim(
            statement="Steps of a quarter of the rows are worse.",
            paper="not measured",
            arm="batch-1",
            against="batch-0.25",
        ),
    ),
    axis="rows of a step",
    note="Each learning rate is that of the scale times the square root of the change in rows. No rate was searched "
    "for.",
)


# The cost of longer rows (paper §A.2: "longer sequences are disproportionately expensive").

_SECONDS: Final = Column(name="s per million tokens", task=None, metric="seconds", factor=1.0, is_lower_better=True)
_MEMORY: Final = Column(name="memory, MB", task=None, metric="memory", factor=1e-6, is_lower_better=True)


def _length_cost_arms(scale: Scale) -> tuple[Arm, ...]:
    """Return arms with short and long rows at equal tokens: the longer the rows, the fewer in a step."""
    phases = scale.pretraining["phases"]
    base = sum(phase["length"] * phase["share"] for phase in phases)
    tokens = scale.pretraining.get("batch_size", _PAPERS_ROWS) * base

    def arm(name: str, length: int) -> Arm:
        rows = max(1, round(tokens / length))
        changes: dict[str, Any] = {
            "phases": ({"length": length, "share": 1.0},),
            "batch_size": rows,
            "steps": round(scale.pretraining["steps"] * tokens / (rows * length)),
        }
        return Arm(name=name, title=f"rows of {length}", pretraining=changes, series="BERT", x=float(length))

    short, long = scale.lengths
    return arm("short", short), arm("long", long)


LENGTH_COST: Final = Experiment(
    name="length-cost",
    title="The cost of longer rows",
    question="With the same number of tokens: what do longer rows cost in time and memory, and are they better?",
    arms=_length_cost_arms,
    columns=(_SECONDS, _MEMORY, columns.PERPLEXITY, *columns.SENTENCE_COLUMNS),
    claims=(
        Claim(
            statement="A token of a long row costs more time.",
            paper="said in §A.2: attention grows with the square of the length; not measured",
            arm="short",
            against="long",
            columns=("s per million tokens",),
            caveat="Other programs ran on the machine during both runs. So the seconds are not exact.",
        ),
        Claim(
            statement="Long rows are as good as short ones on tasks with short texts, within a point.",
            paper="not measured; the paper spends a tenth of the steps on them",
            arm="long",
            against="short",
            within=1.0,
            caveat="With rows of 512 a step has fewer rows. So there are a quarter of the next-sentence examples, at "
            "the same learning rate.",
        ),
    ),
    note="Seconds count training steps only. Held-out rows have at most 128 tokens in both arms. Memory is the peak of "
    "the process during training.",
)


# Documents against shuffled sentences (paper §3.1 calls documents "critical" and does not measure it).

DOCUMENT_ORDER: Final = Experiment(
    name="document-order",
    title="Documents or shuffled sentences",
    question="Is pre-training on whole documents better than on the same sentences in random order?",
    arms=lambda _: (
        arms.BERT,
        Arm(name="shuffled", title="the same sentences, shuffled", text="sentences"),
    ),
    columns=(*columns.SENTENCE_COLUMNS, columns.SQUAD1_F1),
    claims=(
        Claim(
            statement="Documents are better than the same sentences shuffled.",
            paper="called critical in §3.1, not measured",
            arm="bert",
            against="shuffled",
            confound="shuffled text has no next sentences to learn",
        ),
    ),
    note="The shuffled sentences are in documents of the same lengths as before. So both arms have the same rows and "
    "the same sentences.",
    limits=("The two arms have different held-out rows.",),
)

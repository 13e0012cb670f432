"""… → experiment: what longer rows cost (paper §A.2: "longer sequences are disproportionately expensive")."""

from typing import Any, Final

from bertwright.recipes.paper.spec import Arm, Claim, Column, Experiment, Scale
from bertwright.recipes.paper.tables.shared import PERPLEXITY, SENTENCE_NAMES, SENTENCES

_SECONDS: Final = Column(name="s per million tokens", task=None, metric="seconds", times=1.0, is_lower_better=True)
_MEMORY: Final = Column(name="memory, MB", task=None, metric="memory", times=1e-6, is_lower_better=True)


def _arms(scale: Scale) -> tuple[Arm, ...]:
    """The same tokens in rows of either length: longer rows, fewer of them in a step."""
    phases = scale.pretraining["phases"]
    base = sum(phase["length"] * phase["share"] for phase in phases)
    tokens = scale.pretraining.get("batch_size", 256) * base

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
    title="What longer rows cost",
    question="At the same tokens: what do longer rows cost in time and memory, and what are they worth?",
    arms=_arms,
    columns=(_SECONDS, _MEMORY, PERPLEXITY, *SENTENCES),
    claims=(
        Claim(
            words="A token of a long row costs more time.",
            paper="said in §A.2: attention grows with the square of the length; not measured",
            first="short",
            second="long",
            columns=("s per million tokens",),
        ),
        Claim(
            words="What long rows teach is worth the same on short texts, within a point.",
            paper="not measured; the paper spends a tenth of the steps on them",
            first="long",
            second="short",
            columns=SENTENCE_NAMES,
            within=1.0,
        ),
    ),
    note="Seconds are of training steps alone. Held-out rows have 128 tokens at most in both. Memory is the most that "
    "the process held while it trained; where a run was stopped and gone on with, the most of its parts.",
)

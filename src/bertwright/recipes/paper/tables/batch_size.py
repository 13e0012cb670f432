"""… → experiment: rows of a step, at equal tokens (paper §A.2; GPT-1 had 32,000 words a step, BERT 128,000)."""

from typing import Any, Final

from bertwright.recipes.paper.spec import Arm, Claim, Experiment, Scale
from bertwright.recipes.paper.tables.shared import BERT, PERPLEXITY, SENTENCE_NAMES, SENTENCES

_TIMES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
_PAPERS_RATE, _PAPERS_ROWS = 1e-4, 256
_MUON_RATE: Final = 6e-3
"""The default: experiments are listed without torch, which its own module needs."""


def _arms(scale: Scale) -> tuple[Arm, ...]:
    """So many times the rows, so many times fewer steps; the rates go with the root of the rows."""
    base = scale.pretraining
    rows, optimizer = base.get("batch_size", _PAPERS_ROWS), base.get("optimizer", {})
    rates = {"learning_rate": optimizer.get("learning_rate", _PAPERS_RATE)}
    if optimizer.get("method") == "muon":
        rates["muon_rate"] = optimizer.get("muon_rate", _MUON_RATE)

    def arm(times: float) -> Arm:
        own = max(1, round(times * rows))
        changes: dict[str, Any] = {
            "batch_size": own,
            "steps": round(base["steps"] * rows / own),
            "optimizer": {name: rate * (own / rows) ** 0.5 for name, rate in rates.items()},
        }
        same = BERT.pretraining if own == rows else changes
        return Arm(name=f"batch-{times:g}", title=f"{own} rows", pretraining=same, series="BERT", x=float(own))

    return tuple(arm(times) for times in _TIMES)


BATCH_SIZE: Final = Experiment(
    name="batch-size",
    title="Rows of a step",
    question="At the same tokens: are many small steps better, or few large ones?",
    arms=_arms,
    columns=(PERPLEXITY, *SENTENCES),
    claims=(
        Claim(
            words="Steps of four times the rows are better.",
            paper="BERT takes four times GPT-1's, which §A.4 lists as a difference; not measured",
            first="batch-4",
            second="batch-1",
            columns=SENTENCE_NAMES,
        ),
        Claim(
            words="Steps of a quarter of the rows are worse.",
            paper="not measured",
            first="batch-1",
            second="batch-0.25",
            columns=SENTENCE_NAMES,
        ),
    ),
    axis="rows of a step",
    note="Each rate is the base's times the root of the change in rows, a rule of thumb; none was searched for.",
)

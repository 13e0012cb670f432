"""… → experiment: figure 5, how long pre-training pays (paper §C.1)."""

from dataclasses import replace
from typing import Final

from bertwright.recipes.paper.spec import Arm, Claim, Experiment, Published, Scale
from bertwright.recipes.paper.tables.shared import BERT, LEFT, MNLI, SENTENCE_NAMES, SENTENCES, SHARES

_ALL: Final = ("MNLI-m", *SENTENCE_NAMES)


def _arms(_: Scale) -> tuple[Arm, ...]:
    """Each model after shares of its steps and at their end; x in percent."""
    return tuple(
        replace(
            arm,
            name=f"{arm.name}-{round(100 * share)}",
            title=f"{title}, {round(100 * share)} % of the steps",
            at=share,
            series=title,
            x=100 * share,
        )
        for arm, title in ((BERT, "masked LM"), (LEFT, "left-to-right"))
        for share in (*SHARES, 1.0)
    )


FIGURE_5: Final = Experiment(
    name="figure5",
    title="Figure 5: how long pre-training pays",
    question="Do more steps help, and does masked LM, which learns from 15 % of the pieces, learn more slowly?",
    arms=_arms,
    columns=(MNLI, *SENTENCES),
    claims=(
        Claim(
            words="The last 40 % of the steps still help.",
            paper="84.4 after a million steps, about a point more than after 500,000",
            first="bert-100",
            second="bert-60",
            columns=_ALL,
        ),
        Claim(
            words="Left-to-right is ahead at the beginning.",
            paper="79.4 against 78.6 after 3 % of the steps (the text says: hardly at all)",
            first="left-3",
            second="bert-3",
            columns=_ALL,
        ),
        Claim(
            words="Masked LM is ahead at the end.",
            paper="84.4 against 82.2",
            first="bert-100",
            second="left-100",
            columns=_ALL,
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
    note="All points of a line are one pre-training, stopped to look at it: the rate has not come down there as it "
    "has at the end.",
)

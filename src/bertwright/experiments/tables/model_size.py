"""table of the paper → experiment: table 6, the size of the model (paper §5.2)."""

from typing import Final

from bertwright.experiments.spec import Arm, Claim, Experiment, Published, Scale
from bertwright.experiments.tables import arms, columns


def _arms(scale: Scale) -> tuple[Arm, ...]:
    """Return an arm for each size, the one with fewest weights first, with x = 1, 2, …

    After the second size comes an arm of equal size with fewer, wider heads. It stands beside it on the axis.
    """
    sizes = tuple(
        Arm(
            name=f"size-{number}",
            title=size,
            pretraining=arms.BERT.pretraining if size == scale.pretraining["size"] else {"size": size},
            series="BERT",
            x=float(number),
        )
        for number, size in enumerate(scale.sizes, start=1)
    )
    size = scale.fewer_heads
    series = "BERT with wider heads"
    fewer_heads = Arm(name="fewer-heads", title=size, pretraining={"size": size}, series=series, x=2.25)
    return (*sizes[:2], fewer_heads, *sizes[2:])


_LAST_LAYER: Final = (
    "With the matching start the smallest size has its matching head in the last layer. No later layer can use it. So "
    "on pairs of texts this compares the layer of that head, not sizes."
)


def _larger_is_better(
    large: int, small: int, *, statement: str, paper: str, difference: float | None = None, on: tuple[str, ...] = ()
) -> Claim:
    """Return the claim that size number `large` is better than size number `small`.

    Sizes are numbered from 1, the smallest. difference: the paper's, in points. on: columns of the claim.
    """
    return Claim(
        statement=statement,
        paper=paper,
        arm=f"size-{large}",
        against=f"size-{small}",
        columns=on,
        paper_difference=difference,
        caveat=_LAST_LAYER if small == 1 and "perplexity" not in on else "",
    )


TABLE_6: Final = Experiment(
    name="table6",
    title="Table 6: the size of the model",
    question="Is a larger model better, even on tasks with few rows?",
    arms=_arms,
    columns=(
        columns.PERPLEXITY,
        columns.MNLI_MATCHED,
        columns.MRPC_ACCURACY,
        columns.SST2_ACCURACY,
        columns.QNLI_ACCURACY,
        columns.COLA_MATTHEWS,
        columns.STSB_SPEARMAN,
        columns.RTE_ACCURACY,
    ),
    claims=(
        _larger_is_better(
            4,
            1,
            statement="The largest model is better on the tasks than the smallest.",
            paper="MNLI 86.6 against 77.9, MRPC 87.8 against 79.8, SST-2 93.7 against 88.4",
            difference=7.3,
        ),
        _larger_is_better(
            2, 1, statement="The second size is better on the tasks than the smallest.", paper="better on all three"
        ),
        _larger_is_better(
            3, 2, statement="The third size is better on the tasks than the second.", paper="better on all three"
        ),
        _larger_is_better(
            4, 3, statement="The largest model is better on the tasks than the third size.", paper="better on all three"
        ),
        _larger_is_better(
            4,
            1,
            statement="The largest model is better than the smallest even on tasks with few training rows.",
            paper="MRPC, 3,600 rows: 87.8 against 79.8",
            difference=8.0,
            on=("MRPC", "RTE"),
        ),
        _larger_is_better(
            4,
            1,
            statement="The largest model has a lower perplexity than the smallest.",
            paper="3.23 against 5.84",
            difference=2.61,
            on=("perplexity",),
        ),
        Claim(
            statement="At one size, more heads are better than fewer and wider ones.",
            paper="12 heads against 3: MNLI 81.9 against 80.6, MRPC 84.8 against 82.2, SST-2 91.3 against 90.7",
            arm="size-2",
            against="fewer-heads",
            paper_difference=1.6,
            published=("6x768, 12 heads", "6x768, 3 heads"),
        ),
    ),
    published=Published(
        source="table 6, dev, mean of 5 fine-tunings; layers x width, heads",
        head=("perplexity", "MNLI-m", "MRPC", "SST-2"),
        rows=(
            ("3x768, 12 heads", "5.84", "77.9", "79.8", "88.4"),
            ("6x768, 3 heads", "5.24", "80.6", "82.2", "90.7"),
            ("6x768, 12 heads", "4.68", "81.9", "84.8", "91.3"),
            ("12x768, 12 heads", "3.99", "84.4", "86.7", "92.9"),
            ("12x1024, 16 heads", "3.54", "85.7", "86.9", "93.3"),
            ("24x1024, 16 heads", "3.23", "86.6", "87.8", "93.7"),
        ),
    ),
    axis="size, fewest weights first",
    note="The perplexity is that of the masked pieces of validation text. It depends on the vocabulary. So compare it "
    "only within one table. A size is LAYERSxWIDTH. Heads are 64 wide, unless the size ends with their number; then "
    "they are wider, and the number of weights is the same.",
    limits=(
        "All sizes had the same learning rate. The smallest model has the best perplexity. Other rates were not "
        "tried, so the reason may be the rate or the size.",
        "The claims on sizes are not independent: most of them come from one step, from the smallest size to the "
        "second.",
    ),
)

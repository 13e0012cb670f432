"""Sizes of a model, each with the learning rate that is best for it (paper §5.2 has one rate of fine-tuning a task)."""

from collections.abc import Iterator
from typing import Any, Final

from bertwright.experiments.spec import Arm, Claim, Experiment, RateSearch, Scale
from bertwright.experiments.tables import columns

_ORDINALS: Final = ("first", "second", "third")


def _arms(scale: Scale) -> tuple[Arm, ...]:
    """Return an arm for the two smallest sizes and the largest one, with the start `local`."""
    sizes = (*scale.sizes[:2], scale.sizes[-1])
    return tuple(
        Arm(name=f"size-{number}", title=size, pretraining={"size": size, "start": "local"}, series="BERT", x=number)
        for number, size in enumerate(sizes, start=1)
    )


def _claims(large: int, small: int) -> Iterator[Claim]:
    """Yield the claims that one size is better than a smaller one: on tasks, in minimal pairs, in bits a character."""
    sizes = f"The {_ORDINALS[large - 1]} size is better than the {_ORDINALS[small - 1]}"
    arms: dict[str, Any] = {"arm": f"size-{large}", "against": f"size-{small}"}
    yield Claim(statement=f"{sizes} on the tasks.", paper="better on all tasks, with one rate for all", **arms)
    pairs = (columns.BLIMP_ACCURACY.name,)
    yield Claim(statement=f"{sizes} in minimal pairs.", paper="not measured", columns=pairs, **arms)
    yield Claim(
        statement=f"{sizes} in bits a character.",
        paper="a larger model has a lower perplexity",
        columns=(columns.CHARACTER_BITS.name,),
        unknown_delta=columns.BITS_DELTA,
        **arms,
    )


SIZES_WITH_RATES: Final = Experiment(
    name="sizes",
    title="The size of the model, each with its own learning rate",
    question="Is a larger model better after the same tokens, if each size has the learning rate that suits it?",
    arms=_arms,
    columns=(*columns.SENTENCE_COLUMNS, columns.BLIMP_ACCURACY, columns.CHARACTER_BITS),
    claims=(*_claims(2, 1), *_claims(3, 2)),
    axis="size, fewest weights first",
    note="A size is LAYERSxWIDTH. All sizes begin with the start `local`. With `matching` the smallest size would have "
    "its matching head in the last layer, where no later layer can use it. The bits are the loss on masked pieces of "
    "validation text, with 15 % masked.",
    limits=(
        "All sizes see the same tokens. A larger size takes more time and more FLOPs for them.",
        "The rate of pre-training is chosen in a shorter run with one seed. All sizes have one rate of fine-tuning.",
    ),
    rate_search=RateSearch(rate_share=0.5),
    pretraining_seeds=6,
)

"""Validation loss of `tiny` after some minutes of masked LM, trained by us or by transformers.

python -m benchmarks.studies.quality --corpus CORPUS --held-out CORPUS --minutes 12 [--by transformers]
    [--threads 1] [--json]

Both learn from the same rows in the same order by the same objective (masked LM and next sentence, dropout 0.1), rate,
warm-up, decay and clipping; the number of steps is what the minutes hold, the evaluation not counted. transformers gets
its rows ready-made for free. Ours begins its first layer's attention at the neighbouring places (`--start local`),
`--start random` as transformers does. Minutes are those of the process's own processor time, so that with one
thread what else the machine does counts for neither; with more threads, waiting for each other counts too.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.pretraining import LENGTH, Theirs, columns_of
from benchmarks.side_by_side import parser, processor, versions
from bertwright.model.config import EncoderConfig
from bertwright.model.families.bert import BERT_FAMILY
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, prepare_pretraining
from bertwright.training.hardware import Numerics, apply_numerics
from bertwright.training.loop import Loop
from bertwright.training.optimizer import rate_at, set_rate
from bertwright.training.settings import OptimizerSettings

BATCH = 32
OPTIMIZER = OptimizerSettings(learning_rate=2e-3, warmup=0.05, bias_correction=True)
"""Result of a search for an hour on two cores (docs/log.md)."""
WARM, TRIED = 10, 20
"""Steps before those from which the number that the minutes hold is told."""

Update = Callable[[int, float], float]
"""(step, learning rate) -> seconds of processor time."""


def ours(made: Pretraining, numerics: Numerics) -> tuple[Update, Callable[[], PretrainingModel]]:
    """The program's own loop."""
    loop, batches = Loop(made.model.trainable(), made.plan(10**9), numerics, None), made.batches(10**9)

    def update(step: int, rate: float) -> float:
        begin = time.process_time()
        loop.compute_gradients(step, batches(step))
        set_rate(loop.optimizer, rate)
        loop.optimizer.step()
        return time.process_time() - begin

    def trained() -> PretrainingModel:
        loop.optimizer.apply_pending_decay()
        assert isinstance(made.model, PretrainingModel)
        return made.model.eval()

    return update, trained


def theirs(made: Pretraining, numerics: Numerics) -> tuple[Update, Callable[[], PretrainingModel]]:
    """transformers' model; measured with its weights in ours."""
    torch.use_deterministic_algorithms(False)  # as it comes
    batches = made.batches(10**9)
    assert isinstance(made.config, EncoderConfig)
    other = Theirs(
        made.config,
        bf16=numerics.precision == "bf16",
        compiled=numerics.compiled,
        optimizer=made.settings.optimizer,
    )

    def update(step: int, rate: float) -> float:
        ready = [columns_of(inputs) for inputs in batches(step)]
        begin = time.process_time()
        for group in other.optimizer.param_groups:
            group["lr"] = rate
        other.step(ready)
        return time.process_time() - begin

    def trained() -> PretrainingModel:
        tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
        theirs = {name: tensor for name, tensor in other.model.state_dict().items() if name not in tied}
        assert isinstance(made.model, PretrainingModel)
        made.model.load_state_dict(BERT_FAMILY.weights_from_foreign(theirs, "transformers"))
        return made.model.eval()

    return update, trained


def main() -> None:
    """Train, measure, print."""
    given_parser = parser(__doc__)
    given_parser.set_defaults(threads=1)
    given_parser.add_argument("--corpus", type=Path, required=True)
    given_parser.add_argument("--held-out", type=Path, required=True)
    given_parser.add_argument("--minutes", type=float, required=True)
    given_parser.add_argument("--steps", type=int, help="so many, whatever the minutes hold")
    given_parser.add_argument("--by", choices=("bertwright", "transformers"), default="bertwright")
    given_parser.add_argument("--start", choices=("local", "random"), default="local")
    given_parser.add_argument("--compile", action="store_true")
    options = given_parser.parse_args()
    transformers.logging.set_verbosity_error()
    settings = PretrainSettings(
        phases=(Phase(length=LENGTH, share=1.0),),
        batch_size=BATCH,
        steps=10**9,
        optimizer=OPTIMIZER,
        initializer_range=0.05,
        start=options.start,
        threads=options.threads,
    )
    train = ours if options.by == "bertwright" else theirs

    def begin() -> tuple[Pretraining, Update, Callable[[], PretrainingModel]]:
        made, numerics = prepare_pretraining(
            settings, corpus=options.corpus, out=Path("unused"), held_out=options.held_out, init_from=None
        )
        numerics = numerics.model_copy(update={"compiled": options.compile})
        apply_numerics(numerics)
        return made, *train(made, numerics)

    _, update, _ = begin()
    tried = [update(step, 1e-6) for step in range(WARM + TRIED)]
    steps = options.steps or round(60 * options.minutes * TRIED / sum(tried[WARM:]))
    made, update, trained = begin()
    spent = 0.0
    for step in range(steps):
        spent += update(step, OPTIMIZER.learning_rate * rate_at(step, steps, OPTIMIZER.warmup))
        if step % 500 == 499:
            print(f"step {step + 1} of {steps}, {spent / 60:.1f} minutes", file=sys.stderr)
    assert made.validation
    row: dict[str, Any] = {"work": f"{options.minutes:g} minutes of tiny", "by": options.by, "steps": steps}
    row |= {"minutes": spent / 60, "threads": options.threads, "held_out": made.validation.metrics(trained())}
    print(row, file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": [row], "versions": versions(["transformers"]), "processor": processor()}))


if __name__ == "__main__":
    main()

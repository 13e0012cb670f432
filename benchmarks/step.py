"""Time of one step of pre-training, and the operations of torch that take it.

python -m benchmarks.step [--system bert] [--size 4x128] [--rows 64] [--length 64] [--vocabulary 8192] [--method muon]
                          [--dropout 0] [--precision bf16] [--threads 2] [--repeats 15] [--profile] [--json]

Masked LM, and for BERT next sentence, on random pieces, in the program's own loop. The options' defaults are what
`pretrain` chooses for thirty minutes on two cores. To compare two versions of the program, run the two in turns.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, cast

import torch

from benchmarks.memory import rows
from benchmarks.side_by_side import finish, parser
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.system import system_config
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.training.hardware import apply_numerics, resolve_numerics
from bertwright.training.loop import Loop, Plan
from bertwright.training.settings import OptimizerSettings

WARM = 5
"""Steps before the clock starts."""


def training_step(
    size: str,
    num_rows: int,
    length: int,
    vocabulary: int,
    *,
    threads: int,
    precision: Literal["auto", "fp32", "bf16"],
    dropout: float | None = None,
    method: str = "adamw",
    system: Literal["bert", "roberta", "albert", "modernbert"] = "bert",
) -> Callable[[], int]:
    """Return a function that takes one step and returns its number of tokens. dropout: None for that of the size."""
    numerics = resolve_numerics(precision, threads=threads)
    apply_numerics(numerics)
    rates: dict[str, Any] = {} if dropout is None else {"hidden_dropout": dropout, "attention_dropout": dropout}
    config = cast(EncoderConfig, system_config(system, size, vocabulary, **rates))
    model = PretrainingModel(config, second_sentence="next" if system == "bert" else "none")
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    optimizer = OptimizerSettings.model_validate({"method": method})
    loop = Loop(model.trainable(), Plan(steps=10**6, seed=0, optimizer=optimizer), numerics, None)
    inputs = rows(num_rows, length, vocabulary)

    def step() -> int:
        loop.step(0, lambda _: [inputs])
        return num_rows * length

    return step


def profile(step: Callable[[], int], steps: int = 10) -> str:
    """Return torch's table of the operations that took most of `steps` steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as measured:
        for _ in range(steps):
            step()
    return str(measured.key_averages().table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=45))


def main() -> None:
    """Time the step, and print the median with the fastest and the slowest."""
    options_parser = parser(__doc__)
    options_parser.set_defaults(repeats=15)
    options_parser.add_argument("--system", choices=("bert", "roberta", "albert", "modernbert"), default="bert")
    options_parser.add_argument("--size", default="4x128")
    options_parser.add_argument("--rows", type=int, default=64)
    options_parser.add_argument("--length", type=int, default=64)
    options_parser.add_argument("--vocabulary", type=int, default=8192)
    options_parser.add_argument("--method", default="muon")
    options_parser.add_argument("--dropout", type=float, default=0.0)
    options_parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="bf16")
    options_parser.add_argument("--profile", action="store_true", help="print torch's table of operations too")
    options = options_parser.parse_args()
    step = training_step(
        options.size,
        options.rows,
        options.length,
        options.vocabulary,
        threads=options.threads,
        precision=options.precision,
        dropout=options.dropout,
        method=options.method,
        system=options.system,
    )
    for _ in range(WARM):
        tokens = step()
    seconds = []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    milliseconds = {
        name: round(1000 * pick(seconds), 1)
        for name, pick in (("median", statistics.median), ("fastest", min), ("slowest", max))
    }
    finish(
        options,
        [],
        packages=[],
        work=f"{options.system} {options.size}, {options.rows} rows of {options.length}, {options.precision}, "
        f"{options.threads} threads",
        milliseconds=milliseconds,
        tokens_per_second=round(tokens / statistics.median(seconds)),
        **({"operations": profile(step)} if options.profile else {}),
    )


if __name__ == "__main__":
    main()

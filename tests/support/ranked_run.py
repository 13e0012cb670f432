"""Trains the tiny model of `tiny_run` on the ranks that torchrun started; for tests that compare them with one process.

python -m tests.support.ranked_run FOLDER --kind float64 --sharding ddp --steps 50
    [--die RANK:STEP] [--rows-at-a-time 3]
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bertwright.cli import leave
from bertwright.errors import RunFailed
from bertwright.training.distributed import full_state, init_distributed
from bertwright.training.hardware import Numerics
from bertwright.training.loop import Plan, train
from bertwright.training.run_folder import start_run
from bertwright.training.settings import OptimizerSettings
from tests.support import tiny_run

SETTINGS = OptimizerSettings(learning_rate=5e-3, warmup=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", default="float64")
    parser.add_argument("--sharding", default="ddp", choices=("ddp", "fsdp2"))
    parser.add_argument("--method", default="adamw")
    parser.add_argument("--steps", type=int, default=tiny_run.STEPS)
    parser.add_argument("--until", type=int, help="rank 0 gets SIGTERM during this step")
    parser.add_argument("--die", help="RANK:STEP at which a rank kills itself, the first time")
    parser.add_argument("--second-sentence", default="next")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--system", default="bert")
    parser.add_argument("--vocab-size", type=int, default=tiny_run.VOCAB, help="of BERT; the corpus has the first 200")
    parser.add_argument("--rows-at-a-time", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder / f"corpus-{os.environ.get('RANK', 0)}"
    model: Any
    batches: Any
    if options.system == "bert":
        model = tiny_run.built(options.second_sentence, getattr(torch, options.kind), vocab_size=options.vocab_size)
        rows = tiny_run.examples(folder, second_sentence=options.second_sentence)
        batches = tiny_run.micro_batches(rows, options.rows_at_a_time)
    else:
        model = tiny_run.system_model(options.system, getattr(torch, options.kind))
        batches = tiny_run.system_batches(folder, model, options.system, options.rows_at_a_time)
    dying_rank, dying_step = map(int, options.die.split(":")) if options.die else (-1, -1)
    with init_distributed(options.device) as ranks, tiny_run.deterministic():

        def of_step(step: int) -> Sequence[Any]:
            first_time = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0
            if first_time and (ranks.rank, step) == (dying_rank, dying_step):
                os.kill(os.getpid(), signal.SIGKILL)
            if ranks.is_main and step == options.until:
                os.kill(os.getpid(), signal.SIGTERM)
            return batches(step)

        run = start_run(options.folder / "run", kind="test", settings={}, data={}, resume=True, ranks=ranks)
        optimizer = SETTINGS.model_copy(update={"method": options.method})
        plan = Plan(steps=options.steps, seed=1, optimizer=optimizer, log_every=1, save_every=options.save_every)
        numerics = Numerics(precision="fp32", threads=1, peak_flops=1e9, device=options.device)
        outcome = train(
            model.trainable(),
            of_step,
            plan=plan,
            numerics=numerics,
            run=run,
            ranks=ranks,
            sharding=options.sharding,
            quiet=True,
        )
        weights = full_state(model)
        if ranks.is_main and outcome.finished:
            save_file(dict(weights), options.folder / "weights.safetensors")


if __name__ == "__main__":
    try:
        main()
    except RunFailed as error:
        print(f"bertwright: {error}", file=sys.stderr)
        leave(1)
    leave(0)

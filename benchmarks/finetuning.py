"""Fine-tuning a classifier beside transformers on the same sentences: dropout 0.1, clipping, AdamW, batches of 32.

python -m benchmarks.finetuning [--sizes tiny,base] [--data SST-2 --tokenizer DIR] [--repeats 4] [--json]

Without --data the sentences are beginnings of those of the documentation on this machine, about as long as SST-2's.
All repeat the same sentences in each turn: batches of the program's sampler, which sorts 50 batches by length together
(`tiny`: all of them, `base`: every fifth). transformers has them in random order, and pads every batch to 128 tokens,
as its GLUE script does by default, or to its longest row; its batches are ready-made, ours are made while they are
timed. All weights are random.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks.side_by_side import compare, finish, parser, transformers_config
from bertwright.finetuning.batches import epoch_batches
from bertwright.model.config import EncoderConfig, size_config
from bertwright.model.encoder import init_weights
from bertwright.quickstart.docstrings import collect
from bertwright.tasks.binding import BoundTask
from bertwright.tasks.classification.model import TextBatch
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from bertwright.training.hardware import Numerics, apply_numerics, resolve_numerics
from bertwright.training.loop import Loop, Plan
from bertwright.training.settings import OptimizerSettings

BATCH = 32
LENGTH = 128
WINDOW = 50
"""Number of batches that the program's sampler sorts by length together."""
STEPS = {"tiny": WINDOW, "base": 10}
"""Steps of a turn, a divisor of the window. All cost the same when padded to 128: transformers then does a tenth."""
MEAN_WORDS = 9.4
"""Mean number of words in SST-2's training rows, most of which are parts of sentences."""


def documentation_data(folder: Path) -> tuple[Path, Tokenizer]:
    """20,000 beginnings of sentences under two labels in SST-2's layout, and a vocabulary of 30,522 pieces at most."""
    sentences = [sentence for module in collect().modules for sentence in module.sentences]
    tokenizer = train_wordpiece(sentences, vocab_size=30_522)
    random = np.random.default_rng(0)
    lengths = random.geometric(1 / MEAN_WORDS, 20_000)
    chosen = random.choice(len(sentences), 20_000)
    for name, rows in (("train", slice(100, None)), ("dev", slice(0, 100))):
        lines = [
            f"{' '.join(sentences[row].split()[:length])}\t{position % 2}\n"
            for position, (row, length) in enumerate(zip(chosen[rows], lengths[rows], strict=True))
        ]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines), "utf-8")
    return folder, tokenizer


def representative(work: BoundTask, steps: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of batches at equal distances in a window of the sampler, from the shortest rows on."""
    window = np.random.default_rng(0).permutation(len(work.lengths))[: WINDOW * BATCH]
    batches = [window[rows] for rows in epoch_batches(work.lengths[window], BATCH, seed=0, epoch=0)]
    batches.sort(key=lambda rows: int(work.lengths[rows].max()))
    return batches[WINDOW // steps // 2 :: WINDOW // steps]


def ours(
    work: BoundTask, config: EncoderConfig, numerics: Numerics, batches: Sequence[NDArray[np.int64]]
) -> Callable[[], float]:
    """The program's own loop."""
    model = work.build(config)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    plan = Plan(steps=10**6, seed=0, optimizer=OptimizerSettings(learning_rate=3e-5, bias_correction=True))
    loop, next_step = Loop(work.trainable(model), plan, numerics, None), [0]

    def batches_of(step: int) -> list[TextBatch]:
        return [work.batch(batches[step % len(batches)])]

    def run() -> float:
        apply_numerics(numerics)
        for step in range(next_step[0], next_step[0] + len(batches)):
            loop.step(step, batches_of)
        next_step[0] += len(batches)
        return float(sum(map(len, batches)))

    return run


def theirs(config: EncoderConfig, batches: Sequence[TextBatch], *, whole: bool, bf16: bool) -> Callable[[], float]:
    """transformers' BertForSequenceClassification under a training loop as its examples write one."""
    model = transformers.BertForSequenceClassification(transformers_config(config))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    ready = [_columns(rows, LENGTH if whole else rows.ids.shape[1]) for rows in batches]

    def run() -> float:
        torch.use_deterministic_algorithms(False)  # as it comes
        for columns in ready:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**columns).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return float(sum(len(rows.ids) for rows in batches))

    return run


def _columns(rows: TextBatch, length: int) -> dict[str, torch.Tensor]:
    assert rows.targets is not None
    wider = (0, length - rows.ids.shape[1])
    return {
        "input_ids": torch.nn.functional.pad(rows.ids.long(), wider),
        "token_type_ids": torch.nn.functional.pad(rows.segments.long(), wider),
        "attention_mask": torch.nn.functional.pad(rows.mask.long(), wider),
        "labels": rows.targets,
    }


def measure(size: str, data: Path, tokenizer: Tokenizer, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one size."""
    config = size_config(size, tokenizer.vocab_size)
    numerics = resolve_numerics(threads=options.threads)
    work = CLASSIFICATION.prepare(get_task("sst2"), data, tokenizer, config, LENGTH)
    batches = representative(work, STEPS[size])
    order = np.random.default_rng(0).permutation(np.concatenate(batches))
    random = [work.batch(order[begin : begin + BATCH]) for begin in range(0, len(order), BATCH)]
    has_bf16 = numerics.precision == "bf16"
    peers = {
        "transformers, padded to 128": theirs(config, random[: STEPS[size] // 10], whole=True, bf16=False),
        "transformers, dynamic padding": theirs(config, random, whole=False, bf16=False),
    }
    if has_bf16:
        peers["transformers, dynamic padding, bf16"] = theirs(config, random, whole=False, bf16=True)
    program = ours(work, config, numerics, batches)
    name = f"fine-tuning {size}, {numerics.precision}"
    return compare(name, program, peers, repeats=options.repeats, unit="examples/s")


def main() -> None:
    """Measure each size and print the table."""
    given_parser = parser(__doc__)
    given_parser.add_argument("--sizes", default="tiny,base")
    given_parser.add_argument("--data", type=Path)
    given_parser.add_argument("--tokenizer", type=Path)
    options = given_parser.parse_args()
    if (options.data is None) != (options.tokenizer is None):
        given_parser.error("--data and --tokenizer go together")
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        data, words = (
            (options.data, Tokenizer.load(options.tokenizer)) if options.data else documentation_data(Path(folder))
        )
        rows = [row for size in options.sizes.split(",") for row in measure(size, data, words, options)]
    finish(options, rows, packages=["transformers"])


if __name__ == "__main__":
    main()

"""A layer over few rows in one call beside one product after the other: one text through a base model.

python -m benchmarks.studies.few_rows [--system bert] [--size base] [--repeats 4] [--json]

`MOST_FUSED` in `model/cpu/layers.py` is the number of rows up to which one call was the faster way; both ways compute
the same.
"""

import sys
from functools import partial

import numpy as np
import torch

from benchmarks.inference import PEERS_OF, answering, batch
from benchmarks.inference_peers import Batch
from benchmarks.side_by_side import compare, finish, parser
from bertwright.model.config import EncoderConfig
from bertwright.model.cpu.layers import LayerProducts
from bertwright.model.cpu.packing import multiplies_halves, packed_copy
from bertwright.model.cpu.products import Kind
from bertwright.model.encoder import init_weights
from bertwright.model.system import system_config
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.inference import multiplies_bytes
from bertwright.training.hardware import prepare_processor

LENGTHS = (8, 32, 64, 128, 256)
TEXTS = 10
"""In a turn."""


def turn(model: Classifier, one: Batch, most: int) -> float:
    """Answer one text several times, in one call a layer where it has at most so many rows."""
    for layer in model.modules():
        if isinstance(layer, LayerProducts):
            layer.most_fused = most
    answer = answering(model)
    for _ in range(TEXTS):
        answer(*one)
    return float(TEXTS)


def main() -> None:
    """Measure and print."""
    given_parser = parser(__doc__)
    given_parser.add_argument("--system", choices=PEERS_OF, default="bert")
    given_parser.add_argument("--size", default="base")
    options = given_parser.parse_args()
    torch.set_num_threads(options.threads)
    prepare_processor()
    config = system_config(options.system, options.size, 30_522)
    assert isinstance(config, EncoderConfig)
    model = Classifier(config, 2).eval()
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    random, rows = np.random.default_rng(0), []
    kinds: list[Kind] = ["fp32"]
    kinds += ["bf16"] if multiplies_halves(config) else []
    kinds += ["int8"] if multiplies_bytes() else []
    for kind in kinds:
        fast = packed_copy(model, kind)
        for length in LENGTHS:
            one = batch(np.full(1, length), random.integers(0, config.vocab_size, (1, 512)))
            rows += compare(
                f"{length} tokens, {kind}",
                partial(turn, fast, one, sys.maxsize),
                {"a product after the other": partial(turn, fast, one, 0)},
                repeats=options.repeats,
                unit="texts/s",
            )
    finish(options, rows, packages=())


if __name__ == "__main__":
    main()

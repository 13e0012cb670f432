"""A pre-training step beside transformers' on the same rows: masked LM and next sentence, dropout 0.1, clipping, AdamW.

python -m benchmarks.pretraining [--sizes tiny,base] [--corpus CORPUS] [--repeats 4] [--json]

The rows are of 128 tokens at most, as the next-sentence walk makes them from a corpus; without --corpus one is built
from the documentation on this machine with a vocabulary of 30,522 pieces at most. Ours makes its rows while it is
timed, transformers gets its own ready-made. The roof is torch's product of the same matrices that a step multiplies.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.side_by_side import compare, finish, parser, roof, transformers_config
from bertwright.corpus.build import build_corpus
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import Encoder
from bertwright.objectives.masked_lm import Inputs, pretraining_flops
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, prepare_pretraining
from bertwright.quickstart.docstrings import collect, corpus_text, write_documents
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_all
from bertwright.text.wordpiece import train_wordpiece
from bertwright.training.hardware import Numerics, apply_numerics
from bertwright.training.loop import Loop
from bertwright.training.settings import OptimizerSettings

LENGTH = 128
ROWS = {"tiny": 32, "base": 16}
STEPS = {"tiny": 8, "base": 1}
"""Steps of a turn."""


def documentation_corpus(folder: Path) -> Path:
    """A corpus of the documentation on this machine."""
    text, settings = folder / "text.txt", TextSettings(lines="sentences")
    write_documents(corpus_text(collect(), exclude_modules=()), text)
    texts = (line for document in read_all([text], settings) for line in document.paragraphs)
    train_wordpiece(texts, vocab_size=30_522).save(folder / "tokenizer")
    build_corpus([text], tokenizer=folder / "tokenizer", out=folder / "corpus", settings=settings)
    return folder / "corpus"


def ours(made: Pretraining, numerics: Numerics, *, steps: int) -> Callable[[], float]:
    """The program's own loop, from the making of rows to the update."""
    loop, batches, next_step = (
        Loop(made.model.trainable(), made.plan(10**6), numerics, None),
        made.batches(10**6),
        [0],
    )

    def run() -> float:
        apply_numerics(numerics)
        for step in range(next_step[0], next_step[0] + steps):
            loop.step(step, batches)
        next_step[0] += steps
        return float(steps * made.settings.batch_size)

    return run


class Theirs:
    """transformers' BertForPreTraining under a training loop as its examples write one."""

    def __init__(
        self, config: EncoderConfig, *, bf16: bool, compiled: bool, optimizer: OptimizerSettings | None = None
    ) -> None:
        settings = optimizer or OptimizerSettings()
        self.model = transformers.BertForPreTraining(transformers_config(config))
        self.model.train()
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            eps=settings.epsilon,
            fused=True,
        )
        self.bf16, self.clip = bf16, settings.clip

    def step(self, micro: Sequence[dict[str, Tensor]]) -> int:
        """Update the weights from ready-made columns; return the number of rows."""
        self.optimizer.zero_grad()
        for columns in micro:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                loss = self.forward(**columns).loss / len(micro)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return sum(len(columns["input_ids"]) for columns in micro)


def theirs(config: EncoderConfig, steps: Sequence[list[Inputs]], *, bf16: bool, compiled: bool) -> Callable[[], float]:
    """A turn of transformers, over these steps."""
    trained = Theirs(config, bf16=bf16, compiled=compiled)
    ready = [[columns_of(inputs) for inputs in micro] for micro in steps]

    def run() -> float:
        torch.use_deterministic_algorithms(False)  # as it comes
        return float(sum(map(trained.step, ready)))

    return run


def columns_of(inputs: Inputs) -> dict[str, Tensor]:
    """Return the arguments of transformers' model."""
    labels = torch.full(inputs.ids.shape, -100)
    rows, places = inputs.picked // inputs.at.shape[1], inputs.at.flatten()[inputs.picked]
    labels[rows, places] = inputs.labels
    return {
        "input_ids": inputs.ids.long(),
        "token_type_ids": inputs.segments.long(),
        "attention_mask": inputs.mask.long(),
        "labels": labels,
        "next_sentence_label": inputs.is_random,
    }


def shapes(config: EncoderConfig, inputs: Inputs) -> list[tuple[int, int, int]]:
    """The matrix products of the encoder's whole layer and of the vocabulary, forward and backward."""
    tokens, picked = int(inputs.mask.sum()), len(inputs.labels)
    width, inner = config.hidden, config.intermediate
    forward = [(tokens, width, 3 * width), (tokens, width, width), (tokens, width, inner), (tokens, inner, width)]
    forward = forward * config.layers + [(picked, width, config.vocab_size)]
    return [
        shape for n, k, m in forward for shape in ((n, k, m), (n, m, k), (k, n, m))
    ]  # the product, and the gradients of its input and of its weight


def measure(size: str, corpus: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The rows of one size, and the rates of its matrix products."""
    settings = PretrainSettings(
        size=size,
        phases=(Phase(length=LENGTH, share=1.0),),
        batch_size=ROWS[size],
        steps=10**6,
        threads=options.threads,
    )
    made, numerics = prepare_pretraining(
        settings, corpus=corpus, out=Path("unused"), held_out=None, init_from=None, write_plans=False
    )
    config, encoder = made.config, made.model.encoder
    assert isinstance(config, EncoderConfig)
    assert isinstance(encoder, Encoder)
    numerics = numerics.model_copy(update={"compiled": options.compile})
    apply_numerics(numerics)
    batches = made.batches(10**6)
    steps = [batches(step) for step in range(STEPS[size])]
    has_bf16 = numerics.precision == "bf16"
    peers = {"transformers, fp32": theirs(config, steps, bf16=False, compiled=False)}
    if has_bf16:
        peers["transformers, bf16"] = theirs(config, steps, bf16=True, compiled=False)
    best = "bf16" if has_bf16 else "fp32"
    peers[f"transformers, {best}, torch.compile"] = theirs(config, steps, bf16=has_bf16, compiled=True)
    program = ours(made, numerics, steps=STEPS[size])
    name = f"pretraining {size}, {numerics.precision}" + (", compiled" if numerics.compiled else "")
    rows = compare(name, program, peers, repeats=options.repeats, unit="rows/s")
    apply_numerics(numerics)
    whole = [inputs for micro in steps for inputs in micro]
    flops = sum(pretraining_flops(encoder, inputs) for inputs in whole)
    work = flops / sum(len(inputs.ids) for inputs in whole)
    rates = {"computed": work * rows[0]["ours"]}
    rates["roof"] = roof(shapes(config, whole[0]), torch.bfloat16 if has_bf16 else torch.float32)
    rates["share"] = rates["computed"] / rates["roof"]
    return rows, rates


def main() -> None:
    """Measure each size and print the table."""
    given_parser = parser(__doc__)
    given_parser.add_argument("--sizes", default="tiny,base")
    given_parser.add_argument("--corpus", type=Path)
    given_parser.add_argument("--compile", action="store_true", help="ours compiled too")
    options = given_parser.parse_args()
    transformers.logging.set_verbosity_error()
    rows, roofs = [], {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus or documentation_corpus(Path(folder))
        for size in options.sizes.split(","):
            rates, roofs[size] = measure(size, corpus, options)
            rows += rates
            print(f"{size}: {roofs[size]['share']:.0%} of the roof", file=sys.stderr)
    finish(options, rows, packages=["transformers"], roof=roofs)


if __name__ == "__main__":
    main()

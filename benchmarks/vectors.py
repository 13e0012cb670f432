"""Vectors of texts beside sentence-transformers with the same model folder: computed, and trained.

python -m benchmarks.vectors --model MODEL --pairs TABLE [--rows 2048] [--parts encoding,training] [--json]

MODEL is a folder that both programs open, TABLE a table of pairs of texts that match (columns anchor, positive).
Encoding: all texts of the pairs, in batches of 32 by length on their side; with their backends ONNX and OpenVINO where
these load. `cosine` is the lowest cosine of a text's two vectors. Training: a pass over the pairs, softmax over the
batch (their MultipleNegativesRankingLoss), batches of 64, AdamW and clipping, in their trainer, which needs accelerate,
and in our loop. On both sides the pass has tokenizing and a new optimiser in it; accelerate has one precision in a
process, so their trainers cannot be made beforehand.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks.side_by_side import compare, finish, parser
from bertwright.finetuning.batches import steps_of
from bertwright.model.folder import load_weights, open_model
from bertwright.tables.reader import read_table
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.embedding.task import EMBEDDING
from bertwright.tasks.inference import choose, open_answering
from bertwright.tasks.sentence_vectors import SentenceEncoder
from bertwright.training.hardware import apply_numerics, resolve_numerics
from bertwright.training.loop import Loop, Plan
from bertwright.training.settings import OptimizerSettings

Encode = Callable[[list[str]], NDArray[np.float32]]
BATCH: Final = 64
LENGTH: Final = 128
RATE: Final = 2e-5
SCALE: Final = 20.0
"""Factor of the cosines; its reciprocal is the temperature."""


def own_encoder(model: str, precision: str) -> Encode:
    """Return the program's own function texts → vectors."""
    saved = open_answering(model, precision, "cpu")
    encoder = SentenceEncoder(saved, open_tokenizer(saved))
    return encoder.vectors


def their_encoders(model: str, *, has_bf16: bool) -> dict[str, Encode]:
    """Return those of sentence-transformers, by backend; one that does not load is named with its error."""
    from sentence_transformers import SentenceTransformer

    builders: dict[str, Callable[[], Any]] = {
        "sentence-transformers, torch": lambda: SentenceTransformer(model, device="cpu"),
        "sentence-transformers, ONNX": lambda: SentenceTransformer(model, device="cpu", backend="onnx"),
        "sentence-transformers, OpenVINO": lambda: SentenceTransformer(model, device="cpu", backend="openvino"),
    }
    if has_bf16:
        builders["sentence-transformers, torch bf16"] = lambda: SentenceTransformer(model, device="cpu").bfloat16()
    encoders: dict[str, Encode] = {}
    for name, build in builders.items():
        try:
            encoders[name] = partial(build().encode, batch_size=32, show_progress_bar=False)
        except Exception as error:  # theirs raise Exception itself where a library is absent or does not fit
            print(f"{name}: left out, {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
    return encoders


def encoding(model: str, texts: list[str], *, has_bf16: bool, repeats: int) -> list[dict[str, Any]]:
    """Return a row for each of our precisions and each of their backends."""
    theirs = their_encoders(model, has_bf16=has_bf16)
    plain = own_encoder(model, "fp32")(texts)
    rows = []
    for precision in ("fp32", *(("bf16",) if has_bf16 else ())):
        encode = own_encoder(model, precision)
        runs = {name: partial(_encoded, other, texts) for name, other in theirs.items()}
        measured = compare(
            f"vectors, ours {precision}", partial(_encoded, encode, texts), runs, repeats=repeats, unit="sentences/s"
        )
        for row in measured:
            row["cosine"] = _lowest_cosine(plain, theirs[row["peer"]](texts))
            row["ours_cosine"] = _lowest_cosine(plain, encode(texts))
        rows += measured
    return rows


def own_training(
    model: str, folder: Path, precision: Literal["auto", "fp32", "bf16"], threads: int
) -> Callable[[], float]:
    """Return a pass over the pairs in the program's own loop."""
    saved = open_model(model)
    numerics = resolve_numerics(precision, threads=threads)
    task, tokenizer = EMBEDDING.for_model(EMBED, saved, LENGTH), open_tokenizer(saved)
    module = EMBEDDING.prepare(task, folder, tokenizer, saved.config, LENGTH).build(saved.config)
    load_weights(module, saved)
    plan = Plan(steps=10**6, seed=0, optimizer=OptimizerSettings(learning_rate=RATE, bias_correction=True))

    def run() -> float:
        apply_numerics(numerics)
        bound = EMBEDDING.prepare(task, folder, tokenizer, saved.config, LENGTH)
        loop, batches = Loop(bound.trainable(module), plan, numerics, None), steps_of(bound, BATCH, seed=0)
        for step in range(-(-len(bound.lengths) // BATCH)):
            loop.step(step, batches)
        return float(len(bound.lengths))

    return run


def their_training(model: str, pairs: list[tuple[str, str]], folder: Path, *, bf16: bool) -> Callable[[], float]:
    """Return the same in sentence-transformers' trainer."""
    from accelerate.state import AcceleratorState
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    module = SentenceTransformer(model, device="cpu")
    module.max_seq_length = LENGTH
    data = Dataset.from_dict({"anchor": [pair[0] for pair in pairs], "positive": [pair[1] for pair in pairs]})

    def run() -> float:
        torch.use_deterministic_algorithms(False)  # as it comes
        AcceleratorState._reset_state(reset_partial_state=True)  # one process has one precision otherwise
        settings = SentenceTransformerTrainingArguments(
            output_dir=str(folder),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            bf16=bf16,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        SentenceTransformerTrainer(
            model=module,
            args=settings,
            train_dataset=data,
            loss=MultipleNegativesRankingLoss(module, scale=SCALE),
        ).train()
        return float(len(pairs))

    return run


def training(model: str, pairs: list[tuple[str, str]], *, has_bf16: bool, options: argparse.Namespace) -> list[Any]:
    """Return a row for each of their precisions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = "".join(f"{anchor}\t{positive}\n" for anchor, positive in pairs)
        (folder / "train.tsv").write_text("anchor\tpositive\n" + lines, "utf-8")
        (folder / "dev.tsv").write_text("anchor\tpositive\n" + lines[: lines.index("\n") + 1], "utf-8")
        peers = {
            f"sentence-transformers' trainer, {'bf16' if bf16 else 'fp32'}": their_training(
                model, pairs, folder, bf16=bf16
            )
            for bf16 in ((False, True) if has_bf16 else (False,))
        }
        ours = own_training(model, folder, "auto", options.threads)
        work = f"training on pairs, ours {'bf16' if has_bf16 else 'fp32'}"
        return compare(work, ours, peers, repeats=options.repeats, unit="pairs/s")


def read_pairs(path: Path, most: int) -> list[tuple[str, str]]:
    """Return the first pairs of a table."""
    table = read_table(path)
    columns = [table.column(name) for name in ("anchor", "positive")]
    return [(str(a), str(b)) for a, b in zip(*columns, strict=True)][:most]


def _encoded(encode: Encode, texts: list[str]) -> float:
    encode(texts)
    return float(len(texts))


def _lowest_cosine(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float((np.sum(ours * theirs, axis=1) / lengths).min())


def main() -> None:
    """Measure both and print the table."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--model", required=True)
    options_parser.add_argument("--pairs", type=Path, required=True)
    options_parser.add_argument("--rows", type=int, default=2048)
    options_parser.add_argument("--parts", default="encoding,training")
    options = options_parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    has_bf16 = "encoding" in options.parts and choose("auto", open_model(options.model).config) == "bf16"
    pairs = read_pairs(options.pairs, options.rows)
    rows: list[dict[str, Any]] = []
    if "encoding" in options.parts:
        texts = [text for pair in pairs for text in pair]
        rows += encoding(options.model, texts, has_bf16=has_bf16, repeats=options.repeats)
    if "training" in options.parts:
        trains_in_bf16 = resolve_numerics("auto", threads=options.threads).precision == "bf16"
        rows += training(options.model, pairs, has_bf16=trains_in_bf16, options=options)
    finish(options, rows, packages=["sentence-transformers", "transformers", "onnxruntime", "openvino"])


if __name__ == "__main__":
    main()

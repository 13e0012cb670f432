"""The golden run: our own text → vocabulary → shards → fifty steps of pre-training, and the file of what came out.

    python -m tests.golden.renew

from the root of the project writes tests/golden/run.json anew. Do so only for a change that is meant to change these
numbers, and say in its message why they changed: `git diff` shows which did.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from bertwright.corpus.build import build_corpus
from bertwright.corpus.manifest import read_manifest
from bertwright.files import atomic_file
from bertwright.model.encoder import init_weights
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import prepare_pretraining
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from bertwright.training.loop import train
from bertwright.training.run_folder import start_run
from bertwright.training.settings import OptimizerSettings
from tests.support.folders import read_jsonl
from tests.support.texts import OWN_TEXT

GOLDEN = Path(__file__).with_name("run.json")
STEPS = 50
RENEW = (
    "is not what tests/golden/run.json holds; after a change that is meant to change it: python -m tests.golden.renew"
)


def settings(dropout: float) -> PretrainSettings:
    """Two lengths, two micro-batches a step, a rate that rises and falls; 50 steps of some seconds in all."""
    return PretrainSettings(
        size="tiny",
        phases=(Phase(length=24, share=0.8), Phase(length=48, share=0.2)),
        batch_size=8,
        micro_tokens=120,
        steps=STEPS,
        seed=11,
        optimizer=OptimizerSettings(learning_rate=1e-3, warmup=0.1),
        dropout=dropout,
        log_every=1,
        precision="fp32",
        threads=torch.get_num_threads(),  # as the caller has set them: they must not matter
    )


def make_corpus(folder: Path) -> Path:
    """The corpus of our own text, with a vocabulary learned from it."""
    texts = (text for document in read_documents(OWN_TEXT, TextSettings()) for text in document.paragraphs)
    train_wordpiece(texts, vocab_size=700).save(folder / "tokenizer")
    corpus = folder / "corpus"
    build_corpus([OWN_TEXT], tokenizer=folder / "tokenizer", out=corpus, workers=1)
    return corpus


def bytes_made(corpus: Path) -> dict[str, Any]:
    """The vocabulary's hash, and the sha256 of each shard as it lies on the disk."""
    names = [shard.name for shard in read_manifest(corpus).shards]
    shards = {name: hashlib.sha256((corpus / name).read_bytes()).hexdigest() for name in names}
    return {"vocabulary": Tokenizer.load(corpus / "tokenizer").hash, "shards": shards}


def float64_losses(corpus: Path, out: Path) -> list[list[float]]:
    """[masked LM, next sentence] of each step, in float64 without dropout.

    The weights are drawn in float64 too: drawn in float32, their last bits are not the same on every processor.
    """
    chosen = settings(dropout=0.0)
    trained, numerics = prepare_pretraining(chosen, corpus=corpus, out=out, held_out=None, init_from=None)
    init_weights(trained.model.double(), chosen.initializer_range, torch.Generator().manual_seed(chosen.seed))
    run = start_run(out, kind="golden", settings=chosen, data={}, resume=False)
    task, plan = trained.model.trainable(), trained.plan(STEPS)
    train(task, trained.batches(STEPS), plan=plan, numerics=numerics, run=run, quiet=True)
    return [[line["mlm"], line["nsp"]] for line in run.metrics()]


def fp32_losses(corpus: Path, out: Path) -> list[list[float]]:
    """The same of a whole run as `bertwright pretrain` makes it, with dropout 0.1."""
    pretrain(settings(dropout=0.1), corpus=corpus, out=out)
    lines = read_jsonl(out / "metrics.jsonl")
    return [[round(line["mlm"], 6), round(line["nsp"], 6)] for line in lines]


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder))
        digests = bytes_made(corpus)
        digests["float64"] = float64_losses(corpus, Path(folder) / "float64")
        digests["fp32"] = fp32_losses(corpus, Path(folder) / "fp32")
    with atomic_file(GOLDEN) as stream:
        stream.write(as_text(digests).encode())


def as_text(measured: dict[str, Any]) -> str:
    """JSON with a line for each step, so that a difference can be read."""
    text = json.dumps(measured, indent=1)
    for step in (*measured["float64"], *measured["fp32"]):
        text = text.replace(json.dumps(step, indent=1).replace("\n", "\n  "), json.dumps(step))
    return text + "\n"


if __name__ == "__main__":
    main()

"""How many sentences a second a classifier answers: PyTorch, ONNX Runtime, ONNX Runtime with int8 weights.

python -m benchmarks.onnx --tokenizer DIR [--size base] [--threads 2] [--repeats 7] [--json]
python -m benchmarks.onnx --model MODEL [--threads 2] [--repeats 7] [--json]

The first form makes a model of random weights, which is as fast as any. The three take turns, so that what else the
machine does meets all of them; figures are medians, and the spread from the slowest to the fastest turn.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from bertwright.interop.onnx import export_onnx
from bertwright.interop.onnx_compare import TEXTS, feed
from bertwright.model.architectures import Bert, open_architecture
from bertwright.model.encoder import init_weights
from bertwright.model.folder import open_model, save_model
from bertwright.model.sizes import size_config
from bertwright.prediction.classifier import Rows, padded
from bertwright.prediction.work import open_tokenizer
from bertwright.tasks.classify import encode
from bertwright.text.tokenizer import Tokenizer
from bertwright.training.machine import keep_memory

SECONDS = 0.5
"""A turn is as many passes over the rows as this takes, at least one."""


def random_model(folder: Path, size: str, tokenizer: Path) -> Path:
    """A model folder of random weights with two labels."""
    config = size_config(size, Tokenizer.load(tokenizer).vocab_size)
    model = Bert(config, "BertForSequenceClassification")
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    labels = ("no", "yes")
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture=model.architecture, labels=labels)
    return folder


def work(model: Bert, tokenizer: Tokenizer) -> dict[str, list[Rows]]:
    """The built-in sentences one by one and eight by eight with padding, and eight rows of 128 tokens."""
    texts = encode(tokenizer, TEXTS, max_length=128)
    longs = encode(tokenizer, [" ".join(TEXTS[i:] + TEXTS[:i]) for i in range(8)], max_length=128)
    pad_id = model.encoder.config.pad_id
    return {
        "sentences, 1 at a time": [padded(texts, [row], pad_id=pad_id) for row in range(len(texts))],
        "sentences, 8 at a time": [padded(texts, range(at, at + 8), pad_id=pad_id) for at in range(0, len(texts), 8)],
        "128 tokens, 8 at a time": [padded(longs, range(8), pad_id=pad_id)],
    }


def runtimes(model: Bert, exported: Path, threads: int) -> dict[str, Callable[[Rows], Any]]:
    """Each as a function of a batch; the first two give the same numbers."""

    def pytorch(rows: Rows) -> Any:
        with torch.inference_mode():
            return model(rows.ids, rows.segments, rows.mask)["logits"].numpy()

    def onnx(name: str) -> Callable[[Rows], Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(exported / name, options, providers=["CPUExecutionProvider"])
        return lambda rows: session.run(None, feed(rows))[0]

    return {"pytorch": pytorch, "onnx": onnx("model.onnx"), "onnx_int8": onnx("model_quantized.onnx")}


def turn(answer: Callable[[Rows], Any], batches: list[Rows]) -> float:
    """Rows a second."""
    time.sleep(0.05)  # the threads of the one before come to rest
    done, begin = 0, time.perf_counter()
    while not done or time.perf_counter() - begin < SECONDS:
        for rows in batches:
            answer(rows)
            done += len(rows.ids)
    return done / (time.perf_counter() - begin)


def measure(model: Bert, tokenizer: Tokenizer, exported: Path, *, threads: int, repeats: int) -> list[dict[str, Any]]:
    answers = runtimes(model, exported, threads)
    rows = []
    for name, batches in work(model, tokenizer).items():
        for batch in batches:  # also what warms them up
            np.testing.assert_allclose(answers["onnx"](batch), answers["pytorch"](batch), atol=1e-4)
            answers["onnx_int8"](batch)
        rates: dict[str, list[float]] = {kind: [] for kind in answers}
        for _ in range(repeats):
            for kind, answer in answers.items():
                rates[kind].append(turn(answer, batches))
        row: dict[str, Any] = {"work": name}
        for kind, found in rates.items():
            row |= {kind: round(statistics.median(found), 1), f"{kind}_spread": round(max(found) - min(found), 1)}
        rows.append(row)
    return rows


def main() -> None:
    """Export, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--size", default="base")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if (given.model is None) == (given.tokenizer is None):
        parser.error("give --model, or --tokenizer for random weights of --size")
    keep_memory()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as place:
        source = given.model or random_model(Path(place) / "model", given.size, given.tokenizer)
        saved = open_model(str(source))
        found = export_onnx(str(source), Path(place) / "onnx", int8=True, least_agreement=0.0)
        print(found["text"], file=sys.stderr)
        threads, repeats = given.threads, given.repeats
        rows = measure(
            open_architecture(saved), open_tokenizer(saved), Path(place) / "onnx", threads=threads, repeats=repeats
        )
    for row in rows:
        rates = (
            f"{kind} {row[kind]:,} (spread {row[f'{kind}_spread']:,})" for kind in ("pytorch", "onnx", "onnx_int8")
        )
        print(f"{row['work']:26}{'   '.join(rates)}   rows/s", file=sys.stderr)
    if given.json:
        print(json.dumps({"rows": rows, "threads": threads, "files": found["files"], "versions": found["versions"]}))


if __name__ == "__main__":
    main()

"""Seconds until the first answer: help, the first step, and a compiled step with and without its cache.

python -m benchmarks.startup [--repeats 4] [--no-compile] [--json]

Whole processes, from their start to their end, which take turns; the first turn fills the file cache. The step is one
of `tiny`, 32 rows of 128 tokens of the documentation on this machine; transformers gets random ids and writes nothing,
ours opens a corpus, plans an epoch, makes rows, trains and writes a model folder.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pretraining import documentation_corpus
from benchmarks.side_by_side import finish, parser

THEIRS = """
import torch, transformers
model = transformers.BertForPreTraining(transformers.BertConfig(
    hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512))
ids = torch.randint(5, 30_522, (32, 128))
loss = model(input_ids=ids, labels=ids, next_sentence_label=torch.zeros(32, dtype=torch.int64)).loss
optimizer = torch.optim.AdamW(model.parameters())
loss.backward()
optimizer.step()
"""


def seconds(command: Sequence[str], **environment: str) -> float:
    """Return the seconds of a command."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    return time.perf_counter() - begin


def row(work: str, peer: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Times, where others of the table are rates: a ratio above 1 means that ours is faster, as everywhere."""
    ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    medians = {"ours": statistics.median(ours), "theirs": statistics.median(theirs), "ratio": statistics.median(ratios)}
    return {"work": work, "peer": peer, "unit": "seconds", **medians, "spread": max(ratios) - min(ratios)}


def main() -> None:
    """Measure and print."""
    given_parser = parser(__doc__, threads=False)
    given_parser.add_argument("--no-compile", action="store_true", help="leave the compiled step out: it takes minutes")
    arguments = given_parser.parse_args()
    program = [sys.executable, "-m", "bertwright"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        corpus = documentation_corpus(path)

        def step(number: int, *options: str) -> list[str]:
            out = str(path / f"run-{number}")
            return [*program, "pretrain", "--corpus", str(corpus), "--steps", "1", "--lengths", "128",
                    "--batch-size", "32", "--out", out, *options]  # fmt: skip

        def beside(work: str, peer: str, ours: Sequence[Sequence[str]], theirs: str) -> dict[str, Any]:
            turns = [(seconds(command), seconds([sys.executable, "-c", theirs])) for command in ours]
            return row(work, peer, *zip(*turns[1:], strict=True))

        times = range(arguments.repeats + 1)
        package = [sys.executable, "-c", "import bertwright"]
        rows = [
            beside("--help", "import transformers", [[*program, "--help"] for _ in times], "import transformers"),
            beside("import bertwright", "import transformers", [package for _ in times], "import transformers"),
            beside("one step of tiny", "transformers", [step(number) for number in times], THEIRS),
        ]
        if not arguments.no_compile:
            compiled = [step(100 + number, "--compile", "on") for number in range(2)]
            first, again = (seconds(command, TORCHINDUCTOR_CACHE_DIR=str(path / "inductor")) for command in compiled)
            rows.append(row("one compiled step, from the cache", "the first time", [again], [first]))
    finish(arguments, rows, packages=["transformers"])


if __name__ == "__main__":
    main()

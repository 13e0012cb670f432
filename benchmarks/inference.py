"""Answering beside other programs with the same weights: sentences a second, and how long a single one takes.

python -m benchmarks.inference [--system bert] [--size base] [--sentences 128] [--parts throughput,latency]
    [--peers CTranslate2,OpenVINO] [--repeats 4] [--json]

A classifier of random weights, which is as fast as any, and random sentences of 25 tokens on average, sorted by length,
in batches of 32. bf16 is measured where this processor multiplies it faster. `cosine` is the mean over the sentences of
the cosine of the logits (64 of them) with those of our plain fp32 model, `ours_cosine` that of our own row. Peers that
are not installed are named and left out: pip install 'bertwright[bench]'. ModernBERT has two peers: transformers, and
the same compiled by torch.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inference_peers import Answer, Batch, Numbers, peers
from benchmarks.side_by_side import REST, compare, finish, parser, roof
from bertwright.model.bert import Bert
from bertwright.model.config import EncoderConfig
from bertwright.model.cpu.packing import packed_copy
from bertwright.model.encoder import init_weights
from bertwright.model.system import system_config
from bertwright.tasks.classification.model import Classifier, TextBatch
from bertwright.tasks.inference import choose, in_bf16, multiplies_bytes
from bertwright.training.hardware import prepare_processor

BATCH, MEAN, SPREAD, LABELS = 32, 25, 0.55, 64
LATENCIES = (8, 32, 128, 512)
LEAST_COSINE = 0.99
"""A program with a lower one computes something else, and its row has a note."""
PEERS_OF = {"bert": "", "modernbert": "transformers,torch.compile"}
"""System → first words of the names of its peers."""
PACKAGES = ("transformers", "onnxruntime", "openvino", "nncf", "zentorch", "ctranslate2")


def sentences(count: int, vocab_size: int, *, seed: int) -> list[Batch]:
    """Random ids, lengths as sentences have them (log-normal), sorted, padded to the longest of a batch."""
    random = np.random.default_rng(seed)
    lengths = np.sort(random.lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, count).round().clip(4, 128).astype(int))
    return [
        batch(lengths[begin : begin + BATCH], random.integers(0, vocab_size, (BATCH, 128)))
        for begin in range(0, count, BATCH)
    ]


def batch(lengths: Numbers, ids: Numbers) -> Batch:
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    return ids[: len(lengths), : lengths.max()] * mask, np.zeros_like(mask), mask


def ours(model: Bert, *, bf16: bool, int8: bool) -> dict[str, Answer]:
    """By precision, as `predict --precision` runs it; "plain" is the model as it is trained."""
    plain = Classifier(model.encoder.config, LABELS).eval()
    plain.load_state_dict(model.state_dict())
    answers = {"plain": plain, "fp32": packed_copy(plain, "fp32")}
    if int8:
        answers["int8"] = packed_copy(plain, "int8")
    if bf16:
        half = Classifier(model.encoder.config, LABELS).eval()
        half.load_state_dict(model.state_dict())
        answers["bf16"] = in_bf16(half, half.encoder.config)
    return {name: answering(module) for name, module in answers.items()}


def answering(module: Classifier) -> Answer:
    def answer(ids: Numbers, segments: Numbers, mask: Numbers) -> Numbers:
        rows = TextBatch(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask) != 0)
        with torch.inference_mode():
            logits: Numbers = module(rows).float().numpy()
            return logits

    return answer


def over(answer: Answer, batches: Sequence[Batch]) -> float:
    for rows in batches:
        answer(*rows)
    return float(sum(len(ids) for ids, _, _ in batches))


def cosine(answer: Answer, plain: Answer, batches: Sequence[Batch]) -> float:
    """Mean over all rows."""
    mine, exact = (np.concatenate([run(*rows) for rows in batches]) for run in (answer, plain))
    lengths = np.linalg.norm(mine, axis=1) * np.linalg.norm(exact, axis=1)
    return float((np.sum(mine * exact, axis=1) / lengths).mean())


def throughput(
    mine: Mapping[str, Answer], theirs: Mapping[str, Answer], batches: list[Batch], *, size: str, repeats: int
) -> list[dict[str, Any]]:
    rows = []
    for kind, own_answer in mine.items():
        if kind == "plain":
            continue
        rivals = {name: answer for name, answer in theirs.items() if kind in name}
        if kind == "fp32" or not rivals:
            rivals["bertwright, as it is trained"] = mine["plain"]
        runs = {name: partial(over, answer, batches) for name, answer in rivals.items()}
        work = f"inference {size} {kind}"
        measured = compare(work, partial(over, own_answer, batches), runs, repeats=repeats, unit="sentences/s")
        agrees = cosine(own_answer, mine["plain"], batches)
        for row in measured:
            row |= {"ours_cosine": agrees, "cosine": cosine(rivals[row["peer"]], mine["plain"], batches)}
            if not (agrees >= LEAST_COSINE and row["cosine"] >= LEAST_COSINE):  # also for a NaN
                row["note"] = f"not the same work: cosines {agrees:.4f} and {row['cosine']:.4f} with plain fp32"
        rows += measured
    return rows


def latency(
    mine: Mapping[str, Answer], theirs: Mapping[str, Answer], vocab_size: int, *, repeats: int
) -> list[dict[str, Any]]:
    """A batch of one; contenders take turns of `repeats` calls, four times."""
    rows = []
    random = np.random.default_rng(7)
    for length in LATENCIES:
        inputs = batch(np.array([length]), random.integers(0, vocab_size, (1, length)))
        contenders = {f"bertwright {kind}": answer for kind, answer in mine.items() if kind != "plain"} | dict(theirs)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(5):
            for name, answer in contenders.items():
                time.sleep(REST)
                answer(*inputs)
                for _ in range(repeats if turn else 0):  # the first turn warms up
                    begin = time.perf_counter()
                    answer(*inputs)
                    times[name].append(time.perf_counter() - begin)
        for kind in (kind for kind in mine if kind != "plain"):
            seconds = times[f"bertwright {kind}"]
            rows += [
                late(f"latency {length} tokens {kind}", name, seconds, times[name]) for name in theirs if kind in name
            ]
    return rows


def late(work: str, peer: str, ours: list[float], other: list[float]) -> dict[str, Any]:
    """A row in answers a second at the median; the spread is that of the ratios of single calls."""
    ratios = sorted(theirs / mine for mine, theirs in zip(ours, other, strict=True))
    (p50, p90), (their50, their90) = (
        (statistics.median(times) * 1e3, float(np.quantile(times, 0.9)) * 1e3) for times in (ours, other)
    )
    return {
        "work": work,
        "peer": peer,
        "unit": "answers/s",
        "ours": 1e3 / p50,
        "theirs": 1e3 / their50,
        "ratio": their50 / p50,
        "spread": ratios[-1] - ratios[0],
        "ours_ms": {"p50": p50, "p90": p90},
        "theirs_ms": {"p50": their50, "p90": their90},
    }


def products(config: EncoderConfig, tokens: int) -> list[tuple[int, int, int]]:
    width, inner = config.hidden, config.intermediate
    expanded = 2 * inner if config.is_gated else inner
    return [(tokens, width, 3 * width), (tokens, width, width), (tokens, width, expanded), (tokens, inner, width)]


def main() -> None:
    """Build, measure, print."""
    options = parser(__doc__)
    options.add_argument("--system", choices=PEERS_OF, default="bert")
    options.add_argument("--size", default="base")
    options.add_argument("--sentences", type=int, default=128)
    options.add_argument("--parts", default="throughput,latency")
    options.add_argument("--peers", help="first words of their names, with commas between; default: all of the system")
    arguments = options.parse_args()
    of_system = PEERS_OF[arguments.system]
    chosen = tuple(words.strip() for words in (arguments.peers or of_system).split(","))
    if wrong := [words for words in chosen if not words.startswith(tuple(of_system.split(",")))]:
        raise SystemExit(f"--peers {', '.join(wrong)}: with --system {arguments.system} expected {of_system}")
    prepare_processor()
    torch.set_num_threads(arguments.threads)
    config = system_config(arguments.system, arguments.size, 30_522)
    assert isinstance(config, EncoderConfig)
    model = Bert(config, "BertForSequenceClassification", num_labels=LABELS)
    bf16, int8 = choose("auto", config) == "bf16", multiplies_bytes()
    if not bf16:
        print("bf16: not faster than fp32 on this processor, left out", file=sys.stderr)
    if not int8:
        print("int8: this processor has no VNNI, left out", file=sys.stderr)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    model.eval()
    batches = sentences(arguments.sentences, config.vocab_size, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        calibration = sentences(2 * BATCH, config.vocab_size, seed=1)
        theirs = peers(
            model, calibration, folder=Path(folder), threads=arguments.threads, bf16=bf16, int8=int8, chosen=chosen
        )
        mine = ours(model, bf16=bf16, int8=int8)
        rows: list[dict[str, Any]] = []
        if "throughput" in arguments.parts:
            rows += throughput(
                mine, theirs, batches, size=f"{arguments.system} {arguments.size}", repeats=arguments.repeats
            )
        if "latency" in arguments.parts:
            rows += latency(mine, theirs, config.vocab_size, repeats=arguments.repeats)
    best = torch.bfloat16 if bf16 else torch.float32
    finish(
        arguments,
        rows,
        packages=PACKAGES,
        roof=roof(products(config, BATCH * MEAN), best),
        roof_of="bf16" if bf16 else "fp32",
        threads=arguments.threads,
        sentences_mean=float(sum(mask.sum() for *_, mask in batches)) / arguments.sentences,
    )


if __name__ == "__main__":
    main()

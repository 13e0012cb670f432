"""Questions, choices and tags: majority, random weights and a pre-trained model side by side, several seeds.

python -m benchmarks.studies.tasks --model RUN --data FOLDER --out FOLDER [--rows wnut17,swag,…] [--seeds 3] [--json]

FOLDER holds squad/, swag/ and ner/wnut17/, ner/wikigold/. The rows `wnut17 features WAY` are the paper's table 7. Given
again, the command goes on where it was stopped.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import Way
from bertwright.model.folder import open_model
from bertwright.pretraining.init_from import size_name
from bertwright.tasks.multiple_choice.spec import ChoiceTask
from bertwright.tasks.multiple_choice.task import CHOICE
from bertwright.tasks.question_answering.score import score_answers, squad_metrics
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.task import SPAN
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.tasks.tagging.spec import TaggingTask, score_tags
from bertwright.tasks.tagging.task import TAGGING


@dataclass(frozen=True)
class Row:
    """A task on a folder, how long it is trained, and a file that no epoch is chosen on."""

    task: str
    folder: str
    epochs: int
    learning_rate: float
    max_length: int = 128
    features: Way | None = None
    test: str | None = None


WNUT17 = Row("ner", "ner/wnut17", epochs=10, learning_rate=1e-3, test="test.conll")
ROWS = {
    "swag": Row("swag", "swag", epochs=4, learning_rate=3e-4),
    "wnut17": WNUT17,
    "wikigold": Row("ner", "ner/wikigold", epochs=10, learning_rate=1e-3),
    "squad1": Row("squad1", "squad", epochs=2, learning_rate=1e-3, max_length=384),
    "squad2": Row("squad2", "squad", epochs=2, learning_rate=1e-3, max_length=384),
    **{f"wnut17 features {way}": replace(WNUT17, features=way, epochs=3) for way in get_args(Way)},
}


def majority(task: TaskSpec, data: Path) -> dict[str, float]:
    """Return the validation metrics of the most frequent answer, choice or tag of the training data."""
    if isinstance(task, SpanTask):
        read = SPAN.read(task, data)
        train, dev = read.train, read.validation["dev"]
        texts = Counter(question.answers[0][0] if question.answers else "" for question in train.items)
        return squad_metrics(score_answers(dev, [texts.most_common(1)[0][0]] * len(dev)), null=False)
    if isinstance(task, ChoiceTask):
        read = CHOICE.read(task, data)
        rows, measured = read.train, read.validation["dev"]
        assert rows.targets is not None
        assert measured.targets is not None
        return {"accuracy": float(np.mean(measured.targets == np.bincount(rows.targets).argmax()))}
    assert isinstance(task, TaggingTask)
    read = TAGGING.read(task, data)
    learned, sentences, questions = read.task, read.train, read.validation["dev"]
    assert sentences.tags is not None
    commonest = Counter(tag for tags in sentences.tags for tag in tags).most_common(1)[0][0]
    return score_tags(learned, [[commonest] * len(words) for words in questions.words], questions)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row of the table: every metric's mean and standard deviation over the seeds."""
    row, task = ROWS[name], get_spec(ROWS[name].task)
    data, saved = options.data / row.folder, open_model(str(options.model))
    settings = FinetuneSettings(
        epochs=options.epochs or row.epochs,
        batch_size=32,
        seeds=options.seeds,
        learning_rate=row.learning_rate,
        max_length=row.max_length,
        features=row.features,
        threads=options.threads,
    )
    row_values: dict[str, Any] = {"work": name, "epochs": settings.epochs, "learning_rate": row.learning_rate}
    row_values["majority"] = {
        key: value for key, value in majority(task, data).items() if key in ("f1", "em", "accuracy")
    }
    for column, source in (("random", f"random:{size_name(saved.config)}"), ("pretrained", str(options.model))):
        if column not in options.columns.split(","):
            continue
        start = time.perf_counter()
        out = options.out / f"{name.replace(' ', '-')}-{column}"
        ended = finetune(settings, task, model=source, data=data, out=out, tokenizer=saved.tokenizer, resume=True)
        minutes = (time.perf_counter() - start) / 60
        scores = [seed["scores"] for seed in ended["seeds"]]
        if row.test:
            tests = [evaluate_task(task, model=seed["model"], data=data / row.test) for seed in ended["seeds"]]
            scores = [{**dev, "test f1": test["f1"]} for dev, test in zip(scores, tests, strict=True)]
        row_values[column] = {
            key: {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}
            for key in scores[0]
            if len(values := [seed[key] for seed in scores if key in seed]) == len(scores)
        }
        row_values |= {f"{column}_minutes": minutes, f"{column}_collapsed": ended["collapsed"]}
    return row_values


def shown(row: dict[str, Any]) -> str:
    """A row for people."""
    parts = [row["work"]]
    for key in ("f1", "em", "accuracy", "test f1"):
        columns = [row[name][key] for name in ("random", "pretrained") if key in row.get(name, {})]
        if columns:
            figures = " | ".join(f"{column['mean']:.4f} ± {column['sd']:.4f}" for column in columns)
            first = row["majority"].get(key)
            parts.append(f"{key} {'' if first is None else f'{first:.4f}'} | {figures}")
    return "\n    ".join(parts)


def main() -> None:
    """Measure the chosen rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--columns", default="random,pretrained", help="of the two, which to train")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="for all rows, instead of each one's own")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.rows.split(","):
        rows.append(measure(name, options))
        print(shown(rows[-1]), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()

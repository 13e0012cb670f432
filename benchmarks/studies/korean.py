"""Korean in numbers: vocabularies side by side on held-out text and reviews, and the reviews' task beside baselines.

python -m benchmarks.studies.korean --text heldout.txt --data NSMC --tokenizers tok multilingual uncased
python -m benchmarks.studies.korean --data NSMC --model RUN --out FOLDER [--seeds 1] [--json]

NSMC is a folder with train.tsv and dev.tsv (columns id, document, label). The first form counts pieces, the second
fine-tunes RUN and random weights of its size; either takes --json.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.pretraining.init_from import size_name
from bertwright.tasks.baselines import bag_of_words_baseline, majority_baseline
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_columns
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_all
from bertwright.text.wordpiece import Tokenizer


def task() -> ClassificationTask:
    """Positive or negative, from the column of the review."""
    return with_columns(get_task("classify"), text=("document",), label="label")


def vocabulary_rows(tokenizers: list[Path], texts: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """For each text and tokenizer: pieces per word (between spaces), and the shares of [UNK] and of words with one."""
    for name, lines in texts.items():
        words = [word for line in lines for word in line.split()]
        for folder in tokenizers:
            tokenizer = Tokenizer.load(folder)
            encoded = tokenizer.ids(words)
            pieces = sum(map(len, encoded))
            unknown = [ids.count(tokenizer.unk_id) for ids in encoded]
            yield {
                "work": "vocabulary",
                "text": name,
                "words": len(words),
                "tokenizer": folder.name,
                "vocab_size": tokenizer.vocab_size,
                "pieces_per_word": pieces / len(words),
                "unk_pieces": sum(unknown) / pieces,
                "unk_words": sum(map(bool, unknown)) / len(words),
            }


def task_row(options: argparse.Namespace) -> dict[str, Any]:
    """Majority, bag of words, random weights and the model, on dev."""
    read = CLASSIFICATION.read(task(), options.data)
    learned, train, dev = read.task, read.train, read.validation
    first = next(iter(dev.values()))
    row: dict[str, Any] = {"work": "fine-tuning", "train": len(train), "dev": len(first), "seeds": options.seeds}
    row["majority"] = majority_baseline(learned, train, first)["accuracy"]
    row["bag_of_words"] = bag_of_words_baseline(learned, train, first)["accuracy"]
    saved = open_model(str(options.model))
    settings = FinetuneSettings(epochs=options.epochs, batch_size=32, seeds=options.seeds, threads=options.threads)
    for column, source in (("pretrained", str(options.model)), ("random", f"random:{size_name(saved.config)}")):
        out = options.out / column
        result = finetune(
            settings, task(), model=source, data=options.data, out=out, tokenizer=saved.tokenizer, resume=True
        )
        row |= {column: statistics.fmean(result["scores"]), f"{column}_sd": result["sd"]}
    return row


def main() -> None:
    """Measure what the arguments name and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--tokenizers", type=Path, nargs="*", default=[])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, default=Path("korean"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.tokenizers:
        texts = {"reviews": list(next(iter(CLASSIFICATION.read(task(), options.data).validation.values())).texts_a)}
        if options.text:
            documents = read_all(find_inputs(options.text), TextSettings())
            texts["text"] = [line for document in documents for line in document.paragraphs]
        rows += vocabulary_rows(options.tokenizers, texts)
    if options.model:
        rows.append(task_row(options))
    for row in rows:
        shown = (f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print(" · ".join(shown), file=sys.stderr)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()

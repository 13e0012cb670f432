"""Eight records of every kind of task, in files of its layout, to which a small model is overfitted.

A kind of task is added here by one function that writes its example, named in EXAMPLES.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.multiple_choice.spec import ChoiceTask
from bertwright.tasks.question_answering.score import normalised
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.spec import TaggingTask
from tests.support import eight_sentences
from tests.support.texts import PLACES


@dataclass(frozen=True)
class Example:
    """Eight records of a task, in files of its layout.

    data        a folder with train and dev files, both of the eight
    input_file  the file that `predict` reads; `output` is the name of the file that it writes
    answers     written file → an answer for each record
    right       the right answers
    broken      a folder like `data` with one wrong record; `trouble` is a pattern of the message about it
    inputs      the records as values for a loaded model; `answers_of` makes an answer of each of its results
    perfect     the primary metric where all answers are right
    predicts    False for vectors: nothing is predicted, and no layer is new
    """

    data: Path
    input_file: Path
    output: str
    answers: Callable[[Path], list[Any]]
    right: list[Any]
    broken: Path
    trouble: str
    inputs: list[Any]
    answers_of: Callable[[list[Any]], list[Any]]
    perfect: float = 1.0
    predicts: bool = True


def example_data(task: TaskSpec, folder: Path) -> Example:
    """The example of a task's kind."""
    (kind,) = [kind for kind in EXAMPLES if isinstance(task, kind)]
    return EXAMPLES[kind](task, folder)


def text_example(task: Any, folder: Path) -> Example:
    """Return texts or pairs with a label or a number, as tab-separated tables."""
    labels = list(task.labels) or ["no", "yes"]
    right = (
        [(row - 3.5) / 4 for row in range(8)]
        if task.kind == "regression"
        else [labels[row % len(labels)] for row in range(8)]
    )
    rows = [
        {**{column: f"The {PLACES[row]} of {column}" for column in task.text}, task.label: str(right[row])}
        for row in range(8)
    ]
    names = task.columns or tuple(rows[0])
    header = [] if task.columns else ["\t".join(names)]

    def write(folder: Path, changed: dict[str, str]) -> Path:
        folder.mkdir(parents=True)
        for stem in ("train", *task.dev):
            table = [*rows[:7], {**rows[7], **changed}] if stem == "train" else rows
            lines = ["\t".join(row.get(name, "-") for name in names) for row in table]
            (folder / f"{stem}.tsv").write_text("\n".join([*header, *lines]) + "\n", "utf-8")
        return folder

    def answers(path: Path) -> list[Any]:
        lines = path.read_text("utf-8").splitlines()[len(header) :]
        if task.kind == "regression":
            return np.argsort([float(line.split("\t")[-1]) for line in lines]).tolist()
        return [line.split("\t")[len(names)] for line in lines]

    def answers_of(results: list[Any]) -> list[Any]:
        if task.kind == "regression":
            return np.argsort([result.score for result in results]).tolist()
        return [result.label if task.kind == "classification" else "|".join(result.labels) for result in results]

    texts = [tuple(row[column] for column in task.text) for row in rows]
    data = write(folder / "data", {})
    if not task.labels and task.kind == "classification":  # every label that is text is one: leave it out
        broken, said = write(folder / "broken", {task.label: ""}), "got ''"
    elif task.kind == "multilabel":  # none at all is allowed, one twice is not
        broken, said = write(folder / "broken", {task.label: "yes|yes"}), "has the label 'yes' twice"
    else:
        broken, said = write(folder / "broken", {task.label: "what"}), "what"
    return Example(
        data=data,
        input_file=data / f"{task.dev[0]}.tsv",
        output="answers.tsv",
        answers=answers,
        right=list(range(8)) if task.kind == "regression" else right,
        broken=broken,
        trouble=rf"train\.tsv:{8 + len(header)}: .*{said}",
        inputs=[text[0] if len(task.text) == 1 else text for text in texts],
        answers_of=answers_of,
    )


def choice_example(task: Any, folder: Path) -> Example:
    """A context and four endings, of which one always goes on rightly, as SWAG's table."""
    endings = ("asks the ferryman", "eats a stone", "paints the moon", "sells the river")
    right = [(3 * row) % 4 for row in range(8)]
    rows = [
        {
            task.context: f"Someone waits at the {PLACES[row]}.",
            task.begin: "She",
            **{f"{task.ending}{k}": endings[(k - right[row]) % 4] for k in range(4)},
            task.label: right[row],
        }
        for row in range(8)
    ]

    def write(folder: Path, changed: dict[str, Any]) -> Path:
        folder.mkdir(parents=True)
        for name, table in (("train.csv", [*rows[:7], {**rows[7], **changed}]), ("dev.csv", rows)):
            with (folder / name).open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[0]))
                writer.writeheader()
                writer.writerows(table)
        return folder

    def answers(path: Path) -> list[Any]:
        with path.open(encoding="utf-8", newline="") as stream:
            return [int(row["predicted_label"]) for row in csv.DictReader(stream)]

    data = write(folder / "data", {})
    broken = write(folder / "broken", {task.label: 4})
    return Example(
        data=data,
        input_file=data / "dev.csv",
        output="answers.csv",
        answers=answers,
        right=right,
        broken=broken,
        trouble=r"train\.csv:9: .*0 to 3",
        inputs=[(row[task.context], [f"She {row[f'{task.ending}{k}']}" for k in range(4)]) for row in rows],
        answers_of=lambda results: [result.index for result in results],
    )


def span_example(task: Any, folder: Path) -> Example:
    """A question and a passage that holds the answer, or, in 2.0, sometimes does not."""
    unanswered = (2, 5) if task.null else ()
    right = ["" if row in unanswered else f"the {noun}" for row, noun in enumerate(PLACES)]

    def write(folder: Path, start: int) -> Path:
        folder.mkdir(parents=True)
        for name in ("train.json", "dev.json"):
            articles = []
            for row, answer in enumerate(right):
                context = f"In the evening they all met near {answer or 'something'}, as they had said."
                first = start if (row, name) == (7, "train.json") else context.find(answer)
                answers_of = [{"text": answer, "answer_start": first}] if answer else []
                entry = {"id": f"q{row}", "question": "Where did they meet?", "answers": answers_of}
                entry |= {"is_impossible": not answer} if task.null else {}
                articles.append({"title": "t", "paragraphs": [{"context": context, "qas": [entry]}]})
            (folder / name).write_text(json.dumps({"version": task.version, "data": articles}), "utf-8")
        return folder

    def answers(path: Path) -> list[Any]:
        texts = json.loads((path / "predictions.json").read_text("utf-8"))
        return [normalised(texts[f"q{row}"]) for row in range(8)]  # as they are compared

    plain = [normalised(answer) for answer in right]
    data, broken = write(folder / "data", 33), write(folder / "broken", 2)
    trouble = r"train\.json: question q7: expected .* at character 2 of"
    articles = json.loads((data / "dev.json").read_text("utf-8"))["data"]
    return Example(
        data=data,
        input_file=data / "dev.json",
        output="answers",
        answers=answers,
        right=plain,
        broken=broken,
        trouble=trouble,
        inputs=[("Where did they meet?", article["paragraphs"][0]["context"]) for article in articles],
        answers_of=lambda results: [normalised(result.text) for result in results],
        perfect=100.0,
    )


def vector_example(task: Any, folder: Path) -> Example:
    """Return pairs of places that have no word in common, and find each second text by its cosine with the first."""
    rows = [(f"Someone waits at the {PLACES[row]}.", f"They paint the {PLACES[(3 * row + 1) % 8]}") for row in range(8)]

    def write(folder: Path, last: tuple[str, str]) -> Path:
        folder.mkdir(parents=True)
        for stem, table in (("train", [*rows[:7], last]), ("dev", rows)):
            lines = ["anchor\tpositive", *map("\t".join, table)]
            (folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
        return folder

    def nearest(vectors: list[Any]) -> list[Any]:
        units = np.array([vector / np.linalg.norm(vector) for vector in vectors])
        return np.argmax(units[:8] @ units[8:].T, axis=1).tolist()

    data = write(folder / "data", rows[7])
    return Example(
        data=data,
        input_file=data / "dev.tsv",
        output="answers.tsv",
        answers=lambda path: [],
        right=list(range(8)),
        broken=write(folder / "broken", (rows[7][0], rows[7][0].upper())),
        trouble=r"train\.tsv:9: expected two different texts",
        inputs=[*(first for first, _ in rows), *(second for _, second in rows)],
        answers_of=nearest,
        predicts=False,
    )


def tags(task: Any, folder: Path) -> Example:
    """Eight sentences in columns, with entities or with plain tags."""
    return Example(**eight_sentences.tagging_example(task, folder))


EXAMPLES: dict[type[TaskSpec], Callable[[Any, Path], Example]] = {
    ClassificationTask: text_example,
    ChoiceTask: choice_example,
    SpanTask: span_example,
    TaggingTask: tags,
    VectorTask: vector_example,
}

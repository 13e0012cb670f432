"""Made-up data of every task of the paper, laid out as `bertwright paper --data` takes them: a few words and labels."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.texts import PLACES

GOOD, BAD = "lovely", "dreadful"


def write_data(folder: Path, *, without: Sequence[str] = ()) -> Path:
    """Write them all but those named."""
    makers = {
        **dict.fromkeys(_TABLES, _table),
        "squad1": _questions,
        "squad2": _questions,
        "swag": _choices,
        "ner": _names,
        "wikigold": _names,
    }
    for name, make in makers.items():
        if name not in without:
            make(folder, name)
    return folder


def _sentence(row: int) -> str:
    return f"The {PLACES[row % len(PLACES)]} was {GOOD if row % 2 else BAD} on day {row}."


_TABLES = {
    "sst2": ("SST-2", ("sentence", "label"), lambda row: (_sentence(row), row % 2)),
    "cola": ("CoLA", (), lambda row: ("own", row % 2, "", _sentence(row))),
    "rte": (
        "RTE",
        ("index", "sentence1", "sentence2", "label"),
        lambda row: (row, _sentence(row), _sentence(row + 1), ("entailment", "not_entailment")[row % 2]),
    ),
    "qnli": (
        "QNLI",
        ("index", "question", "sentence", "label"),
        lambda row: (row, "How was it?", _sentence(row), ("entailment", "not_entailment")[row % 2]),
    ),
    "stsb": (
        "STS-B",
        ("index", "sentence1", "sentence2", "score"),
        lambda row: (row, _sentence(row), _sentence(3 * row), float(row % 5)),
    ),
    "mnli": (
        "MNLI",
        ("index", "sentence1", "sentence2", "gold_label"),
        lambda row: (row, _sentence(row), _sentence(row + 2), ("entailment", "neutral", "contradiction")[row % 3]),
    ),
}
"""Name → folder, header (none: no header line), cells of a row."""


def _table(folder: Path, name: str) -> None:
    subfolder, header, cells = _TABLES[name]
    devs = ("dev_matched", "dev_mismatched") if name == "mnli" else ("dev",)
    target = folder / "glue" / subfolder
    target.mkdir(parents=True)
    for part, count in (("train", 40), *((dev, 20) for dev in devs)):
        rows = [header, *(cells(row) for row in range(count))] if header else [cells(row) for row in range(count)]
        file = "train.derived" if (name, part) == ("qnli", "train") else part
        (target / f"{file}.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), "utf-8")


def _questions(folder: Path, name: str) -> None:
    version = "v1.1" if name == "squad1" else "v2.0"
    (folder / "squad").mkdir(parents=True, exist_ok=True)
    for part, count in ((f"train-{version}-part", 12), (f"dev-{version}", 8)):
        articles = [_article(row, null=version == "v2.0") for row in range(count)]
        text = json.dumps({"version": version[1:], "data": articles})
        (folder / "squad" / f"{part}.json").write_text(text, "utf-8")


def _article(row: int, *, null: bool) -> dict[str, object]:
    """A passage with two questions, of which the second has no answer in 2.0."""
    context = f"{_sentence(row)} {_sentence(row + 1)}"
    answer = {"text": PLACES[row % len(PLACES)], "answer_start": 4}
    questions = [{"id": f"{row}-{n}", "question": f"What was it on day {row}?", "answers": [answer]} for n in range(2)]
    if null:
        questions[0]["is_impossible"] = False
        questions[1] |= {"answers": [], "is_impossible": True}
    return {"title": str(row), "paragraphs": [{"context": context, "qas": questions}]}


def _choices(folder: Path, _: str) -> None:
    (folder / "swag").mkdir(parents=True)
    header = "sent1,sent2,ending0,ending1,ending2,ending3,label"
    for part, count in (("codah-train", 30), ("codah-val", 15)):
        rows = [f'"It was day {row}, in May.",It,rained.,snowed.,was lovely.,ended.,{row % 4}' for row in range(count)]
        (folder / "swag" / f"{part}.csv").write_text("\n".join([header, *rows]) + "\n", "utf-8")


def _names(folder: Path, name: str) -> None:
    subfolder, parts = ("wnut17", ("train", "dev")) if name == "ner" else ("wikigold", ("wikigold",))
    (folder / "ner" / subfolder).mkdir(parents=True)
    for part in parts:
        sentences = [
            f"Anna{row} B-PER\nwas O\nat O\nthe O\n{PLACES[row % len(PLACES)]} B-LOC\n. O\n" for row in range(30)
        ]
        (folder / "ner" / subfolder / f"{part}.conll").write_text("\n".join(sentences), "utf-8")

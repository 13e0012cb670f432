"""Whatever is in a file of a person's: it is read, or refused by an InputError that names the file. Nothing else."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.finetuning.grid import parse_grid
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.hf_config import read_description
from bertwright.objectives.batches import parse_weights
from bertwright.pretraining.settings import resolve_settings
from bertwright.serving.embeddings import parse_layers
from bertwright.tables.reader import read_table
from bertwright.tasks.classification.examples import read_examples
from bertwright.tasks.classification.spec import COLA, MULTILABEL, SST2, STSB
from bertwright.tasks.multiple_choice.spec import ChoiceTask, choices_of
from bertwright.tasks.question_answering.data import read_questions, read_unlabelled
from bertwright.tasks.spec import with_settings
from bertwright.tasks.tagging.conll import Columns, read_tag_lines, sentences_of
from bertwright.tasks.tagging.spec import TaggingTask, learn_tags, read_tagged
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.vocabulary import read_folder

JSON = ['{"', '": "', '", "', '"}', "[", "]", "{}", "null", "1e999", "true", "\\ud800", "tokens", "tags", "document"]
JSON += ["question", "context", "id", "data", "paragraphs", "qas", "answers", "text", "label", "choices", '": [', '"],']
TABLE = ["\t", ",", '"', '""', "\n", "\r\n", "sentence", "label", "text", "score", "1", "0", "-1", "nan", "yes|no", " "]
CONLL = ["-DOCSTART-", "B-PER", "I-", "O", "\n\n", "\n", "\t", " ", "# text", "1", "2-3", "4.1", "_", "word", "S-LOC"]
WIKI = [
    "<doc id=",
    "</doc>",
    "<mediawiki>",
    "<page>",
    "<text>",
    "[[",
    "]]",
    "{{",
    "}}",
    "''",
    "== a ==",
    "&lt;",
    "\n\n",
]
ODD = ["\x00", "\ufeff", "\u2028", "é", "한국어", "[MASK]", "\udcff"]


def files(*parts: list[str]) -> st.SearchStrategy[bytes]:
    """Bytes of a file: parts of its format and others, or any bytes."""
    known = [piece for part in parts for piece in part]
    mixed = st.lists(st.sampled_from(known + ODD) | st.text(max_size=4), max_size=40).map("".join)
    return mixed.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=60)


def of_tags(path: Path) -> None:
    """Words and tags, and the labels learned from them."""
    task = TaggingTask(name="ner", scheme="auto")
    learn_tags(task, read_tagged(task, path))


READERS: dict[str, tuple[str, st.SearchStrategy[bytes], Callable[[Path], Any]]] = {
    "tsv": ("a.tsv", files(TABLE), read_table),
    "csv": ("a.csv", files(TABLE), read_table),
    "JSON lines": ("a.jsonl", files(JSON, ["\n"]), read_table),
    "Parquet": ("a.parquet", files(["PAR1", "\x15\x04"]), read_table),
    "SST-2": ("dev.tsv", files(TABLE), lambda path: read_examples(SST2, path)),
    "CoLA": ("dev.tsv", files(TABLE), lambda path: read_examples(COLA, path)),
    "STS-B": ("dev.tsv", files(TABLE, ["sentence1\tsentence2\tscore\n"]), lambda path: read_examples(STSB, path)),
    "many labels": ("dev.jsonl", files(JSON, ["\n"]), lambda path: read_examples(MULTILABEL, path)),
    "choices": ("a.jsonl", files(JSON, ["\n"]), lambda path: choices_of(ChoiceTask(name="swag"), read_table(path))),
    "CoNLL": ("a.conll", files(CONLL), of_tags),
    "CoNLL-U": ("a.conllu", files(CONLL), of_tags),
    "words": (
        "a.jsonl",
        files(JSON, ["\n"]),
        lambda path: sentences_of(read_tag_lines(path), Columns(), with_tags=False),
    ),
    "SQuAD": ("a.json", files(JSON), read_questions),
    "questions": ("a.jsonl", files(JSON, ["\n"]), read_unlabelled),
    "text": ("a.txt", files(WIKI), lambda path: list(read_documents(path, TextSettings()))),
    "records": ("a.jsonl", files(JSON, ["\n"]), lambda path: list(read_documents(path, TextSettings()))),
    "a dump": ("a.xml", files(WIKI), lambda path: list(read_documents(path, TextSettings()))),
    "config.json": ("config.json", files(JSON, ["hidden_size", "architectures", "id2label"]), read_description),
    "a record": ("run.json", files(JSON), read_json),
    "tokenizer.json": (
        "tokenizer.json",
        files(JSON, ["model", "vocab", "[PAD]"]),
        lambda path: read_folder(path.parent),
    ),
    "vocab.txt": ("vocab.txt", files(["[PAD]\n", "[UNK]\n", "##a\n", "\n"]), lambda path: read_folder(path.parent)),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_file_is_read_or_refused(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    name, contents, read = READERS[kind]
    path = tmp_path_factory.mktemp("odd") / name
    outcomes = {"read": 0, "refused": 0}

    @given(content=contents)
    @settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def one(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read(path)
            outcomes["read"] += 1
        except InputError:
            outcomes["refused"] += 1

    one()
    assert outcomes["refused"], outcomes
    assert sum(outcomes.values()) >= 50


WORDS = ["batch-size", "=", "16,32", "learning-rate", "1e-3", "paper", " ", ",", "-1", "0", "nan", "1e999", "12", "all"]
WORDS += ["last", "wiki=0.7", "paper-gpt", "é", "=", "scheme=iob2", "context=off", "stride=9"]
PARSERS: dict[str, Callable[[str], Any]] = {
    "--grid": lambda text: parse_grid(text, FinetuneSettings()),
    "--layers": lambda text: parse_layers(text, 12),
    "--corpus": lambda text: parse_weights(text.split(" ")),
    "--recipe": lambda text: resolve_settings(text, {}),
    "--task-setting": lambda text: with_settings(TaggingTask(name="ner", scheme="auto"), text.split(" ")),
}


@pytest.mark.parametrize("option", PARSERS)
def test_an_options_value_is_understood_or_refused(option: str) -> None:
    refusals = (InputError, ValueError) if option == "--corpus" else (InputError,)  # the command words the former

    @given(text=st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=8).map("".join))
    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    def one(text: str) -> None:
        with suppress(*refusals):
            PARSERS[option](text)

    one()

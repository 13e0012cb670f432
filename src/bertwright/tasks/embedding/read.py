"""--data → pairs for training and validation: a table, a folder of tables, a folder in BEIR's layout, or a corpus."""

import re
from collections.abc import Iterable
from pathlib import Path

from bertwright.console import say
from bertwright.corpus.manifest import MANIFEST
from bertwright.errors import InputError
from bertwright.tables.files import table_stem
from bertwright.tasks.beir import QRELS, is_retrieval, qrels_file, texts_digest
from bertwright.tasks.binding import LabelledData, file_digests
from bertwright.tasks.classification.examples import named_table, train_file
from bertwright.tasks.classification.split import split_rows
from bertwright.tasks.embedding.beir import read_judged
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.spans import read_spans, read_validation_spans
from bertwright.tasks.embedding.spec import Layout, VectorTask
from bertwright.tasks.embedding.tables import read_pairs


def read_vector_data(task: VectorTask, data: Path) -> LabelledData:
    """Read the training and validation pairs; without a validation file a tenth of the first texts is kept for it."""
    layout = folder_layout(task, data)
    refuse_table_options(task, data, layout)
    if layout == "corpus":
        return read_spans(task, data)
    if task.pairs != VectorTask.model_fields["pairs"].default:
        raise InputError(f"--task-setting pairs={task.pairs}: expected a folder of corpus build in --data, got {data}")
    if task.spans:
        alone = "; for texts that match themselves, use the column text alone" if task.spans == "twins" else ""
        raise InputError(
            f"--task-setting spans={task.spans}: expected a folder of corpus build in --data, got {data}{alone}"
        )
    if layout == "beir":
        if data.is_file():
            raise InputError(f"--data {data}: is a file of judgements; to train, give its folder {data.parent.parent}")
        path, dev_path = qrels_file(data, "train"), qrels_file(data, "dev")
        if path is None:
            raise InputError(f"{data}: expected {QRELS}/train.tsv, found none")
        train = read_judged(task, path)
        validation = read_judged(task, dev_path) if dev_path else None
    else:
        path, dev_path = train_file(data), named_table(data, task.dev)
        train = read_pairs(task, path)
        validation = _read_validation(task, dev_path) if dev_path else None
    digests = file_digests(path, dev_path)
    if layout == "beir":
        digests["texts"] = texts_digest(data)
    if validation is None:
        _refuse_twins(train)
        train, validation = split_pairs(train, data)
    return LabelledData(task, train, {"dev": validation}, digests)


def read_measured(task: VectorTask, data: Path) -> dict[str, TextPairs]:
    """Read the pairs on which a model is evaluated, by the name of their file.

    data: a table, a folder of tables, a folder of BEIR, one of its files qrels/NAME.tsv, or a corpus. Of a folder with
    a train and a dev file the dev file is read, and of a corpus the documents that training keeps for validation.
    """
    layout = folder_layout(task, data)
    refuse_table_options(task, data, layout)
    if data.is_file():
        return {data.name: read_judged(task, data) if layout == "beir" else _read_validation(task, data)}
    if layout == "corpus":
        return {data.name: read_validation_spans(data)}
    if layout == "beir":
        path = qrels_file(data, "dev") or qrels_file(data, "test")
        if path is None:
            raise InputError(f"{data}: expected {QRELS}/dev.tsv or test.tsv, found none; give the path of a file")
        return {path.name: read_judged(task, path)}
    paths = [path for path in sorted(data.iterdir()) if table_stem(path) is not None]
    if any(re.search(r"(^|[-_.])train", path.name) for path in paths):
        dev_path = named_table(data, task.dev)
        if dev_path is None:
            allowed = ", ".join(task.dev)
            raise InputError(f"{data}: expected a dev file ({allowed}) beside the train file; give the path of a file")
        paths = [dev_path]
    if not paths:
        raise InputError(f"{data}: expected tables of pairs, a folder in the layout of BEIR, or a corpus")
    return {path.name: _read_validation(task, path) for path in paths}


def folder_layout(task: VectorTask, data: Path) -> Layout | None:
    """Return beir or corpus for a folder of that layout or a file of `qrels`, None for tables.

    Raises InputError where another layout is set.
    """
    layout: Layout | None = None
    if (data / MANIFEST).is_file():
        layout = "corpus"
    elif is_retrieval(data):
        layout = "beir"
    if layout != task.layout and (layout or task.layout in ("beir", "corpus")) and task.layout != "auto":
        kinds = {"corpus": "a corpus", "beir": "in BEIR's layout", None: "no such folder"}
        raise InputError(f"{data}: is {kinds[layout]}, but the layout is set to {task.layout}")
    return layout


def refuse_table_options(task: VectorTask, data: Path, layout: Layout | None) -> None:
    """Raise InputError for options of tables where `data` is no table: its columns are fixed, or it has none."""
    if layout and (task.text or task.label or task.scores or task.input_format != "auto"):
        kind = "a corpus, which has no columns" if layout == "corpus" else "in BEIR's layout, whose columns are fixed"
        options = "--text-column, --label-column, --input-format and --task-setting scores"
        raise InputError(f"--data {data}: is {kind}; leave {options} out")


def refuse_unused_scores(task: VectorTask, tables: Iterable[TextPairs], data: object) -> None:
    """Raise InputError for the limits of scores where no pair has a score."""
    if task.scores and all(pairs.scores is None for pairs in tables):
        low, high = task.scores
        raise InputError(f"--task-setting scores={low:g},{high:g}: expected pairs with scores in {data}, found none")


def _read_validation(task: VectorTask, path: Path) -> TextPairs:
    """Read a table of validation pairs, whose layout may be another than that of the training texts."""
    pairs = read_pairs(task.model_copy(update={"layout": "auto"}) if task.layout == "texts" else task, path)
    _refuse_twins(pairs)
    return pairs


def _refuse_twins(pairs: TextPairs) -> None:
    """Raise InputError for texts that match themselves: their cosine is 1 whatever the model is."""
    if pairs.twins:
        raise InputError(
            f"{pairs.source}: expected pairs for validation, got single texts; give a folder with train.tsv and a "
            "dev.tsv of pairs, such as sentence1, sentence2, score; or, to train without pairs, a corpus of the texts: "
            "bertwright corpus build TEXTS --tokenizer MODEL --out CORPUS, then --data CORPUS"
        )


def split_pairs(pairs: TextPairs, data: Path) -> tuple[TextPairs, TextPairs]:
    """Return (train, validation): a tenth of the first texts, with all their pairs, is for validation."""
    say(f"{data}: there is no dev file, so a tenth of the first texts, with all their pairs, is kept for validation")
    kept, chosen = split_rows([pairs.firsts[number] for number in pairs.anchors], pairs.source)
    return pairs.select(kept), pairs.select(chosen)

"""--data → pairs for training and validation: a table, a folder of tables, a folder in BEIR's layout, or a corpus."""

from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.tasks.binding import LabelledData
from bertwright.tasks.classification.examples import named_table, train_file
from bertwright.tasks.classification.split import split_rows
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.embedding.tables import read_pairs


def read_vector_data(task: VectorTask, data: Path) -> LabelledData:
    """Read the training and validation pairs; without a validation file a tenth of the first texts is kept for it."""
    path, dev_path = train_file(data), named_table(data, task.dev)
    train = read_pairs(task, path)
    digests: dict[str, Any] = {"train": file_digest(path), "dev": {}}
    if dev_path:
        digests["dev"][dev_path.name] = file_digest(dev_path)
        validation = read_validation(task, dev_path)
    else:
        refuse_twins(train)
        train, validation = split_pairs(train, data)
    return LabelledData(task, train, {"dev": validation}, digests)


def read_validation(task: VectorTask, path: Path) -> TextPairs:
    """Read a table of validation pairs, whose layout may be another than that of the training pairs."""
    is_named = task.layout not in ("auto", "pairs", "scored", "nli")
    pairs = read_pairs(task.model_copy(update={"layout": "auto"}) if is_named else task, path)
    refuse_twins(pairs)
    return pairs


def refuse_twins(pairs: TextPairs) -> None:
    """Raise InputError for texts that match themselves: their cosine is 1 whatever the model is."""
    if pairs.twins:
        raise InputError(
            f"{pairs.source}: expected pairs for validation, got texts that match themselves; give a folder with "
            "train.tsv and a dev.tsv of pairs, such as sentence1, sentence2, score"
        )


def split_pairs(pairs: TextPairs, data: Path) -> tuple[TextPairs, TextPairs]:
    """Return (train, validation): a tenth of the first texts, with all their pairs, is for validation."""
    say(f"{data}: no dev file; a tenth of the first texts, with all their pairs, is kept for validation")
    kept, chosen = split_rows([pairs.firsts[number] for number in pairs.anchors], pairs.source)
    return pairs.select(kept), pairs.select(chosen)

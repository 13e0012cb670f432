"""The commonest answer of each kind of task, on a few rows, by hand."""

from pathlib import Path

import pytest

from bertwright.experiments.constant import constant_answer
from bertwright.tasks.spec import get_spec
from tests.support.paper_data import write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_the_commonest_label_of_the_training_rows(tmp_path: Path) -> None:
    write(
        tmp_path, train_tsv="sentence\tlabel\na\t1\nb\t1\nc\t0\n", dev_tsv="sentence\tlabel\nd\t1\ne\t0\nf\t0\ng\t0\n"
    )
    assert constant_answer(get_spec("sst2"), tmp_path)["accuracy"] == 0.25


def test_the_commonest_position_of_the_right_choice(tmp_path: Path) -> None:
    head = "startphrase,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    rows = [f"a,a,b,c,d,e,f,{label}\n" for label in (2, 2, 0)]
    dev = [f"a,a,b,c,d,e,f,{label}\n" for label in (2, 1, 1, 0)]
    write(tmp_path, train_csv=head + "".join(rows), val_csv=head + "".join(dev))
    assert constant_answer(get_spec("swag"), tmp_path) == {"accuracy": 0.25}


def test_the_commonest_tag_finds_no_entity(tmp_path: Path) -> None:
    text = "Ann B-PER\nsaw O\nit O\n\nBob B-PER\nran O\n\n"
    write(tmp_path, train_txt=text, valid_txt=text)
    metrics = constant_answer(get_spec("ner"), tmp_path)
    assert (metrics["f1"], metrics["accuracy"]) == (0.0, 0.6)


@pytest.mark.parametrize(("task", "folder"), [("squad1", "squad"), ("squad2", "squad")])
def test_no_answer_is_right_for_the_questions_without_one(data: Path, task: str, folder: str) -> None:
    metrics = constant_answer(get_spec(task), data / folder)
    assert metrics.keys() >= {"em", "f1"}
    assert (metrics["f1"] == 0.0) == (task == "squad1")

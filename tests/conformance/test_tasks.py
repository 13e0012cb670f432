"""Every registered sentence task; none of them needs torch to be listed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from bertwright.registry import find
from bertwright.tasks.classification.encoding import decode, score_values
from bertwright.tasks.classification.examples import learn, read_examples
from bertwright.tasks.classification.spec import ClassificationTask, with_labels

TASKS = find("bertwright.tasks", ClassificationTask)


def perfect_logits(task, targets):
    if task.kind == "regression":
        return (targets - task.centre) / task.spread
    if task.kind == "multilabel":
        return np.where(targets, 1.0, -1.0)
    return np.eye(task.num_outputs)[targets]


@pytest.fixture(params=sorted(TASKS))
def task_and_file(request, tmp_path):
    """A task, its labels learned, and a training file of its layout with every label in every spelling."""
    task = TASKS[request.param]
    numbers = ["0.5", "2", "4.25"] if task.kind == "regression" else [*(task.labels or ("no", "yes")), *task.codes]
    numbers += ["no|yes", ""] if task.kind == "multilabel" else []
    rows = [{**{column: f"{column} {row}" for column in task.text}, task.label: n} for row, n in enumerate(numbers)]
    columns = task.columns or tuple(rows[0])
    lines = [columns] if not task.columns else []
    lines += [tuple(row.get(column, "") for column in columns) for row in rows]
    path = tmp_path / "train.tsv"
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    return learn(task, path), path


def test_right_answers_score_1_and_decode_to_the_labels(task_and_file):
    task, path = task_and_file
    examples = read_examples(task, path)
    logits = perfect_logits(task, examples.targets)
    assert score_values(task, decode(task, logits).values, examples.targets) == pytest.approx(
        dict.fromkeys(task.metrics, 1.0)
    )
    if task.kind == "regression":
        assert decode(task, logits).values == pytest.approx(examples.targets)
    elif task.kind == "multilabel":
        assert decode(task, logits).labels == (("no",), ("yes",), ("no", "yes"), ())
    else:
        assert decode(task, logits).labels == tuple(task.labels[target] for target in examples.targets)
    assert (examples.texts_b is not None) == (len(task.text) == 2)


def test_the_order_of_the_labels_changes_no_metric(task_and_file):
    task, path = task_and_file
    turned = with_labels(task, task.labels[::-1])
    targets, turned_targets = read_examples(task, path).targets, read_examples(turned, path).targets
    logits = np.random.default_rng(0).normal(size=(len(targets), task.num_outputs))
    metrics = score_values(task, decode(task, logits).values, targets)
    turned_values = decode(turned, logits[:, ::-1]).values
    assert score_values(turned, turned_values, turned_targets) == pytest.approx(metrics)


def test_the_spec_survives_json(task_and_file):
    task, _ = task_and_file
    assert ClassificationTask.model_validate(json.loads(json.dumps(task.model_dump(mode="json")))) == task


def test_tasks_are_listed_without_torch():
    program = """
import sys
sys.modules["torch"] = None
import importlib, pkgutil
import bertwright.tasks
below = pkgutil.walk_packages(bertwright.tasks.__path__, "bertwright.tasks.")
names = [info.name for info in below if info.name.endswith(".spec")]
for name in names:
    importlib.import_module(name)
from bertwright.registry import find
from bertwright.tasks.classification.spec import ClassificationTask
heavy = [name for name in ("sklearn", "scipy", "numba", "tokenizers") if name in sys.modules]
print(len(names), sorted(find("bertwright.tasks", ClassificationTask)), heavy)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    count, rest = result.stdout.strip().split(" ", 1)
    assert int(count) >= 5
    assert rest == f"{sorted(TASKS)} []"
    assert {
        "sst2",
        "cola",
        "mrpc",
        "qqp",
        "stsb",
        "mnli",
        "qnli",
        "rte",
        "wnli",
        "classify",
        "multilabel",
        "regress",
    } <= set(TASKS)

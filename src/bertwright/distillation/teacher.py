"""fine-tuned model → the teacher's answers to texts, computed once and kept in a file of the run."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.model.config import encoder_shape
from bertwright.model.folder import SavedModel, open_model, weights_digest
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import Encoded, encode
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.model import Classifier, noted_task, open_classifier, predict_logits
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.finite import check_finite
from bertwright.tasks.inference import Answerable
from bertwright.tasks.kinds import task_of
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.run_files import run_record
from bertwright.training.settings import Device

TeacherAnswers = Mapping[str, NDArray[np.float32]]
"""Logits [examples, L] by the name of a set of texts."""


@dataclass(frozen=True)
class Teacher:
    """A fine-tuned model, its task, the maximal length of its texts, its tokenizer, and the sha256 of its weights."""

    saved: SavedModel
    task: ClassificationTask
    max_length: int
    tokenizer: BaseTokenizer
    digest: str
    device: Device = "cpu"

    @cached_property
    def model(self) -> Classifier:
        """Return the model in evaluation mode, on its device."""
        return open_on_device(self.saved, self.device)[0]

    def encode(self, examples: TextExamples) -> Encoded:
        """Return the rows of token ids, as the teacher reads them."""
        sides = examples.texts_a, examples.texts_b
        return encode(self.tokenizer, *sides, max_length=self.max_length, long=self.task.long)

    def answers(self, texts: Mapping[str, TextExamples], path: Path) -> TeacherAnswers:
        """Return the logits of sets of texts by name; they are read from the file `path`, or computed and kept there.

        Raises InputError where the file holds answers of another teacher or to other texts, and RunFailed for an answer
        that is not finite.
        """
        rows = {name: self.encode(examples) for name, examples in texts.items()}
        facts = {"answers": f"of {self.digest} to {_digest(rows)}"}  # of several entries the order would change
        if path.exists():
            return _stored(path, facts)
        say(f"{self.saved.source}: answers {sum(map(len, texts.values())):,} texts, once for all seeds")
        answers = {name: predict_logits(self.model, encoded) for name, encoded in rows.items()}
        for name, examples in texts.items():
            self._check_finite(answers[name], examples)
        with atomic_file(path) as stream:
            stream.write(save(answers, metadata=facts))
        return answers

    def _check_finite(self, answers: NDArray[np.float32], examples: TextExamples) -> None:
        check_finite(answers, lambda row: f"teacher {self.saved.source}, {examples.location(row)}")


def open_teacher(source: str, device: Device) -> Teacher:
    """Open a teacher. Raises InputError for a model without a task, of another kind of task, or of another family."""
    saved = open_model(source)
    task = task_of(saved)
    if not isinstance(task, ClassificationTask):
        raise InputError(
            f"--teacher {source}: was fine-tuned for {task.name}; distill supports tasks of sentences and pairs "
            "(labels or a number), and no tags, spans or choices"
        )
    if "features" in saved.extra:
        raise InputError(f"--teacher {source}: was trained with --features; expected a model that was fine-tuned whole")
    encoder_shape(saved.config, source)
    task, max_length = noted_task(saved)
    return Teacher(saved, task, max_length, open_tokenizer(saved), weights_digest(saved) or "", device)


def open_on_device(saved: SavedModel, device: Device) -> tuple[Classifier, ClassificationTask]:
    """Return the classifier of a model folder in evaluation mode, in fp32 and on a device, with its task."""
    return open_classifier(Answerable(**vars(saved), answering="plain", device=device))[:2]


def refuse_other_teacher(run: Path, digest: str, source: str) -> None:
    """Raise InputError where the run in the folder `run` was started with another teacher."""
    data = run_record(run).get("data")
    noted = data.get("teacher") if isinstance(data, dict) else None
    if noted and noted != digest:
        raise InputError(
            f"--teacher {source}: its weights have the sha256 {digest[:16]}, and the run in {run} was started with a "
            f"teacher of {str(noted)[:16]}; name that teacher, or choose another --out"
        )


def _digest(rows: Mapping[str, Encoded]) -> str:
    """Return the digest of the token ids of all texts."""
    digest = hashlib.sha256()
    for name, encoded in rows.items():
        digest.update(f"{name} {len(encoded)}".encode() + encoded.first.tobytes())
        for ids in encoded.ids:
            digest.update(ids.tobytes() + b"\n")
    return digest.hexdigest()


def _stored(path: Path, facts: Mapping[str, str]) -> TeacherAnswers:
    """Return the answers in a file. Raises InputError where it is damaged or its facts differ."""
    try:
        with safe_open(path, framework="numpy") as stored:
            if stored.metadata() == facts:
                return {name: stored.get_tensor(name) for name in stored.offset_keys()}
    except (SafetensorError, OSError):
        raise InputError(f"{path}: is damaged; remove it, and the teacher answers again") from None
    raise InputError(
        f"{path}: holds the answers of another teacher or to other texts; remove it, or choose another --out"
    )

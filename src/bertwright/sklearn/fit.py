"""bound task → a model in memory: trained by the training loop, saved as a model folder."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import safetensors.torch
import torch

from bertwright.errors import InputError
from bertwright.files import digest_note, read_object
from bertwright.finetuning.batches import steps_of
from bertwright.finetuning.schedule import scheduled
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import (
    add_auxiliary_loss,
    check_settings,
    initial_model,
    initial_weights,
    open_initial_model,
    train_plan,
    with_files,
)
from bertwright.model.folder import TOKENIZER_FILES, WEIGHTS, SavedModel, open_model, save_model
from bertwright.model.vector_head import VectorHead, head_bytes, head_of_bytes, open_vector_head
from bertwright.sklearn.notes import NOTES
from bertwright.tasks.binding import LabelledData, open_tokenizer
from bertwright.tasks.inference import answerable
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.sentence_vectors import SentenceEncoder
from bertwright.tasks.spec import TaskSpec
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import Numerics, apply_numerics, resolve_numerics
from bertwright.training.loop import train

_SOURCE: Final = "this estimator"
_CONFIG: Final = "config.json"
_MODEL_FILES: Final = {_CONFIG, WEIGHTS, digest_note(Path(WEIGHTS)).name, *TOKENIZER_FILES}
"""Files that `Learned.save` writes; a README.md is a person's, or the card of a model of `finetune`."""
_ONE_AT_A_TIME = threading.RLock()
"""Lock of all code that draws random numbers. Dropout and new modules use the only generator of the process, so that
the numbers of one thread would depend on other threads.
"""


@dataclass
class Learned:
    """A model folder in memory: weights and notes, its tokenizer, and the tokenizer's files.

    Its pickle, which joblib sends to other processes, has the weights as bytes of safetensors.
    """

    saved: SavedModel
    tokenizer: BaseTokenizer
    files: Mapping[str, bytes]
    head: VectorHead | None = None
    """The computation of vectors that the folder describes; None where it describes none, or vectors are not asked."""
    _ready: tuple[str, Any] | None = field(default=None, repr=False, compare=False)

    def ready(self, build: Callable[[SavedModel], Any], key: str = "") -> Any:
        """Return the result of `build`, computed once, without using the program's random numbers.

        key: parameters of `build`; another key than that of the last call builds again.
        """
        ready = self._ready
        if ready is None or ready[0] != key:
            with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
                ready = self._ready
                if ready is None or ready[0] != key:  # another thread may have built it meanwhile
                    ready = self._ready = (key, build(self.saved))
        return ready[1]

    def save(self, folder: Path) -> None:
        """Write a model folder, atomically; it replaces a model that was saved there before.

        Raises InputError for a folder with other files, such as the card of a model of `finetune`.
        """
        saved = self.saved
        assert saved.weights is not None
        _refuse_other_files(folder)
        with tempfile.TemporaryDirectory() as temporary:
            for name, content in self.files.items():
                (Path(temporary) / name).write_bytes(content)
            save_model(
                folder,
                saved.weights,
                config=saved.config,
                tokenizer=Path(temporary),
                architecture=saved.architecture,
                labels=saved.labels,
                extra={NOTES: {}, **saved.extra},
            )

    def __getstate__(self) -> dict[str, Any]:
        saved = self.saved
        assert saved.weights is not None
        # Copies: safetensors refuses a tensor that has two names, as the head of a ModernBERT has.
        weights = {name: part.clone(memory_format=torch.contiguous_format) for name, part in saved.weights.items()}
        return {
            "config": saved.config,
            "weights": safetensors.torch.save(weights),
            "architecture": saved.architecture,
            "labels": list(saved.labels),
            "extra": dict(saved.extra),
            "tokenizer": self.tokenizer,
            "files": dict(self.files),
            "vectors": None if self.head is None else head_bytes(self.head),
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.saved = SavedModel(
            _SOURCE,
            state["config"],
            safetensors.torch.load(state["weights"]),
            Path(),
            state["architecture"],
            tuple(state["labels"]),
            state["extra"],
        )
        self.tokenizer, self.files, self._ready = state["tokenizer"], state["files"], None
        vectors = state.get("vectors")
        self.head = None if vectors is None else head_of_bytes(vectors)


def _refuse_other_files(folder: Path) -> None:
    """Raise InputError where `folder` is neither free, nor empty, nor a model that `Learned.save` wrote."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: it is a file; name a new folder, or one with nothing but a model")
    names = {path.name for path in folder.iterdir()}
    notes = read_object(folder / _CONFIG).get("bertwright") if _CONFIG in names else None
    is_ours = isinstance(notes, dict) and NOTES in notes
    if others := sorted(names - _MODEL_FILES if is_ours else names):
        raise InputError(
            f"{folder}: it has {others[0]}, which would be lost; name a new folder, or one with nothing but a model"
        )


def read(model: str | Path) -> Learned:
    """Return a model folder or a run folder from disk."""
    if str(model).startswith("random:"):
        raise InputError(f"{model}: expected a model folder or a run, got random weights")
    saved = open_model(str(model))
    head = open_vector_head(Path(saved.source), saved.config.hidden)
    return Learned(saved, open_tokenizer(saved), _tokenizer_files(saved), head)


def open_sentences(learned: Learned, *, precision: str) -> SentenceEncoder:
    """Return the encoder with which vectors are computed in this precision, as `bertwright.load` computes them."""

    def build(saved: SavedModel) -> SentenceEncoder:
        return SentenceEncoder(answerable(saved, precision), learned.tokenizer, learned.head)

    sentences: SentenceEncoder = learned.ready(build, key=precision)
    return sentences


def fit_model(
    task: TaskSpec,
    rows: Any,
    settings: FinetuneSettings,
    *,
    model: str | Path,
    tokenizer: str | Path | None,
    notes: Mapping[str, Any],
    verbose: bool,
) -> Learned:
    """Fine-tune `model` on labelled rows of a task for all epochs, in memory and without validation.

    notes: entries of config.json beside the task.

    Raises KeyboardInterrupt where a signal came.
    """
    with _ONE_AT_A_TIME, _restored_torch():
        saved, model_tokenizer = open_initial_model(str(model), None if tokenizer is None else Path(tokenizer))
        check_settings(settings, saved.config, saved.source)
        data, kind = LabelledData(task, rows, {}, {}), kind_of(task)
        bound = kind.bind(data, model_tokenizer, saved.config, settings.max_length)
        bound = add_auxiliary_loss(settings, bound, saved=saved, tokenizer=model_tokenizer)
        settings = scheduled(settings, saved.config, len(bound.lengths))
        start = initial_weights(settings, bound, saved)
        # in a joblib worker torch reports the worker's threads
        numerics = _measured(settings.precision, settings.threads or torch.get_num_threads())
        apply_numerics(numerics)
        module = initial_model(settings, bound, start, settings.first_seed)
        outcome = train(
            bound.trainable(module),
            steps_of(bound, settings.batch_size, seed=settings.first_seed),
            plan=train_plan(settings, bound, saved.config, settings.first_seed),
            numerics=numerics,
            quiet=not verbose,
        )
        if outcome.signalled:
            raise KeyboardInterrupt
        trained = bound.to_save(module, {})
    learned = replace(
        saved,
        source=_SOURCE,
        weights=trained.module.state_dict(),
        architecture=trained.architecture,
        labels=trained.labels,
        extra={**trained.extra, **notes},
    )
    with tempfile.TemporaryDirectory() as temporary:
        files = _tokenizer_files(with_files(saved, model_tokenizer, Path(temporary) / "tokenizer"))
    return Learned(learned, model_tokenizer, files)


def _tokenizer_files(saved: SavedModel) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for name in TOKENIZER_FILES if (path := saved.tokenizer / name).is_file()}


@cache
def _measured(precision: Literal["auto", "fp32", "bf16"], threads: int) -> Numerics:
    """Return the numerics; measured once in a process, because a search fits hundreds of times."""
    return resolve_numerics(precision, threads=threads)


@contextmanager
def _restored_torch() -> Iterator[None]:
    """Restore torch's threads, random numbers and determinism at the end."""
    threads, fill = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]

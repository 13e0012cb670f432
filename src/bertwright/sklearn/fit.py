"""a task bound to values → a model in memory: trained by the one loop, saved as every fine-tuned model is."""

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
from bertwright.files import digest_note
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import begun, completed, opened, planned, refuse_unfit, starting, with_files
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import CARD, TOKENIZER_FILES, WEIGHTS, SavedModel, open_model, save_weights
from bertwright.tasks.binding import Work, open_tokenizer, steps_of
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import Numerics, apply_numerics, resolve_numerics
from bertwright.training.loop import train

_PLACE: Final = "this estimator"
_OWN_FILES: Final = {CARD, "config.json", WEIGHTS, digest_note(Path(WEIGHTS)).name, *TOKENIZER_FILES}
_ONE_AT_A_TIME = threading.RLock()
"""Dropout is drawn from the process's one generator, and torch draws from it for every new module, even one that is
filled at once: of two threads that fit, or of which one's model is first asked, each would take the other's numbers."""


@dataclass
class Learned:
    """A model folder in memory: its weights and notes, its tokenizer, and that one's files.

    A pickle of it holds the weights as safetensors bytes and the rest as plain values: what joblib copies to its
    processes.
    """

    saved: SavedModel
    words: BaseTokenizer
    files: Mapping[str, bytes]
    _ready: Any = field(default=None, repr=False, compare=False)

    def ready(self, build: Callable[[SavedModel], Any]) -> Any:
        """What `build` makes of the model, made once; no random number of the program is spent on it."""
        if self._ready is None:
            with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
                if self._ready is None:  # another thread may have made it meanwhile
                    self._ready = build(self.saved)
        return self._ready

    def save(self, folder: Path) -> None:
        """Write a model folder, atomically; what takes its place is a folder of a model alone, or none."""
        saved = self.saved
        assert saved.weights is not None
        strange = sorted({path.name for path in folder.iterdir()} - _OWN_FILES) if folder.is_dir() else []
        if strange or (folder.exists() and not folder.is_dir()):
            holds = f"holds {strange[0]}, which would be lost" if strange else "is a file"
            raise InputError(f"{folder}: {holds}; name a new folder, or one with nothing but a model")
        with tempfile.TemporaryDirectory() as temporary:
            for name, content in self.files.items():
                (Path(temporary) / name).write_bytes(content)
            save_weights(
                folder,
                saved.weights,
                config=saved.config,
                tokenizer=Path(temporary),
                architecture=saved.architecture,
                labels=saved.labels,
                extra=saved.extra,
            )

    def __getstate__(self) -> dict[str, Any]:
        saved = self.saved
        assert saved.weights is not None
        return {
            "config": saved.config,
            "weights": safetensors.torch.save({name: part.contiguous() for name, part in saved.weights.items()}),
            "architecture": saved.architecture,
            "labels": list(saved.labels),
            "extra": dict(saved.extra),
            "words": self.words,
            "files": dict(self.files),
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.saved = SavedModel(
            _PLACE,
            state["config"],
            safetensors.torch.load(state["weights"]),
            Path(),
            state["architecture"],
            tuple(state["labels"]),
            state["extra"],
        )
        self.words, self.files, self._ready = state["words"], state["files"], None


def read(model: str | Path) -> Learned:
    """A model folder, or a run folder, as it lies on disk."""
    if str(model).startswith("random:"):
        raise InputError(f"{model}: random weights have learned nothing; name a model folder or a run")
    saved = open_model(str(model))
    return Learned(saved, open_tokenizer(saved), _tokenizer_files(saved))


def learn(
    bind: Callable[[BaseTokenizer, BackboneConfig], Work[Any]],
    settings: FinetuneSettings,
    *,
    model: str | Path,
    tokenizer: str | Path | None,
    notes: Mapping[str, Any],
    verbose: bool,
) -> Learned:
    """Fine-tune `model` on what is bound, for all epochs and without measuring, in memory alone.

    notes: what the model folder notes beside its task. KeyboardInterrupt where a signal came: half a training is none.
    """
    with _ONE_AT_A_TIME, _undisturbed():
        saved, words = opened(str(model), None if tokenizer is None else Path(tokenizer))
        refuse_unfit(settings, saved.config, saved.place)
        work = completed(settings, bind(words, saved.config), saved)
        start = starting(settings, work, saved)
        # what joblib gives a worker is what torch reports there, and not the cores of the machine
        numerics = _measured(settings.precision, settings.threads or torch.get_num_threads())
        apply_numerics(numerics)
        module = begun(settings, work, start, settings.first_seed)
        outcome = train(
            work.trainable(module),
            steps_of(work, settings.batch_size, seed=settings.first_seed),
            plan=planned(settings, work, saved.config, settings.first_seed),
            numerics=numerics,
            quiet=not verbose,
        )
        if outcome.signalled:
            raise KeyboardInterrupt
        answered = work.answered(module)
    learned = replace(
        saved,
        place=_PLACE,
        weights=answered.module.state_dict(),
        architecture=answered.architecture,
        labels=answered.labels,
        extra={**answered.extra, **notes},
    )
    with tempfile.TemporaryDirectory() as temporary:
        files = _tokenizer_files(with_files(saved, words, Path(temporary) / "tokenizer"))
    return Learned(learned, words, files)


def _tokenizer_files(saved: SavedModel) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for name in TOKENIZER_FILES if (path := saved.tokenizer / name).is_file()}


@cache
def _measured(precision: Literal["auto", "fp32", "bf16"], threads: int) -> Numerics:
    """The machine is measured once in a process: a search fits hundreds of times."""
    return resolve_numerics(precision, threads=threads)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put torch back as the program had it: its threads, its random numbers, its way with determinism."""
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

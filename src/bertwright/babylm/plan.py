"""request of an entry → its steps, and how long each takes on this machine; nothing is trained or written."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bertwright.babylm.measures import first_pairs
from bertwright.babylm.request import EntryRequest, check_request
from bertwright.babylm.results import RESULTS
from bertwright.babylm.run import settings_of_entry, typed_settings
from bertwright.console import table_lines
from bertwright.corpus.manifest import MANIFEST, read_manifest
from bertwright.experiments.data import make_subset
from bertwright.finetuning.schedule import scheduled
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import BackboneConfig
from bertwright.model.system import NAMES, system_config
from bertwright.pretraining.choose import UTILISATION, Budget, choose_for_budget, layer_weights
from bertwright.pretraining.dry_run import plan_pretraining
from bertwright.pretraining.exposure import marks_up_to
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.snapshots import words_folders
from bertwright.reports.runs import duration, read_run
from bertwright.scoring.pairs import TOKENS_PER_WORD, Paradigm, row_tokens
from bertwright.text.word_counts import MILLION, words_text
from bertwright.training.hardware import resolve_numerics
from bertwright.training.run_files import is_finished, run_record

_TASK_TOKENS: Final = 64
"""Number of tokens of a row of GLUE, approximately."""
_TEXT_WORDS_A_SECOND: Final = 100_000
"""Number of words of text that are counted, learned from and tokenised in a second, approximately."""
_TRAINING_COST: Final = 3
"""Time of a training step in relation to that of the same rows without a backward pass."""


@dataclass(frozen=True)
class _Pace:
    """Pre-training of an entry, and its speed on this machine.

    config: shape of the model. words: number of words seen. minutes: those that are left. source: origin of the speed.
    """

    size: str
    config: BackboneConfig
    words: int
    minutes: float
    tokens_per_minute: float
    source: str


def plan_entry(request: EntryRequest) -> dict[str, Any]:
    """Return the steps of an entry with their state and estimated minutes, and a text. InputError as `run_entry`.

    Where the corpus is built, pre-training is planned as `pretrain --plan` does, with trial steps. A finished
    pre-training gives its own speed. Without a corpus the minutes follow from the FLOP/s that are measured here. The
    words of the text are not counted: a budget beyond the text is refused when the entry is made.
    """
    paradigms = check_request(request)
    corpus = request.built_corpus or request.out / "corpus"
    is_built = (corpus / MANIFEST).is_file()
    text_words = request.entry.text_words
    words, tokens = _size(corpus) if is_built else (text_words, TOKENS_PER_WORD * text_words)
    if is_finished(request.run):
        pace = _finished_pace(request)
    else:
        pace = _measured_pace(request, corpus) if is_built else _expected_pace(request, words, tokens)
    steps = [
        _corpus_step(request, words, is_built=is_built),
        _pretraining_step(request, pace),
        *_pair_steps(request, paradigms, pace=pace, tokens_per_word=tokens / words),
        *_task_steps(request, pace),
        _step("model card", "budgets and measurements", minutes=0.0, finished=(request.out / RESULTS).is_file()),
    ]
    minutes = sum(step["minutes"] for step in steps if not step["finished"])
    rows = [("step", "what", "about")]
    rows += [
        (step["step"], step["what"], "finished" if step["finished"] else duration(60 * step["minutes"]))
        for step in steps
    ]
    lines = [*table_lines(rows, left=2), f"in all about {duration(60 * minutes)} on this machine, by {pace.source}"]
    return {"steps": steps, "minutes": minutes, "speed": pace.source, "text": "\n".join(lines)}


def _step(name: str, what: str, *, minutes: float, finished: bool) -> dict[str, Any]:
    return {"step": name, "what": what, "minutes": minutes, "finished": finished}


def _vocab_size(request: EntryRequest) -> int:
    """Return the number of pieces of the vocabulary: that of a built corpus, or of the one that the entry learns."""
    return read_manifest(request.built_corpus).vocab_size if request.built_corpus else request.entry.vocab_size


def _corpus_step(request: EntryRequest, words: int, *, is_built: bool) -> dict[str, Any]:
    what = f"{words_text(words)} words of text, {_vocab_size(request):,} pieces"
    return _step("corpus", what, minutes=words / _TEXT_WORDS_A_SECOND / 60, finished=is_built)


def _pretraining_step(request: EntryRequest, pace: _Pace) -> dict[str, Any]:
    what = f"{NAMES[request.settings.system]} {pace.size}, {words_text(pace.words)} words seen"
    return _step("pre-training", what, minutes=pace.minutes, finished=is_finished(request.run))


def _pair_steps(
    request: EntryRequest, paradigms: Mapping[str, list[Paradigm]], *, pace: _Pace, tokens_per_word: float
) -> Iterator[dict[str, Any]]:
    """Yield the evaluations on minimal pairs: each of the final model, and each of the checkpoints."""
    parents = (request.out / "checkpoints", request.run / "words")
    kept = [path.name for parent in parents for path in words_folders(parent)]
    marks = kept if is_finished(request.run) else [f"{mark // MILLION}M" for mark in marks_up_to(pace.words)]
    for kind, of_kind in paradigms.items():
        what = f"{_num_pairs(of_kind):,} pairs"
        minutes = row_tokens(of_kind, tokens_per_word) / (_TRAINING_COST * pace.tokens_per_minute)
        yield _step(kind, what, minutes=minutes, finished=_has_metrics(request.out / kind / "final"))
        if marks:
            part = first_pairs(of_kind, request.entry.checkpoint_pairs)
            waiting = [mark for mark in marks if not _has_metrics(request.out / kind / mark)]
            what = f"{_num_pairs(part):,} pairs of each of {len(marks)} checkpoints"
            minutes = len(waiting) * row_tokens(part, tokens_per_word) / (_TRAINING_COST * pace.tokens_per_minute)
            yield _step(f"{kind}, checkpoints", what, minutes=minutes, finished=not waiting)


def _num_pairs(paradigms: Iterable[Paradigm]) -> int:
    return sum(len(paradigm.pairs) for paradigm in paradigms)


def _task_steps(request: EntryRequest, pace: _Pace) -> Iterator[dict[str, Any]]:
    """Yield the fine-tunings, with the number of epochs that their rows get."""
    seeds = request.entry.glue_seeds
    for task, files in request.glue_tasks():
        subset = make_subset(task, files, (request.entry.glue_rows, None), request.glue_data, write=False)
        rows = subset.rows["train"][0]
        epochs = scheduled(FinetuneSettings(), pace.config, rows).epochs
        minutes = seeds * epochs * rows * _TASK_TOKENS / pace.tokens_per_minute
        what = f"{rows:,} rows, epochs: {epochs}, seeds: {seeds}"
        yield _step(task.name, what, minutes=minutes, finished=is_finished(request.task_run(task)))


def _finished_pace(request: EntryRequest) -> _Pace:
    """Return the pace of a finished pre-training: the mean of its steps."""
    run = read_run(request.run)
    settings, result = PretrainSettings.model_validate(run.record["settings"]), run.record["result"]
    config = system_config(settings.system, settings.size, _vocab_size(request))
    speed = 60 * run.speed.tokens_per_second if run.speed else 1.0
    return _Pace(settings.size, config, result.get("words") or 0, 0.0, speed, "the speed of the pre-training")


def _measured_pace(request: EntryRequest, corpus: Path) -> _Pace:
    """Return the pace by trial steps on the corpus; InputError where the run cannot fit."""
    settings, numerics = settings_of_entry(request, corpus)
    plan = plan_pretraining(settings, corpus=corpus, out=request.run, numerics=numerics)
    config = system_config(settings.system, settings.size, read_manifest(corpus).vocab_size)
    is_begun = bool(run_record(request.run))
    left = max(0.0, 1 - read_run(request.run).steps_done / plan["steps"]) if is_begun else 1.0
    speed = 60 * plan["tokens"] / plan["seconds"]["training"]
    return _Pace(settings.size, config, plan["words"], 60 * left * plan["hours"], speed, "trial steps")


def _expected_pace(request: EntryRequest, words: int, tokens: float) -> _Pace:
    """Return the pace by the FLOP/s of this machine, at the utilisation that `pretrain` expects."""
    before, entry = request.settings, request.entry
    numerics = resolve_numerics(before.precision, threads=before.threads, device=before.device)
    budget = Budget(round(tokens), entry.vocab_size, UTILISATION * numerics.peak_flops, words / tokens)
    typed = typed_settings(request, words, entry.held_out, trained=words * (1 - entry.held_out))
    settings, _ = choose_for_budget(typed, budget)
    config = system_config(settings.system, settings.size, entry.vocab_size)
    minute = settings.model_copy(update={"words": None, "epochs": None, "minutes": 1.0})
    speed = budget.tokens(minute, layer_weights(config), config.hidden)
    seen, source = round(words * entry.passes), "its FLOP/s alone: no step is timed before the corpus is built"
    return _Pace(settings.size, config, seen, entry.passes * tokens / speed, speed, source)


def _size(corpus: Path) -> tuple[int, float]:
    """Return the words and tokens of a corpus."""
    manifest = read_manifest(corpus)
    return manifest.words or 0, float(manifest.tokens)


def _has_metrics(folder: Path) -> bool:
    return (folder / "metrics.json").is_file()

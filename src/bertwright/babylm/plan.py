"""request of an entry → its steps, and how long each takes on this machine; nothing is computed or written."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bertwright.babylm.measures import first_pairs
from bertwright.babylm.request import EntryRequest, check_request
from bertwright.babylm.run import RESULTS, typed_settings
from bertwright.console import table_lines
from bertwright.corpus.manifest import MANIFEST, read_manifest
from bertwright.experiments.data import make_subset
from bertwright.files import read_object
from bertwright.model.system import system_config
from bertwright.pretraining.choose import UTILISATION, Budget, choose_for_budget, layer_weights
from bertwright.pretraining.exposure import marks_up_to
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports.runs import duration
from bertwright.scoring.pairs import Paradigm
from bertwright.text.word_counts import MILLION, words_text
from bertwright.training.hardware import resolve_numerics

_TOKENS_PER_WORD: Final = 1.35
"""Number of tokens of a word, where the corpus is not built: English text with 8,000 pieces."""
_PAIR_WORDS: Final = 7.5
"""Number of words of a sentence of BLiMP, on average."""
_TASK_TOKENS: Final = 64
"""Number of tokens of a row of GLUE, approximately."""
_TASK_EPOCHS: Final = 3
_TEXT_WORDS_A_SECOND: Final = 100_000
"""Number of words of text that are counted, learned from and tokenised in a second, approximately."""


def plan_entry(request: EntryRequest) -> dict[str, Any]:
    """Return the steps of an entry with their state and estimated minutes, and a text. InputError as `run_entry`.

    The minutes are computed from FLOP/s that are measured here, at the utilisation that `pretrain` expects. The words
    of the text are not counted: a budget beyond the text is refused when the entry is made.
    """
    paradigms = check_request(request)
    steps = list(_steps(request, paradigms))
    minutes = sum(step["minutes"] for step in steps if not step["finished"])
    rows = [("step", "what", "about")]
    rows += [
        (step["step"], step["what"], "finished" if step["finished"] else duration(60 * step["minutes"]))
        for step in steps
    ]
    lines = [*table_lines(rows, left=2), f"in all about {duration(60 * minutes)} on this machine"]
    return {"steps": steps, "minutes": minutes, "text": "\n".join(lines)}


def _steps(request: EntryRequest, paradigms: Mapping[str, list[Paradigm]]) -> Iterator[dict[str, Any]]:
    """Yield {"step", "what", "minutes", "finished"} of each step."""

    def step(name: str, what: str, minutes: float, *, finished: bool = False) -> dict[str, Any]:
        return {"step": name, "what": what, "minutes": minutes, "finished": finished}

    entry, corpus = request.entry, request.built_corpus or request.out / "corpus"
    is_built = (corpus / MANIFEST).is_file()
    words, tokens = _size(corpus) if is_built else (entry.text_words, _TOKENS_PER_WORD * entry.text_words)
    what = f"{words_text(words)} words of text, {entry.vocab_size:,} pieces"
    yield step("corpus", what, words / _TEXT_WORDS_A_SECOND / 60, finished=is_built)
    settings, per_minute = _speed(request, words, tokens)
    seen = round(words * entry.passes)
    is_trained = _is_finished(request.run)
    what = f"{settings.size}, {words_text(seen)} words seen"
    yield step("pre-training", what, entry.passes * tokens / per_minute, finished=is_trained)
    kept = sorted(path.name for path in request.out.glob("checkpoints/*"))
    marks = kept if is_trained else [f"{mark // MILLION}M" for mark in marks_up_to(seen)]
    tokens_a_sentence = _PAIR_WORDS * tokens / words
    for kind, of_kind in paradigms.items():
        final = sum(len(each.pairs) for each in of_kind)
        part = sum(len(each.pairs) for each in first_pairs(of_kind, entry.checkpoint_pairs))
        # Each token of both sentences is masked in a row of its own; there is no backward pass.
        minutes = 2 * tokens_a_sentence * (tokens_a_sentence + 2) / per_minute / 3
        yield step(kind, f"{final:,} pairs", final * minutes, finished=_has(request.out / kind / "final"))
        if marks:
            done = [_has(request.out / kind / mark) for mark in marks]
            what = f"{part:,} pairs of each of {len(marks)} checkpoints"
            yield step(f"{kind}, checkpoints", what, len(marks) * part * minutes, finished=all(done))
    for task, files in request.glue_tasks():
        subset = make_subset(task, files, (entry.glue_rows, None), request.out / "glue" / "data", write=False)
        rows = subset.rows["train"][0]
        minutes = entry.glue_seeds * _TASK_EPOCHS * rows * _TASK_TOKENS / per_minute
        finished = _is_finished(request.out / "glue" / task.name)
        yield step(task.name, f"{rows:,} rows, seeds: {entry.glue_seeds}", minutes, finished=finished)
    yield step("model card", "budgets and measurements", 0.0, finished=(request.out / RESULTS).is_file())


def _speed(request: EntryRequest, words: int, tokens: float) -> tuple[PretrainSettings, float]:
    """Return the settings of the pre-training, and the tokens that a minute of training reads on this machine."""
    before = request.settings
    numerics = resolve_numerics(before.precision, threads=before.threads, device=before.device)
    vocabulary, entry = request.entry.vocab_size, request.entry
    budget = Budget(round(tokens), vocabulary, UTILISATION * numerics.peak_flops, words / tokens)
    typed = typed_settings(request, words, entry.held_out)
    settings, _ = choose_for_budget(typed, budget)
    config = system_config(settings.system, settings.size, vocabulary)
    minute = settings.model_copy(update={"words": None, "epochs": None, "minutes": 1.0})
    return settings, budget.tokens(minute, layer_weights(config), config.hidden)


def _size(corpus: Path) -> tuple[int, float]:
    """Return the words and tokens of a corpus."""
    manifest = read_manifest(corpus)
    return manifest.words or 0, float(manifest.tokens)


def _is_finished(run: Path) -> bool:
    path = run / "run.json"
    return path.is_file() and bool(read_object(path).get("finished"))


def _has(folder: Path) -> bool:
    return (folder / "metrics.json").is_file()

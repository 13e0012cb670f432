"""texts → vocabulary → corpus → encoder and checkpoints → minimal pairs → GLUE → curve and model card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertwright.babylm.measures import STOPPED, fine_tune, measure_pairs
from bertwright.babylm.request import EntryRequest, check_request, opened
from bertwright.babylm.results import budget_of, draw_learning_curve, entry_text, learning_curve, write_model
from bertwright.babylm.text import draw_text, make_corpus
from bertwright.console import say
from bertwright.corpus.manifest import read_manifest
from bertwright.errors import Stopped
from bertwright.files import read_object, write_json
from bertwright.pretraining.choose import plain_settings
from bertwright.pretraining.held_out import held_out_fraction
from bertwright.pretraining.run import pretrain
from bertwright.reports.report import with_pages
from bertwright.text.word_counts import MILLION

RESULTS = "results.json"


def run_entry(request: EntryRequest) -> dict[str, Any]:
    """Make or continue an entry in its folder; return its budget, all measurements and a text for people.

    The same request continues where it was stopped, and finished steps are not repeated. Raises InputError for bad
    input, before the folder is made where the text shows it, and Stopped where a person stops it.
    """
    paradigms = check_request(request)
    drawn = draw_text(request)
    with opened(request):
        say("[1/5] vocabulary and corpus")
        corpus = make_corpus(request, drawn)
        say("[2/5] pre-training")
        _pre_train(request, corpus)
        checkpoints = _checkpoints(request)
        results: dict[str, Any] = {"out": str(request.out), "budget": budget_of(request, corpus)}
        write_model(request, results)
        model = request.run / "model"
        say("[3/5] minimal pairs")
        results |= measure_pairs(request, model, checkpoints, paradigms)
        say("[4/5] GLUE")
        results["glue"] = fine_tune(request, model)
        say("[5/5] curve and model card")
        results["curve"] = learning_curve(request, results["checkpoints"])
        draw_learning_curve(request.out / "curve.png", results["curve"])
        write_json(request.out / RESULTS, results)
        write_model(request, results)
    return {**results, "text": entry_text(request, results)}


def typed_settings(request: EntryRequest, words: int, share: float) -> dict[str, Any]:
    """Return the typed settings of a pre-training with the budget of the entry.

    words: number of words of the text; share: fraction of its documents that is kept for validation. An epoch of
    next-sentence prediction has more words than the text, so that its budget is the number of words.
    """
    passes = request.entry.passes
    typed = {**request.typed, "held_out_share": share}
    if typed["examples"]["second_sentence"] == "next":
        return {**typed, "words": round(words * passes), "checkpoints_by_words": words * passes >= MILLION}
    return {**typed, "epochs": passes, "checkpoints_by_words": words * passes * (1 - share) >= MILLION}


def _pre_train(request: EntryRequest, corpus: Path) -> None:
    """Pre-train, or continue, or return at once where the run has finished."""
    path = request.run / "run.json"
    if path.is_file() and read_object(path).get("finished"):
        return
    share = held_out_fraction([corpus], request.entry.held_out)
    typed = typed_settings(request, read_manifest(corpus).words or 0, share)
    if not typed["checkpoints_by_words"]:
        say("the run sees fewer than a million words, so that no checkpoints by words are kept")
    settings, numerics = plain_settings(typed, corpus={corpus: 1.0}, out=request.run, resume=True)
    start: Any = {"resume": True, "allow_other_numerics": request.allow_other_numerics, "numerics": numerics}
    result = pretrain(settings, corpus=corpus, out=request.run, **start)
    if result["stopped"] or result.get("signalled"):
        raise Stopped(STOPPED)
    with_pages(result, request.run)


def _checkpoints(request: EntryRequest) -> Mapping[str, Path]:
    """Return the model folders after 1M, 2M, … words, which the finished run gives to the entry."""
    source, target = request.run / "words", request.out / "checkpoints"
    if source.is_dir() and not target.exists():
        source.rename(target)
    folders = target.iterdir() if target.is_dir() else ()
    return {folder.name: folder for folder in sorted(folders, key=lambda folder: int(folder.name.rstrip("M")))}

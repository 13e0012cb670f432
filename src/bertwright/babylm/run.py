"""texts → vocabulary → corpus → encoder and checkpoints → minimal pairs → GLUE → curve and model card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.babylm.measures import STOPPED, check_glue, fine_tune, measure_pairs
from bertwright.babylm.request import EntryRequest, check_request, opened
from bertwright.babylm.results import (
    CURVE,
    RESULTS,
    budget_of,
    draw_learning_curve,
    entry_text,
    learning_curve,
    with_earlier,
    write_model,
)
from bertwright.babylm.text import draw_text, make_corpus
from bertwright.console import say
from bertwright.corpus.shards import Corpus
from bertwright.errors import Stopped
from bertwright.files import write_json
from bertwright.objectives.dataset import used_documents
from bertwright.pretraining.choose import plain_settings
from bertwright.pretraining.held_out import held_out_fraction
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.snapshots import words_folders
from bertwright.reports.report import REPORT, try_report, with_pages
from bertwright.text.word_counts import MILLION
from bertwright.training.hardware import Numerics
from bertwright.training.run_files import run_record


def run_entry(request: EntryRequest) -> dict[str, Any]:
    """Make or continue an entry in its folder; return its budget, all measurements and a text for people.

    The same request continues where it was stopped, and finished steps are not repeated. Raises InputError for bad
    input, before the folder is made or changed, and Stopped where a person stops it.
    """
    paradigms = check_request(request)
    check_glue(request)
    drawn = draw_text(request)
    with opened(request):
        say("[1/5] vocabulary and corpus")
        corpus = make_corpus(request, drawn)
        say("[2/5] pre-training")
        _pre_train(request, corpus)
        checkpoints = _checkpoints(request)
        results: dict[str, Any] = {"out": str(request.out), "budget": budget_of(request, corpus)}
        if not (request.out / "model").is_dir():  # the card of a finished entry keeps its measurements meanwhile
            write_model(request, results)
        model = request.run / "model"
        say("[3/5] minimal pairs")
        results |= with_earlier(request, measure_pairs(request, model, checkpoints, paradigms))
        say("[4/5] GLUE")
        results["glue"] = fine_tune(request, model)
        say("[5/5] curve and model card")
        results["curve"] = learning_curve(request, results)
        draw_learning_curve(request.out / CURVE, results["curve"])
        write_json(request.out / RESULTS, results)
        write_model(request, results)
        if request.pairs:
            try_report(request.run)
    return {**results, "text": entry_text(request, results)}


def typed_settings(request: EntryRequest, words: int, share: float, *, trained: float) -> dict[str, Any]:
    """Return the typed settings of a pre-training with the budget of the entry.

    words: number of words of the text; share: fraction of its documents that is kept for validation; trained: number of
    words of the documents that are trained on. An epoch of next-sentence prediction has more words than the text, so
    that its budget is the number of words.
    """
    passes = request.entry.passes
    typed = {**request.typed, "held_out_share": share}
    if typed["examples"]["second_sentence"] == "next":
        return {**typed, "words": round(words * passes), "checkpoints_by_words": words * passes >= MILLION}
    return {**typed, "epochs": passes, "checkpoints_by_words": trained * passes >= MILLION}


def training_words(corpus: Corpus, share: float) -> float:
    """Return the number of words that an epoch without a second sentence reads: validation and copies are left out.

    share: fraction of the documents that is kept for validation. The words of a document are in proportion to its
    tokens, as in `Exposure`.
    """
    documents = used_documents(corpus, part="train", held_out_share=share)
    first, ends = corpus.document_first(), np.concatenate([[0], np.cumsum(corpus.sentence_lengths(), dtype=np.int64)])
    tokens = int((ends[first[documents + 1]] - ends[first[documents]]).sum())
    return (corpus.manifest.words or 0) * tokens / corpus.num_tokens


def settings_of_entry(request: EntryRequest, corpus: Path) -> tuple[PretrainSettings, Numerics | None]:
    """Return the settings of the pre-training on a corpus, and the numerics; see `plain_settings`."""
    opened_corpus, share = Corpus.open(corpus), held_out_fraction([corpus], request.entry.held_out)
    words, trained = opened_corpus.manifest.words or 0, training_words(opened_corpus, share)
    typed = typed_settings(request, words, share, trained=trained)
    return plain_settings(typed, corpus={corpus: 1.0}, out=request.run, resume=True)


def _pre_train(request: EntryRequest, corpus: Path) -> None:
    """Pre-train, or continue; a finished run only gets the report that a stop may have left out."""
    record = run_record(request.run)
    if record.get("finished"):
        if not (request.run / REPORT).is_file():
            with_pages(record["result"], request.run)
        return
    settings, numerics = settings_of_entry(request, corpus)
    if not settings.checkpoints_by_words:
        say("the run sees fewer than a million words, so that no checkpoints by words are kept")
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
    return {folder.name: folder for folder in words_folders(target)}

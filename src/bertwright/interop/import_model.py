"""a checkpoint of any known format → model folder: recognised by what lies there, checked whole, written once."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError, MissingExtra
from bertwright.files import refuse_unwritable
from bertwright.interop import google, huggingface, openai
from bertwright.interop.checkpoint import Foreign, check_whole, write_foreign
from bertwright.model.config import need_segments
from bertwright.tasks.classification.spec import CLASSIFY, MULTILABEL, REGRESS, with_columns, with_labels
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.spec import SQUAD1, SQUAD2, SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.spec import tagger_of, with_tag_columns

SPANS = {task.name: task for task in (SQUAD1, SQUAD2)}
"""What a model of spans may be for: its files do not say it."""

_HUB = "hub:"
_WANTED = ("*.json", "*.txt", "*.safetensors", "*.sha256", "pytorch_model*.bin", "*.model", "*.bpe", "*.npy")
"""What is downloaded of a model of the Hub: no weights of other frameworks."""


def import_model(
    source: str,
    out: Path,
    *,
    cased: bool | None = None,
    labels: Sequence[str] = (),
    text: Sequence[str] = (),
    task: str | None = None,
) -> dict[str, Any]:
    """Make the model folder `out` of a checkpoint, a BERT's or a GPT-1's; returns what was found.

    source: a folder, the prefix of one of Google's checkpoints, or hub:NAME. labels: names for a classifier's outputs,
    where its files hold none. text: how many columns, and which, a classifier answers. task: squad1 or squad2, what a
    model of spans answers; squad1 where nothing is said.
    """
    if out.exists():
        raise InputError(f"{out}: exists already; name another folder or remove it")
    refuse_unwritable(out, "--out", is_folder=True)
    if not source:
        raise InputError("the checkpoint has no name: a folder, the prefix of one of Google's, or hub:NAME is due")
    with _on_disk(source) as place:
        if openai.recognises(place):
            if cased is not None or labels or text or task:
                raise InputError(f"{source}: is a GPT-1: its text is lower-cased; it has no labels, columns or task")
            return _told({**openai.import_gpt(place, out), "model": str(out)})
        foreign = _read(place, source, cased=cased)
        foreign = with_task(with_names(foreign, labels), text, task)
        write_foreign(foreign, out)
    result = {
        "found": foreign.found,
        "architecture": foreign.architecture,
        "layers": foreign.config.layers,
        "hidden": foreign.config.hidden,
        "heads": foreign.config.heads,
        "vocabulary": foreign.tokenizer.vocab_size,
        "cased": foreign.tokenizer.cased,
        "labels": list(foreign.labels),
        "task": foreign.extra["task"].get("name", "") if "task" in foreign.extra else "",
        "parameters": sum(tensor.numel() for tensor in foreign.weights.values()),
        "left_out": list(foreign.left_out),
        "model": str(out),
    }
    return _told(result)


def _told(result: dict[str, Any]) -> dict[str, Any]:
    """The result with its lines for a person, where hundreds of an optimiser's moments are a number."""
    out, names = result["left_out"], ", ".join(result["left_out"][:3])
    shown = {
        "left_out": f"{len(out)} tensors that are no weights: {names}{', …' if len(out) > 3 else ''}" if out else "",
        "labels": ", ".join(result.get("labels", ())),
    }
    lines = {name: shown.get(name, value) for name, value in result.items()}
    return {**result, "text": "\n".join(f"{name:14}{value}" for name, value in lines.items() if value != "")}


def with_names(foreign: Foreign, labels: Sequence[str]) -> Foreign:
    """The checkpoint with label names: those given, its own, or LABEL_0, LABEL_1, … as transformers has them."""
    if foreign.architecture not in ("BertForSequenceClassification", "BertForTokenClassification"):
        if labels:
            raise InputError(f"{foreign.place}: is a {foreign.architecture}, which has no labels to name")
        return foreign
    check_whole(foreign)
    classes = len(foreign.weights["classifier.linear.weight"])
    if labels and (len(labels) != classes or len(set(labels)) != classes):
        raise InputError(
            f"{len(labels)} labels ({', '.join(labels)}) for {classes} outputs; one different name for each"
        )
    if any(not label.strip() or not label.isprintable() for label in labels):
        raise InputError(f"--label {', '.join(map(repr, labels))}: a label is a text in one line")
    if not labels and any(not label.strip() for label in foreign.labels):
        raise InputError(f"{foreign.place}: one of its labels is empty; name them (--label)")
    if not labels and len(set(foreign.labels)) != len(foreign.labels):
        raise InputError(
            f"{foreign.place}: its labels are {', '.join(foreign.labels)}; name each differently (--label)"
        )
    if own := _noted_labels(foreign):
        if labels and tuple(labels) != own:
            raise InputError(
                f"--label {', '.join(labels)}: {foreign.place} was fine-tuned by bertwright for the labels "
                f"{', '.join(own)}; leave the option out"
            )
        return replace(foreign, labels=foreign.labels or own)
    names = tuple(labels) or foreign.labels or tuple(f"LABEL_{index}" for index in range(classes))
    return replace(foreign, labels=names)


def _noted_labels(foreign: Foreign) -> tuple[str, ...]:
    """Those of the task that a folder of ours notes; InputError for a note that is none."""
    noted = foreign.extra.get("task")
    if noted is None:
        return ()
    labels = noted.get("labels", ()) if isinstance(noted, dict) else None
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"{foreign.place}: config.json notes a task that is not known here: {noted!r}")
    return tuple(labels)


def with_task(foreign: Foreign, text: Sequence[str], task: str | None = None) -> Foreign:
    """The checkpoint with the note that lets `predict` and `evaluate` answer with it; a folder of ours has its own."""
    is_span, is_choice = (foreign.architecture == f"BertFor{kind}" for kind in ("QuestionAnswering", "MultipleChoice"))
    if task and (not is_span or "task" in foreign.extra):
        raise InputError(f"{foreign.place}: --task is for models of spans that do not know their task yet")
    if is_span or is_choice or len(text) > 1:
        need_segments(foreign.config, foreign.place)
    if "task" not in foreign.extra and not text and (is_span or is_choice):
        if is_span and not task:
            say("taken for a model of SQuAD 1.1, which answers every question; of 2.0 it would be with --task squad2")
        return _noted(foreign, SPANS[task or SQUAD1.name] if is_span else SWAG)
    is_tagger = foreign.architecture == "BertForTokenClassification"
    if "task" in foreign.extra or not (is_tagger or foreign.architecture == "BertForSequenceClassification"):
        if text:
            raise InputError(f"{foreign.place}: --text-column is for classifiers that do not know their columns yet")
        return foreign
    if is_tagger:
        return _noted(foreign, with_tag_columns(tagger_of(foreign.labels), text=text))
    one_number = REGRESS if len(foreign.labels) == 1 else CLASSIFY
    chosen = with_columns(MULTILABEL if foreign.multi_label else one_number, text=text)
    if chosen.kind == "regression":
        return _noted(foreign, chosen.model_copy(update={"standardise": False}))
    return _noted(foreign, with_labels(chosen, foreign.labels))


def _noted(foreign: Foreign, task: TaskSpec) -> Foreign:
    most = foreign.config.max_positions  # a window of a passage is as long as it was learned with; texts are not cut
    length = min(task.max_length, most) if isinstance(task, SpanTask) else most
    noted = {"task": task.model_dump(mode="json"), "max_length": length}
    return replace(foreign, extra={**foreign.extra, **noted})


def _read(place: Path, source: str, *, cased: bool | None) -> Foreign:
    if place.is_dir() and huggingface.recognises(place):
        return huggingface.read_huggingface(place, cased=cased)
    if google.recognises(place):
        return google.read_google(place, cased=cased)
    if not place.exists():
        raise InputError(f"{source}: there is no such folder; a model of the Hugging Face Hub is written hub:NAME")
    raise InputError(
        f"{source}: no checkpoint of a known format: no config.json (Hugging Face), no bert_config.json (Google), "
        "no params_shapes.json (OpenAI)"
    )


@contextmanager
def _on_disk(source: str) -> Iterator[Path]:
    """The source as a path; a model of the Hub is downloaded into its own cache."""
    if not source.startswith(_HUB):
        yield Path(source)
        return
    name, _, revision = source.removeprefix(_HUB).partition("@")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        raise MissingExtra("hub", f"reading {source}") from None
    with tempfile.TemporaryDirectory() as place:
        try:
            found = snapshot_download(name, revision=revision or None, local_dir=place, allow_patterns=list(_WANTED))
        except RepositoryNotFoundError:
            raise InputError(f"{source}: the Hub has no such model, or it needs a token (HF_TOKEN)") from None
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise InputError(f"{source}: cannot be fetched: {str(error).splitlines()[0]}") from None
        yield Path(found)

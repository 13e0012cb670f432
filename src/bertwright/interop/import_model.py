"""a checkpoint of any known format → model folder. The files decide the format; all is checked before it is written."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.console import say
from bertwright.errors import InputError, MissingExtra
from bertwright.interop import google, huggingface, openai
from bertwright.interop.checkpoint import ForeignCheckpoint, check_complete, write_checkpoint
from bertwright.model.config import need_segments
from bertwright.model.hf_weights import num_parameters
from bertwright.model.vector_head import VectorHead
from bertwright.output_paths import refuse_existing
from bertwright.tasks.classification.spec import CLASSIFY, MULTILABEL, REGRESS, with_columns, with_labels
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.spec import SQUAD1, SQUAD2, SpanTask
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.entities import scheme_of_labels, usual_spelling
from bertwright.tasks.tagging.spec import tagger_of, with_tag_columns
from bertwright.text.parquet import first_line

_SPAN_TASKS = {task.name: task for task in (SQUAD1, SQUAD2)}
"""Tasks that a model of spans may be for; its files do not name the task."""

_HUB = "hub:"
_DOWNLOADED = ["*.json", "*.txt", "*.safetensors", "*.sha256", "*pytorch_model*.bin", "*.model", "*.bpe", "*.npy"]
"""Files that are downloaded of a model of the Hub: no weights of other frameworks."""


def import_model(
    source: str,
    out: Path,
    *,
    cased: bool | None = None,
    labels: Sequence[str] = (),
    text: Sequence[str] = (),
    task: str | None = None,
    as_wordpiece: bool = False,
) -> dict[str, Any]:
    """Make the model folder `out` from the checkpoint of a BERT or a GPT-1; return its description.

    source        a folder, the prefix of a checkpoint in Google's format, or hub:NAME
    labels        names for the outputs of a classifier, in place of those in its files
    text          columns of a table that a classifier reads
    task          squad1 or squad2 for a model of spans; None is squad1
    as_wordpiece  True to read a vocabulary of another convention, or of another tokenizer, as WordPiece
    """
    refuse_existing(out)
    if not source:
        raise InputError("the checkpoint has no name: expected a folder, the prefix of Google's files, or hub:NAME")
    with _on_disk(source) as path:
        if openai.is_gpt1(path):
            if cased is not None or labels or text or task or as_wordpiece:
                raise InputError(
                    f"{source}: is a GPT-1: its text is lower-cased and split into byte pairs; it has no labels, "
                    "columns or task. Leave these options out"
                )
            foreign = openai.read_gpt(path)
        else:
            foreign = _read(path, source, cased=cased, as_wordpiece=as_wordpiece, reads_labels=not labels)
            foreign = _with_task(_with_label_names(foreign, labels), text, task)
        write_checkpoint(foreign, out)
    result = {
        "found": foreign.layout,
        "architecture": foreign.architecture,
        "layers": foreign.config.layers,
        "hidden": foreign.config.hidden,
        "heads": foreign.config.heads,
        "vocabulary": foreign.tokenizer.vocab_size,
        "cased": foreign.tokenizer.cased,
        "labels": list(foreign.labels),
        "task": foreign.extra["task"].get("name", "") if "task" in foreign.extra else "",
        "vectors": _described(foreign.vectors) if foreign.vectors else "",
        "parameters": num_parameters(foreign.weights),
        "left_out": list(foreign.left_out),
        "model": str(out),
    }
    return {**result, "text": _as_lines(result)}


def _described(head: VectorHead) -> str:
    """Return the computation of vectors in words, such as "mean, normalised, 384 components, 256 tokens"."""
    settings = head.settings
    parts = [" and ".join(settings.pooling) + " with weights of pieces" * bool(settings.piece_weights)]
    parts += [f"{layer.activation} to {layer.outputs}" for layer in settings.dense]
    parts += ["normalised"] * settings.normalize
    parts += [f"{settings.width or settings.size(head.hidden)} components"]
    parts += [f"{settings.max_length} tokens"] if settings.max_length else []
    prompts = [name for name, text in settings.prompts.items() if text]
    return ", ".join([*parts, *([f"prompts: {' '.join(prompts)}"] if prompts else [])])


def _as_lines(result: dict[str, Any]) -> str:
    """Return the result as lines for a person; of left-out tensors, which may be hundreds, three are named."""
    left_out, names = result["left_out"], ", ".join(result["left_out"][:3])
    more = ", …" if len(left_out) > 3 else ""
    shown = result | {
        "left_out": f"{len(left_out)} tensors that are no weights: {names}{more}" if left_out else "",
        "labels": ", ".join(result["labels"]),
    }
    return "\n".join(f"{name:14}{value}" for name, value in shown.items() if value != "")


def _with_label_names(foreign: ForeignCheckpoint, labels: Sequence[str]) -> ForeignCheckpoint:
    """Return the checkpoint with label names: `labels`, its own, or LABEL_0, LABEL_1, … as in transformers."""
    noted = _noted_labels(foreign)
    if foreign.architecture not in ("BertForSequenceClassification", "BertForTokenClassification"):
        if labels:
            raise InputError(f"{foreign.source}: is a {foreign.architecture}, which has no labels to name")
        return foreign
    check_complete(foreign)
    classes = len(foreign.weights["classifier.linear.weight"])
    if labels and (len(labels) != classes or len(set(labels)) != classes):
        raise InputError(
            f"--label: {len(labels)} labels ({', '.join(labels)}) for {classes} outputs; give each output a different "
            "name"
        )
    if any(not label.strip() or not label.isprintable() for label in labels):
        raise InputError(f"--label {', '.join(map(repr, labels))}: expected printable texts of one line, not empty")
    if not labels:
        _refuse_labels(foreign.labels, foreign.source)
    if noted:
        if labels and tuple(labels) != noted:
            raise InputError(
                f"--label {', '.join(labels)}: {foreign.source} was fine-tuned by bertwright for the labels "
                f"{', '.join(noted)}; leave the option out"
            )
        return replace(foreign, labels=foreign.labels or noted)
    names = tuple(labels) or foreign.labels or tuple(f"LABEL_{index}" for index in range(classes))
    return replace(foreign, labels=names)


def _refuse_labels(labels: Sequence[str], source: str) -> None:
    """Raise InputError for label names of the files that are empty or alike."""
    for index, label in enumerate(labels):
        if not label.strip():
            raise InputError(f"{source}: the label of output {index} is empty: {label!r}; name each output (--label)")
        if label in labels[:index]:
            raise InputError(
                f"{source}: the outputs {labels.index(label)} and {index} have the same label {label!r}; name each "
                "differently (--label)"
            )


def _noted_labels(foreign: ForeignCheckpoint) -> tuple[str, ...]:
    """Return the labels of the task that a folder of bertwright notes. Raises InputError for an unknown note."""
    noted = foreign.extra.get("task")
    if noted is None:
        return ()
    labels = noted.get("labels", ()) if isinstance(noted, dict) else None
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"{foreign.source}: config.json notes a task that is not known here: {noted!r}")
    return tuple(labels)


def _with_task(foreign: ForeignCheckpoint, text: Sequence[str], task: str | None) -> ForeignCheckpoint:
    """Return the checkpoint with the note of its task, which `predict` and `evaluate` read.

    A folder of bertwright keeps its own note.
    """
    is_span = foreign.architecture == "BertForQuestionAnswering"
    is_choice = foreign.architecture == "BertForMultipleChoice"
    is_tagger = foreign.architecture == "BertForTokenClassification"
    is_classifier = foreign.architecture == "BertForSequenceClassification"
    is_noted = "task" in foreign.extra
    if task and (is_noted or not is_span):
        raise InputError(f"{foreign.source}: --task is for models of spans without a noted task; leave it out")
    if is_span or is_choice or len(text) > 1:
        need_segments(foreign.config, foreign.source)
    if text and (is_noted or not (is_tagger or is_classifier)):
        raise InputError(f"{foreign.source}: --text-column is for classifiers without noted columns; leave it out")
    if is_noted:
        return foreign
    if is_span:
        if not task:
            say("taken for a model of SQuAD 1.1, which answers every question; for SQuAD 2.0 give --task squad2")
        return _with_note(foreign, _SPAN_TASKS[task or SQUAD1.name])
    if is_choice:
        return _with_note(foreign, SWAG)
    if is_tagger:
        foreign = replace(foreign, labels=_tagger_labels(foreign))
        return _with_note(foreign, with_tag_columns(tagger_of(foreign.labels), text=text))
    if not is_classifier:
        return foreign
    one_answer = REGRESS if len(foreign.labels) == 1 else CLASSIFY
    classifier = with_columns(MULTILABEL if foreign.multi_label else one_answer, text=text)
    if classifier.kind == "regression":
        return _with_note(foreign, classifier.model_copy(update={"standardise": False}))
    return _with_note(foreign, with_labels(classifier, foreign.labels))


def _tagger_labels(foreign: ForeignCheckpoint) -> tuple[str, ...]:
    """Return the labels of a tagger; those of an entity scheme of other tools are spelled as IOB or IOBES."""
    usual = usual_spelling(foreign.labels) or {}
    labels = tuple(usual.get(label, label) for label in foreign.labels)
    if labels == foreign.labels or len(set(labels)) < len(labels) or scheme_of_labels(labels) == "plain":
        return foreign.labels
    say(f"{foreign.source}: its labels {', '.join(foreign.labels)} are written as {', '.join(labels)}")
    return labels


def _with_note(foreign: ForeignCheckpoint, task: TaskSpec) -> ForeignCheckpoint:
    positions = foreign.config.max_positions  # windows of a passage keep the length of training; texts are not cut
    length = min(task.max_length, positions) if isinstance(task, SpanTask) else positions
    note = {"task": task.model_dump(mode="json"), "max_length": length}
    return replace(foreign, extra={**foreign.extra, **note})


def _read(path: Path, source: str, *, cased: bool | None, as_wordpiece: bool, reads_labels: bool) -> ForeignCheckpoint:
    if path.is_dir() and huggingface.is_huggingface_folder(path):
        return huggingface.read_huggingface(path, cased=cased, as_wordpiece=as_wordpiece, reads_labels=reads_labels)
    if google.is_google_checkpoint(path):
        return google.read_google(path, cased=cased, as_wordpiece=as_wordpiece)
    if not path.exists():
        raise InputError(f"{source}: there is no such folder; for a model of the Hugging Face Hub write hub:NAME")
    raise InputError(
        f"{source}: no checkpoint of a known format: no config.json (Hugging Face), no bert_config.json (Google), "
        "no params_shapes.json (OpenAI)"
    )


@contextmanager
def _on_disk(source: str) -> Iterator[Path]:
    """Yield the path of the source; a model of the Hub is downloaded to a temporary folder."""
    if not source.startswith(_HUB):
        yield Path(source)
        return
    name, _, revision = source.removeprefix(_HUB).partition("@")
    try:  # imported here: only models of the Hub need this extra
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import RepositoryNotFoundError
    except ImportError:
        raise MissingExtra("hub", f"reading {source}") from None
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = snapshot_download(name, revision=revision or None, local_dir=folder, allow_patterns=_DOWNLOADED)
        except RepositoryNotFoundError:
            raise InputError(f"{source}: the Hub has no such model, or the model needs a token (HF_TOKEN)") from None
        except Exception as error:  # the errors of a connection are those of the library below, which may change
            raise InputError(f"{source}: cannot be fetched: {first_line(error)}") from None
        yield Path(path)

"""The commands import, features and export: other people's checkpoints in, states and models for others out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from bertwright.errors import InputError

Result = Mapping[str, Any]
_GIVEN = tyro.conf.arg(help_behavior_hint="")
"""An option whose default stands in its description."""
Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


def import_model(
    source: Positional[str],
    /,
    *,
    out: Path,
    casing: Literal["cased", "uncased"] | None = None,
    label: Several = (),
    text_column: Several = (),
    task: Literal["squad1", "squad2"] | None = None,
) -> Result:
    """Make a model folder of a checkpoint, recognised by what lies there; what cannot be mapped is named and refused.

    Args:
        source: a folder of Google's, Hugging Face's or OpenAI's format; for several checkpoints of Google's in one
            folder, the path of one without .index; or hub:NAME, hub:NAME@REVISION, a model of the Hugging Face Hub.
        out: the model folder to write.
        casing: whether the vocabulary is cased, where its files do not say so (Google's do not).
        label: the name of a classifier's output, once for each in their order, where the files name none.
        text_column: for a classifier: the column of the text that predict reads; twice for a model of pairs.
        task: for a model of spans: squad2 where it may answer that the passage does not tell (default: squad1).
    """
    from bertwright.interop.import_model import import_model as read

    cased = None if casing is None else casing == "cased"
    return read(source, out, cased=cased, labels=label, text=text_column, task=task)


def features(
    *,
    model: str,
    input: str = "-",
    output: Path,
    layers: str = "all",
    pool: Literal["none", "cls", "mean", "max"] = "none",
    max_length: int | None = None,
) -> Result:
    """Write the states of a frozen encoder for every line of a text into one .npz file.

    Without pooling there are hidden_I (layers x tokens x width), tokens_I and offsets_I for line I, counted from 0;
    with it there is one array vectors (lines x layers x width).

    Args:
        model: MODEL: a model folder or a run folder.
        input: a file with a text on every line, or - for standard input.
        output: the .npz file to write.
        layers: all, last, or numbers with commas between: 0 is the embeddings, -1 the last layer.
        pool: one vector for each text: the state of [CLS], the mean or the maximum over its tokens; or none.
        max_length: tokens of a text, the rest is cut (default: as many as the model has positions).
    """
    from bertwright.serving.embeddings import write_features

    if output.is_dir():
        raise InputError(f"--output {output}: is a folder; name a file")
    return write_features(model, input, output, layers=layers, pool=pool, max_length=max_length)


def export_onnx(
    *,
    model: str,
    out: Path,
    int8: bool = False,
    reduce_range: bool = False,
    least_agreement: Annotated[float | None, _GIVEN] = None,
    text: Annotated[Path | None, _GIVEN] = None,
) -> Result:
    """Write a model for ONNX Runtime, compared with PyTorch first: model.onnx, its config.json and its tokenizer.

    Args:
        model: MODEL: a model folder or a run folder.
        out: the folder to write; must be absent.
        int8: write model_quantized.onnx too, whose weights have 8 bits; how far it agrees is measured.
        reduce_range: of int8: 7 bits, for x86 processors without VNNI, on which 8 overflow; done unasked where this
            machine has such a processor.
        least_agreement: of int8: share of equal answers, or cosine of vectors, that is asked for (default: 0.97).
        text: a file with a text on every line to compare on (default: forty built-in sentences).
    """
    from bertwright.interop.onnx import LEAST_AGREEMENT
    from bertwright.interop.onnx import export_onnx as export

    if not int8 and (reduce_range or least_agreement is not None):
        raise InputError("--reduce-range and --least-agreement are of --int8")
    least = LEAST_AGREEMENT if least_agreement is None else least_agreement
    return export(model, out, int8=int8, reduce_range=reduce_range, least_agreement=least, text=text)

"""The commands import and features: other people's checkpoints in, a frozen encoder's states out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from bertwright.errors import InputError

Result = Mapping[str, Any]
Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


def import_model(
    source: Positional[str],
    /,
    *,
    out: Path,
    casing: Literal["cased", "uncased"] | None = None,
    label: Several = (),
    text_column: Several = (),
) -> Result:
    """Make a model folder of a checkpoint, recognised by what lies there; what cannot be mapped is named and refused.

    Args:
        source: a folder of Google's, Hugging Face's or OpenAI's format; for several checkpoints of Google's in one
            folder, the path of one without .index; or hub:NAME, hub:NAME@REVISION, a model of the Hugging Face Hub.
        out: the model folder to write.
        casing: whether the vocabulary is cased, where its files do not say so (Google's do not).
        label: the name of a classifier's output, once for each in their order, where the files name none.
        text_column: for a classifier: the column of the text that predict reads; twice for a model of pairs.
    """
    from bertwright.interop.importing import import_model as read

    cased = None if casing is None else casing == "cased"
    return read(source, out, cased=cased, labels=label, text=text_column)


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
    from bertwright.recipes.features import write_features

    if output.is_dir():
        raise InputError(f"--output {output}: is a folder; name a file")
    return write_features(model, input, output, layers=layers, pool=pool, max_length=max_length)

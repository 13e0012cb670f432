"""The commands import, features, export and push: foreign checkpoints in; states, other formats and models out."""

from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import AsWordPiece, Repeatable
from bertwright.errors import InputError


def import_command(
    source: Positional[str],
    /,
    *,
    out: Path,
    casing: Literal["cased", "uncased"] | None = None,
    label: Repeatable = (),
    text_column: Repeatable = (),
    task: Literal["squad1", "squad2"] | None = None,
    as_wordpiece: AsWordPiece = False,
) -> CommandResult:
    """Convert a checkpoint into a model folder. Its format is recognised by its files; unknown tensors are an error.

    Args:
        source: Folder in Google's, Hugging Face's or OpenAI's format; for several checkpoints of Google's in one
            folder, the path of one without .index; or hub:NAME, hub:NAME@REVISION, a model of the Hugging Face Hub.
        out: Model folder to write.
        casing: Cased or uncased vocabulary, where its files do not say it (Google's do not).
        label: Name of a classifier's output, once for each in their order: in place of those in the files.
        text_column: For a classifier: column of the text that predict reads; twice for a model of pairs.
        task: For a model of spans: squad2 where it may answer that the passage has no answer (default: squad1).
    """
    from bertwright.interop.import_model import import_model

    cased = None if casing is None else casing == "cased"
    return import_model(source, out, cased=cased, labels=label, text=text_column, task=task, as_wordpiece=as_wordpiece)


def push_command(
    model: Positional[str], repository: Positional[str], /, *, private: bool = False, update: bool = False
) -> CommandResult:
    """Upload a model folder with its card to the Hugging Face Hub, into a new repository.

    Args:
        model: MODEL: a model folder or a run folder.
        repository: Repository to create, as USER/NAME or ORGANISATION/NAME.
        private: Make a repository that only you, or your organisation, can read.
        update: Add a commit to a repository that exists.
    """
    from bertwright.interop.push import push_model

    return push_model(model, repository, private=private, update=update)


def features_command(
    *,
    model: str,
    input: str = "-",
    output: Path,
    layers: str | None = None,
    pool: Literal["none", "cls", "mean", "max", "folder"] = "none",
    max_length: int | None = None,
) -> CommandResult:
    """Write the hidden states of a frozen encoder for every line of a text into one .npz file.

    Without pooling the file has hidden_I (layers x tokens x width), tokens_I and offsets_I for line I, counted from 0;
    with pooling it has one array vectors (lines x layers x width), with --pool folder vectors (lines x width).

    Args:
        model: MODEL: a model folder or a run folder.
        input: File with a text on every line, or - for standard input.
        output: .npz file to write.
        layers: Layers: all, last, or numbers with commas between: 0 is the embeddings, -1 the last layer (default: all;
            with --pool folder the last).
        pool: One vector for each text: the state of [CLS], the mean or the maximum over its tokens; or none. With
            folder it is the vector that the model folder describes: prompt, pooling, dense layers, normalisation.
        max_length: Tokens of a text, the rest is cut (default: the positions of the model; with --pool folder what the
            folder names).
    """
    from bertwright.output_paths import refuse_folder
    from bertwright.serving.embeddings import write_features

    refuse_folder(output)
    return write_features(model, input, output, layers=layers, pool=pool, max_length=max_length)


def export_onnx_command(
    *,
    model: str,
    out: Path,
    int8: bool = False,
    reduce_range: bool = False,
    least_agreement: float | None = None,
    text: Path | None = None,
    check_retrieval: Path | None = None,
    least_overlap: float | None = None,
) -> CommandResult:
    """Write a model for ONNX Runtime, compared with PyTorch first: model.onnx, its config.json and its tokenizer.

    Args:
        model: MODEL: a model folder or a run folder.
        out: Folder to write; must be absent.
        int8: Write model_quantized.onnx too, whose weights have 8 bits; its agreement with PyTorch is measured.
        reduce_range: With --int8: 7 bits, for x86 processors without VNNI, on which 8 overflow. It is the default on
            such a processor.
        least_agreement: With --int8: required fraction of equal predictions, or cosine of vectors (default: 0.97).
        text: File with a text on every line to compare on (default: forty built-in sentences).
        check_retrieval: With --int8, for a folder of sentence vectors: folder in BEIR's layout, on which rankings by
            int8 and fp32 vectors are compared; the nDCG@10 may fall by the factor of --least-agreement.
        least_overlap: With --int8, for a folder of sentence vectors: required fraction of the ten nearest texts by fp32
            vectors that int8 vectors find too (default: 0.8).
    """
    from bertwright.interop.onnx import export_onnx

    limits = {"least_agreement": least_agreement, "least_overlap": least_overlap}
    chosen: Any = {name: value for name, value in limits.items() if value is not None}
    if not int8 and (reduce_range or chosen or check_retrieval is not None):
        raise InputError(
            "--reduce-range, --least-agreement, --check-retrieval and --least-overlap need --int8; add it, or leave "
            "them out"
        )
    retrieval: Any = {"check_retrieval": check_retrieval, **chosen}
    return export_onnx(model, out, int8=int8, reduce_range=reduce_range, text=text, **retrieval)


def export_static_command(
    *,
    model: str,
    out: Path,
    width: int | None = None,
    corpus: Path | None = None,
    text: Path | None = None,
) -> CommandResult:
    """Write a table of one vector for each piece, made by the encoder, for model2vec and sentence-transformers.

    The vector of a text is then the mean over its pieces: far faster than the encoder, and less exact. evaluate embed
    measures both.

    Args:
        model: MODEL: a model folder or a run folder.
        out: Folder to write; must be absent.
        width: Number of components of a vector (default: 256, or all where the encoder has fewer).
        corpus: Corpus of the model's tokenizer in which pieces are counted: frequent ones weigh less. Default: the
            order of the vocabulary and Zipf's law.
        text: The same with text, a file or folder as corpus build reads it.
    """
    from bertwright.interop.static import export_static

    return export_static(model, out, width=width, corpus=corpus, text=text)

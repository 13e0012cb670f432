"""Commands: `bertwright corpus build` is `corpus_build_command`. Each takes its options and calls into the package.

Imports that need more than a few milliseconds stand inside the functions, so that --help answers at once.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from bertwright.commands.options import SettingsOptions

CommandResult = Mapping[str, Any]
"""Result of a command: printed line by line, or as one JSON object with --json.

`text` is printed instead of the lines, and `exit_code` is returned instead of 0. Neither is part of the object.
"""

COMMANDS = {
    "quickstart": ("pretraining", "vocabulary, pre-training, fine-tuning and a comparison, in about five minutes"),
    "tokenizer train": ("tokenizers", "learn a vocabulary from text: WordPiece, or byte pairs"),
    "tokenizer import": ("tokenizers", "make a tokenizer of a released vocab.txt"),
    "tokenizer extend": ("tokenizers", "add pieces for another domain's text to a vocabulary"),
    "corpus build": ("corpora", "text → tokenised shards"),
    "corpus merge": ("corpora", "several corpora under one manifest"),
    "corpus inspect": ("corpora", "show the sizes of a corpus and warn of likely problems"),
    "corpus verify": ("corpora", "check every byte of a corpus"),
    "corpus duplicates": ("corpora", "list equal or similar documents of a corpus, or rows of a table"),
    "pretrain": ("pretraining", "shards → encoder: BERT by masked LM and next sentence, or a language model"),
    "join": ("pretraining", "join a left-to-right and a right-to-left model, as ELMo"),
    "runs": ("reports", "list the runs below a folder: progress, speed, metrics"),
    "report": ("reports", "write a page about a run, or about two: curves, metrics, settings"),
    "track": ("reports", "send the metrics of a run to TensorBoard, MLflow, Weights & Biases or trackio"),
    "finetune": ("finetuning", "encoder + labelled table → a model for a task"),
    "distill": ("distillation", "a smaller student that learns the answers of a teacher"),
    "evaluate": ("finetuning", "compute the metrics of a model on a task, or of its pre-training"),
    "predict": ("finetuning", "predict for every row of a table"),
    "submission": ("finetuning", "predict for GLUE's test files, as the zip file that its server takes"),
    "score squad": ("finetuning", "exact match and F1 of a predictions file, as SQuAD's official scripts"),
    "score sentences": ("scoring", "log-likelihoods of sentences, by masked LM or a language model"),
    "generate": ("scoring", "continue a text with a GPT-1, GPT-2 or GPT-BERT"),
    "features": ("interop", "hidden states of a frozen encoder for every line of a text, as .npz"),
    "index": ("search", "vectors of your texts, for search: a folder that texts are added to and removed from"),
    "search": ("search", "the texts of an index that are nearest to a query"),
    "import": ("interop", "a checkpoint in Google's, Hugging Face's or OpenAI's format → a model folder"),
    "export onnx": ("interop", "a model for ONNX Runtime, compared with PyTorch first; with 8 bits on request"),
    "export static": (
        "interop",
        "a table of one vector a piece, which gives vectors of texts without the encoder",
    ),
    "push": ("interop", "upload a model folder to the Hugging Face Hub"),
    "fill": ("pretraining", "predict the pieces behind [MASK]"),
    "next-sentence": ("pretraining", "the probability that B follows A"),
    "serve": ("serving", "serve models over HTTP, with a page to try them"),
    "demo": ("serving", "open that page in your browser with a model of yours"),
    "babylm": ("babylm", "an entry of the BabyLM challenge: vocabulary, corpus, encoder, checkpoints, BLiMP, GLUE"),
    "paper": ("experiments", "the tables and figures of the paper as experiments, each with a page of results"),
    "doctor": ("reports", "check the machine, a model, a corpus or labelled data before a long run"),
    "completion": ("completion", "completion of these commands in bash, zsh or fish"),
}
"""name of a command → its module in `bertwright.commands`, and what it does."""


def load_command(name: str, arguments: Sequence[str] = ()) -> Callable[..., CommandResult]:
    """Import the function of a command, `corpus_build_command` for "corpus build", and prepare it for `parse`.

    arguments: the typed ones. The options of a settings class depend on a --recipe among them.
    """
    command, settings_options = _import_command(name)
    for parameter, mark in settings_options.items():
        command.__annotations__[parameter] = mark.annotation(arguments)
    return command


def _with_tasks(text: str) -> str:
    """Return a help text with the names of the registered tasks in place of {tasks}."""
    if "{tasks}" not in text:
        return text
    from bertwright.tasks.spec import listed_tasks

    return text.replace("{tasks}", listed_tasks())


@cache
def _import_command(name: str) -> tuple[Callable[..., CommandResult], dict[str, "SettingsOptions"]]:
    """Return the function of a command with a readable help, and the marks of its parameters that hold settings.

    tyro would keep the line breaks of the docstring, show "(default: None)" and "(default: False)", and make a second
    option --no-NAME for each switch.
    """
    from tyro.conf import FlagCreatePairsOff, arg  # here, since the list of commands needs no tyro

    from bertwright.commands.options import SettingsOptions

    module = importlib.import_module(f"bertwright.commands.{COMMANDS[name][0]}")
    command: Callable[..., CommandResult] = getattr(module, f"{re.sub('[ -]', '_', name)}_command")
    command.__doc__ = _with_tasks(re.sub(r"\n {8}", " ", inspect.getdoc(command) or ""))
    settings_options = {}
    for option in inspect.signature(command).parameters.values():
        if option.default is None or option.default is False:
            command.__annotations__[option.name] = Annotated[
                option.annotation, arg(help_behavior_hint=""), FlagCreatePairsOff
            ]
        for mark in getattr(option.annotation, "__metadata__", ()):
            if isinstance(mark, SettingsOptions):
                settings_options[option.name] = mark
    return command, settings_options


def parse(command: Callable[..., Any], arguments: Sequence[str], *, prog: str) -> Any:
    """Read the arguments as the signature of the command says, and call it."""
    import tyro

    conf = tyro.conf
    marks = (conf.HelptextFromCommentsOff, conf.DisallowNone, conf.PositionalMetavarFromFieldName)
    return tyro.cli(command, args=arguments, prog=prog, config=marks)

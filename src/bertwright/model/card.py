"""a run → the README.md of its model folder: data, settings, metrics and limits of the model.

The front matter has the form of the Hugging Face Hub. The card holds no fact about the machine or the time, so that an
interrupted run writes the same bytes as an uninterrupted one.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.config import Settings
from bertwright.model.config import (
    BackboneConfig,
    SingleBackboneConfig,
    attends_both_ways,
    finds_replaced,
    predicts_ahead,
)
from bertwright.model.families import family_of
from bertwright.model.families.elmo import PairConfig
from bertwright.model.hf_config import describe_model
from bertwright.version import __version__

_TAGS = {
    "BertLMHeadModel": "text-generation",
    "GPT2LMHeadModel": "text-generation",
    "OpenAIGPTLMHeadModel": "text-generation",
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
    "BertForMultipleChoice": "multiple-choice",
}
"""Pipeline tags of the Hub, by the class of transformers."""


def pretraining_card(
    settings: Settings,
    config: SingleBackboneConfig,
    *,
    data: Sequence[str],
    tokens: int,
    architecture: str,
    steps: int,
    metrics: Mapping[str, float],
    trained_positions: int,
    exposure: str | None = None,
    more_numbers: Sequence[str] = (),
) -> str:
    """Return the card of a pre-trained model.

    data: a line for each corpus and, from `origin`, for the initial model. tokens: number of tokens of all corpora.
    exposure: words of text that were seen, and epochs; None where the words were not counted.
    metrics: metrics of the last validation. trained_positions: number of first positions that were trained.
    more_numbers: further lines of that part.
    """
    reads = f"It reads at most {config.max_positions} tokens at a time"
    if 0 < trained_positions < config.max_positions and family_of(config).learns_positions:
        reads += f"; it was trained on rows of up to {trained_positions}, and later positions are untrained"
    limits = [
        f"It was trained on a corpus of {tokens:,} tokens and repeats the mistakes and prejudices of that text; it is "
        "not made for other languages and domains.",
        f"{reads}.",
    ]
    is_encoder, finds, continues = attends_both_ways(config), finds_replaced(config), predicts_ahead(config)
    fills = is_encoder and not finds
    if fills:
        limits.append(
            "It is an encoder. Fine-tune it for a task, or use its vectors. The pieces that it predicts for `[MASK]` "
            "are likely, but need not be true."
        )
    if continues:
        limits.append("It is a language model too: it continues texts, and scores them from the left as well.")
    if finds:
        limits.append(
            "It is an encoder that finds replaced tokens. Fine-tune it for a task, or use its vectors. It fills no "
            "`[MASK]`; its generator does."
        )
    elif not fills:
        limits.append("It is a language model. Fine-tune it for a task, or use its vectors.")
    if not metrics:
        limits.append("There was no validation: its loss on text outside of the training data is not known.")
    return _card(
        title=_shape(f"{_article(_title(config))}{' encoder' * is_encoder}", config),
        config=config,
        architecture=architecture,
        use=(
            *(["model.fill('… [MASK] …')"] if fills else []),
            *(["model.generate('…')"] if continues else []),
            "model.vectors(['a text', 'another'])",
        ),
        data=data,
        settings=[
            f"steps: {steps:,}",
            *([f"exposure: {exposure}"] if exposure else []),
            *_settings(settings, leave_out=("steps", "minutes", "words", "epochs", "checkpoints_by_words")),
        ],
        numbers=[*(f"{name}: {_number(value)}" for name, value in metrics.items()), *more_numbers],
        data_of_numbers="On validation text, at the end of the training:",
        compared_with="the paper's",
        limits=limits,
    )


def pair_card(config: PairConfig, *, architecture: str, digests: Sequence[str]) -> str:
    """Return the card of two language models side by side; `digests` are the sha256 of their weights."""
    halves = zip((config.left, config.right), digests, strict=True)
    data = [f"{_shape(f'a {_title(half)}', half)}; weights' sha256 `{digest[:16]}`" for half, digest in halves]
    return _card(
        title=_shape("Two language models side by side, as ELMo", config),
        config=config,
        architecture=architecture,
        use=("model.vectors(['a text', 'another'])",),
        data=["the data of its two models, which their own cards describe:", *data],
        limits=[
            "The two models were trained independently, and neither reads the states of the other.",
            f"It reads at most {config.max_positions} tokens at a time.",
        ],
    )


def finetuning_card(
    settings: Settings,
    config: BackboneConfig,
    *,
    chosen: Mapping[str, Any],
    task: str,
    predicts_number: bool,
    architecture: str,
    labels: Sequence[str],
    digests: Mapping[str, Any],
    rows: int,
    max_length: int,
    result: Mapping[str, Any],
    began: str,
    more_data: Sequence[str] = (),
    more_numbers: Sequence[str] = (),
) -> str:
    """Return the card of a fine-tuned model: the best of the seeds in `result`.

    chosen: settings that the program chose for the rows and the model; of `settings` only the others are listed.
    began: the line of `origin`. more_data, more_numbers: further lines of these two parts.
    """
    data = [f"{rows:,} rows of training data, sha256 `{str(digests['train'])[:16]}`"]
    data += [f"validated on `{name}`, sha256 `{digest[:16]}`" for name, digest in digests.get("dev", {}).items()]
    data += [began, *more_data]
    scores, metric = result["scores"], result["metric"]
    mean = f"{metric}: {result['mean']:.4f} ± {result['sd']:.4f} over {len(scores)} seeds"
    numbers = [mean] if len(scores) > 1 else []
    best = max(result["seeds"], key=lambda seed: seed["scores"][metric])
    numbers += [f"{name}: {value:.4f}, of this model (seed {best['seed']})" for name, value in best["scores"].items()]
    numbers += [
        f"{name}: {value:.4f}, of the baseline {baseline}"
        for baseline, values in result["baselines"]["metrics"].items()
        for name, value in values.items()
    ]
    numbers += more_numbers
    limits = [
        "The best epoch, and the best of several seeds, were chosen on the data of these numbers, so the numbers are a "
        "little too good.",
        f"It reads at most {max_length} tokens of an input.",
        "It is made for inputs like those of its training data; it answers other inputs too, without a warning.",
    ]
    if labels and architecture == "BertForSequenceClassification":
        answers = f"Its labels are {', '.join(labels)}; it predicts no others."
        limits.append("It predicts a number." if predicts_number else answers)
    if result["collapsed"]:
        limits.append(f"Seeds {', '.join(map(str, result['collapsed']))} collapsed: they give every input one answer.")
    return _card(
        title=_shape(f"A {_title(config)} model for {task}", config),
        config=config,
        architecture=architecture,
        use=("model.vectors(['a text', 'another'])" if architecture == "BertModel" else "model(…)",),
        data=data,
        settings=list(_settings(settings, leave_out=tuple(chosen))),
        chosen=[f"{name}: {_plain(value)}" for name, value in chosen.items()],
        numbers=numbers,
        data_of_numbers="On the dev data:",
        limits=limits,
    )


def origin(source: str, digest: str | None, *, verb: str = "began from") -> str:
    """Return the line of a card about the initial model: its folder's name, or that of its run, and its digest."""
    if digest is None:
        return "began from random weights"
    folder = Path(source).absolute()
    name = folder.parent.name if folder.name == "model" else folder.name
    return f"{verb} the model `{name}`, its weights' sha256 `{digest[:16]}`"


def _card(
    *,
    title: str,
    config: BackboneConfig,
    architecture: str,
    use: Sequence[str],
    data: Sequence[str],
    limits: Sequence[str],
    settings: Sequence[str] = (),
    chosen: Sequence[str] = (),
    numbers: Sequence[str] = (),
    data_of_numbers: str = "",
    compared_with: str = "the defaults",
) -> str:
    described = describe_model(config, architecture, ())
    standard = not str(described["model_type"]).startswith("bertwright-")
    pipeline_tag = f"pipeline_tag: {_TAGS[architecture]}\n" if standard and architecture in _TAGS else ""
    tags = "".join(f"- {tag}\n" for tag in [*([described["model_type"]] if standard else []), "bertwright"])
    stored_class = described["architectures"][0]
    readers = f"is read by transformers (`{stored_class}`) as well" if standard else "is read by bertwright alone"
    tokens = (
        "\n\nThe same token ids in transformers: `AutoTokenizer.from_pretrained('FOLDER', split_special_tokens=True)`. "
        "Without the option, the name of a special token in a text is read as that token."
    )
    calls = "\n".join(f"    {call}" for call in use)
    defaults = f"\n\nChosen for the task, the number of rows and the model:\n\n{_list(chosen)}" if chosen else ""
    results = f"{data_of_numbers}\n\n{_list(numbers)}" if numbers else "There was no validation."
    return (
        f"---\nlibrary_name: {'transformers' if standard else 'bertwright'}\n{pipeline_tag}"
        f"tags:\n{tags}---\n\n# {title}\n\n"
        f"Made with bertwright {__version__}. The folder {readers}.{tokens if standard else ''}\n\n"
        f"    import bertwright as bw\n\n    model = bw.load('FOLDER')\n{calls}\n\n"
        f"## Data\n\n{_list(data)}\n\n## Settings\n\nWhere they differ from {compared_with}:\n\n{_list(settings)}"
        f"{defaults}\n\n## Numbers\n\n{results}\n\n## Limits\n\n{_list(limits)}\n"
    )


def _title(config: BackboneConfig) -> str:
    return family_of(config).title(config)


def _article(name: str) -> str:
    return f"{'An' if name[0] in 'AEIO' else 'A'} {name}"


def _shape(kind: str, config: BackboneConfig) -> str:
    return f"{kind}: {config.layers} layers of {config.hidden}, {config.vocab_size:,} pieces"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "- none"


def _settings(settings: Settings, *, leave_out: Sequence[str] = (), prefix: str = "") -> Iterator[str]:
    """Yield each setting that differs from its default; nested settings have dotted names."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if name in settings.changeable | set(leave_out) or value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, Settings):
            yield from _settings(value, prefix=f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {_plain(value)}"


def _number(value: float) -> str:
    """Return a metric with four decimals, and a count without."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, Settings):
        return " ".join(f"{name} {inner}" for name, inner in value.model_dump().items())
    return f"{value}"

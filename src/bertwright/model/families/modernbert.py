"""ModernBERT (arXiv 2412.13663): rotary positions, local and global layers, gated layers; its form in transformers.

config.json is read in both spellings: that of transformers 4.48, with which the published models were stored, and that
of transformers 5, which lists the layers and has the two bases of the rotary positions in one entry. Both are written.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bertwright.model.config import EncoderConfig, HeadActivation
from bertwright.model.families.tables import EncoderFamily, usual_classes
from bertwright.model.modern_config import ModernBertConfig, Reach, gated_width

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.model.modern_encoder import ModernEncoder

_LAYER: Final = "model.layers.#"
_REACHES: Final[Mapping[str, Reach]] = {"full_attention": "global", "sliding_attention": "local"}
"""Entry of layer_types → our name; rope_parameters has the same keys."""
_THETAS: Final = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Key of rope_parameters → the entry of transformers 4.48 with the same number."""
_HEAD_ACTIVATIONS: Final[Mapping[str, HeadActivation]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
_TOKEN_IDS: Final = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
"""Entries whose defaults in transformers are ids of the published vocabulary; the tokenizer names these tokens."""
_OUTPUT: Final = "decoder.weight"
_IN_HEADS: Final = {"pooler.dense": "head.dense", "pooler.norm": "head.norm"}


@dataclass(frozen=True, kw_only=True)
class _ModernBert(EncoderFamily[ModernBertConfig]):
    """The three kinds of heads have the same names in transformers, so that the class decides what a tensor is."""

    def build(self, config: ModernBertConfig) -> "ModernEncoder":
        """Return the encoder of ModernBERT's blocks."""
        from bertwright.model.modern_encoder import ModernEncoder  # torch

        return ModernEncoder(config)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> ModernBertConfig:
        """Return the encoder of the same size, whose gated layers have about as many weights as those of `shape`.

        Its classifiers read the mean of the states, as those of the published models do.
        """
        fields = ModernBertConfig.model_fields
        values = {name: value for name, value in shape.model_dump().items() if name in fields}
        kept = {name: value for name, value in values.items() if name not in ("num_segments", "layer_norm_eps")}
        kept |= {"embedding_dropout": shape.hidden_dropout, "classifier_dropout": shape.hidden_dropout}
        inner = gated_width(shape.hidden) if shape.intermediate == shape.usual_intermediate else shape.intermediate
        return ModernBertConfig.model_validate(kept | {"intermediate": inner, "classifier_pooling": "mean"})

    def values_to_json(self, config: ModernBertConfig) -> dict[str, Any]:
        values = super().values_to_json(config)
        back = {ours: stored for stored, ours in reversed(list(_HEAD_ACTIVATIONS.items()))}
        return values | {"classifier_activation": back[config.classifier_activation]}

    def config_to_json(self, config: ModernBertConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return config.json with both spellings of the layers and of the rotary positions."""
        described = super().config_to_json(config, architecture, labels)
        stored = {ours: name for name, ours in _REACHES.items()}
        reaches: list[Reach] = ["global" if config.is_global(layer) else "local" for layer in range(config.layers)]
        thetas = {name: getattr(config, entry) for name, entry in _THETAS.items()}
        described["layer_types"] = [stored[reach] for reach in reaches]
        described["rope_parameters"] = {
            name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()
        }
        if config.reaches is None:
            described["global_attn_every_n_layers"] = config.global_every
        return described | {_THETAS[name]: theta for name, theta in thetas.items()} | dict.fromkeys(_TOKEN_IDS)

    def values_from_json(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that config.json gives; ValueError for entries that contradict each other."""
        values = super().values_from_json(raw)
        activation = raw.get("classifier_activation", "gelu")
        if not isinstance(activation, str) or activation not in _HEAD_ACTIVATIONS:
            allowed = ", ".join(_HEAD_ACTIVATIONS)
            raise ValueError(f"classifier_activation is {activation!r}; allowed are {allowed}")
        values["classifier_activation"] = _HEAD_ACTIVATIONS[activation]
        if raw.get("pad_token_id", 0) is None:  # transformers then has no embedding for padding
            values["pad_id"] = 0
        return values | _reaches(raw) | _thetas(raw)

    def weights_to_foreign(self, weights: "Mapping[str, Tensor]", architecture: str) -> "dict[str, Tensor]":
        """Return weights under the names of transformers.

        A model that is no classifier may come with the layer of a classifier, which its class does not have.
        """
        has_head = any(name.startswith(("classifier.", "span.")) for name in weights)
        kept = {name: part for name, part in weights.items() if has_head or not name.startswith("pooler.")}
        return super().weights_to_foreign(kept, architecture)

    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True, architecture: str | None = None
    ) -> "dict[str, Tensor]":
        """Return tensors of transformers under our names; see `EncoderFamily.weights_from_foreign`.

        The layer of the masked-LM head is also that with which a classifier starts, as in transformers.
        """
        named = super().weights_from_foreign(tensors, source, tied=tied, architecture=architecture)
        begins = {"masked_lm.transform.": "pooler.dense.", "masked_lm.norm.": "pooler.norm."}
        for name, tensor in list(named.items()):
            for begin, other in begins.items():
                if name.startswith(begin):
                    named[other + name.removeprefix(begin)] = tensor
        return named

    def tables_for(self, names: Collection[str], architecture: str | None) -> Sequence[Mapping[str, str]]:
        """Return the table of the class whose heads the tensors are."""
        if not any(name.startswith("classifier.") for name in names):
            return [self.modules]
        is_span = architecture == "BertForQuestionAnswering"
        table = self._modules("BertForQuestionAnswering" if is_span else "BertForSequenceClassification")
        return [{ours: stored for ours, stored in table.items() if not ours.startswith("masked_lm")}]


def _reaches(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for the layers, from layer_types, from global_attn_every_n_layers, or from both."""
    every, types = raw.get("global_attn_every_n_layers"), raw.get("layer_types")
    if every is not None and (type(every) is not int or every < 1):
        raise ValueError(f"global_attn_every_n_layers is {every!r}; expected an integer from 1 on")
    fields: dict[str, Any] = {} if every is None else {"global_every": every}
    if types is None:
        return fields
    if not isinstance(types, list) or not all(isinstance(name, str) and name in _REACHES for name in types):
        raise ValueError(f"layer_types is {str(types)[:200]}; expected a list of {', '.join(_REACHES)}")
    layers = raw.get("num_hidden_layers")
    if len(types) != layers:
        raise ValueError(f"layer_types has {len(types)} entries; expected one for each of {layers} layers")
    reaches = [_REACHES[name] for name in types]
    fitting = [step for step in (3, *range(1, len(types) + 1)) if reaches == _pattern(step, len(types))]
    if every is not None and reaches != _pattern(every, len(types)):
        raise ValueError(
            f"global_attn_every_n_layers is {every}, but layer_types has other layers of full_attention; remove one of "
            "the two"
        )
    if every is None and fitting:
        return {"global_every": fitting[0]}
    return fields or {"reaches": tuple(reaches)}


def _pattern(every: int, layers: int) -> list[Reach]:
    """Return the reach of each layer where every `every`-th layer is global, the first one included."""
    return ["local" if layer % every else "global" for layer in range(layers)]


def _thetas(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bases of the rotary positions, from rope_parameters, from the entries of 4.48, or from both.

    A local base of null is that of the global layers.
    """
    older = {entry: raw[entry] for entry in _THETAS.values() if entry in raw}
    if older.get("local_rope_theta", 0) is None:
        older["local_rope_theta"] = older.get("global_rope_theta", 160_000.0)
    parameters = raw.get("rope_parameters")
    if parameters is None:
        return older
    if not isinstance(parameters, dict) or not {*parameters} <= {*_THETAS}:
        raise ValueError(f"rope_parameters is {parameters!r}; expected an object for each of {', '.join(_THETAS)}")
    thetas = dict(older)
    for name, of_layers in parameters.items():
        entry, settings = _THETAS[name], {} if of_layers is None else of_layers
        if (
            not isinstance(settings, dict)
            or settings.get("rope_type", "default") != "default"
            or not {*settings} <= {"rope_type", "rope_theta"}
        ):
            raise ValueError(
                f"rope_parameters: {name} is {of_layers!r}; expected rope_theta and the rope_type 'default'"
            )
        theta = settings.get("rope_theta", older.get(entry))
        if entry in older and theta != older[entry]:
            raise ValueError(f"{entry} is {older[entry]!r}, but rope_parameters has {theta!r}; remove one of the two")
        thetas |= {} if theta is None else {entry: theta}
    return thetas


MODERNBERT_FAMILY = _ModernBert(
    name="modernbert",
    config_class=ModernBertConfig,
    systems={"modernbert": "ModernBERT"},
    learns_positions=False,
    published_tokenizers=True,
    second_sentence="none",
    rate_factor=2.0,
    model_types=("modernbert",),
    title_in_messages="ModernBERT",
    prefix="model",
    classes=usual_classes("ModernBert"),
    modules={
        "encoder.embeddings.word": "model.embeddings.tok_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.layers.#.attention_norm": f"{_LAYER}.attn_norm",
        "encoder.layers.#.attention.qkv": f"{_LAYER}.attn.Wqkv",
        "encoder.layers.#.attention.output": f"{_LAYER}.attn.Wo",
        "encoder.layers.#.feed_forward_norm": f"{_LAYER}.mlp_norm",
        "encoder.layers.#.expand": f"{_LAYER}.mlp.Wi",
        "encoder.layers.#.contract": f"{_LAYER}.mlp.Wo",
        "encoder.norm": "model.final_norm",
        "masked_lm.transform": "head.dense",
        "masked_lm.norm": "head.norm",
        "masked_lm": "decoder",
        "next_sentence.linear": "next_sentence",
    },
    class_modules={
        "BertForSequenceClassification": {**_IN_HEADS, "classifier.linear": "classifier"},
        "BertForMultipleChoice": {**_IN_HEADS, "classifier.linear": "classifier"},
        "BertForTokenClassification": {**_IN_HEADS, "classifier.linear": "classifier"},
        "BertForQuestionAnswering": {**_IN_HEADS, "span.linear": "classifier"},
    },
    tied={_OUTPUT: "model.embeddings.tok_embeddings.weight"},
    config_names={
        "vocab_size": "vocab_size",
        "hidden": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "intermediate": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "embedding_dropout": "embedding_dropout",
        "classifier_dropout": "classifier_dropout",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "norm_eps",
        "pad_id": "pad_token_id",
        "window": "local_attention",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "classifier_bias": "classifier_bias",
        "decoder_bias": "decoder_bias",
        "classifier_activation": "classifier_activation",
        "classifier_pooling": "classifier_pooling",
    },
    activation_name="hidden_activation",
    fixed={"is_decoder": False, "add_cross_attention": False, "rope_scaling": None},
)

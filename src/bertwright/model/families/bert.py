"""BERT, with attention to both sides, to the left or to the right (paper §3 and §5.1), and its form in transformers.

A right-to-left BERT, and a left-to-right BERT with a task's head, are stored in bertwright's own form, because no class
of transformers computes them.
"""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig, SingleBackboneConfig
from bertwright.model.families import ModelDescription, TransformersFamily
from bertwright.model.hf_config import check_values, labels_to_json, notes_in, our_values, read_labels

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.model.encoder import Encoder
    from bertwright.model.heads import MaskedLMHead

LANGUAGE_MODEL = "BertLMHeadModel"
"""Class of transformers for a BERT that predicts the next token."""
FEATURES, FEATURES_TYPE = "BertwrightFeatures", "bertwright-features"
"""Class name and model type of a frozen encoder with a BiLSTM on its states, which transformers does not have."""
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
_CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_eps",
    "pad_id": "pad_token_id",
}
_WEIGHT_NAMES = {
    "encoder.embeddings.word": "bert.embeddings.word_embeddings",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings",
    "encoder.embeddings.segment": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.layers.#.attention.query": "bert.encoder.layer.#.attention.self.query",
    "encoder.layers.#.attention.key": "bert.encoder.layer.#.attention.self.key",
    "encoder.layers.#.attention.value": "bert.encoder.layer.#.attention.self.value",
    "encoder.layers.#.attention.output": "bert.encoder.layer.#.attention.output.dense",
    "encoder.layers.#.attention_norm": "bert.encoder.layer.#.attention.output.LayerNorm",
    "encoder.layers.#.expand": "bert.encoder.layer.#.intermediate.dense",
    "encoder.layers.#.contract": "bert.encoder.layer.#.output.dense",
    "encoder.layers.#.output_norm": "bert.encoder.layer.#.output.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "masked_lm.transform": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm": "cls.predictions",
    "next_sentence.linear": "cls.seq_relationship",
    "classifier.linear": "classifier",
    "span.linear": "qa_outputs",
    "head.recurrent": "bertwright.recurrent",
    "head.recurrent.lstm": "bertwright.recurrent.lstm",
    "head.classifier.linear": "bertwright.classifier",
}
"""Our module → module of transformers. # is the number of the layer. Query, key and value are split from qkv before."""
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Constants that older versions of transformers stored with the weights."""
_WORDS, _DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
_TIED = {_DECODER: _WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Tensor of the masked-LM head's output layer → the tensor to which it is tied."""


class _Bert(TransformersFamily[EncoderConfig]):
    def build(self, config: EncoderConfig) -> "Encoder":
        from bertwright.model.encoder import Encoder  # torch

        return Encoder(config)

    def output(self, config: EncoderConfig) -> "MaskedLMHead":
        from bertwright.model.heads import MaskedLMHead  # torch

        return MaskedLMHead(config)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        return shape.model_copy(update={"attends": system.partition("-")[2] or "both"})

    def system_of(self, config: EncoderConfig) -> str:
        return "bert" if config.attends == "both" else f"bert-{config.attends}"

    def language_architecture(self, config: EncoderConfig) -> str:
        return LANGUAGE_MODEL if config.attends == "left" else super().language_architecture(config)

    def is_standard(self, config: EncoderConfig, architecture: str) -> bool:
        """Return True for attention to both sides, and for a left-to-right language model."""
        return config.attends == "both" or _is_decoder(config, architecture)

    def config_to_json(self, config: EncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        values = config.model_dump()
        described = {
            "architectures": [architecture],
            "model_type": FEATURES_TYPE if architecture == FEATURES else "bert",
            "hidden_act": _ACTIVATIONS[config.activation],
            "position_embedding_type": "absolute",
            **{stored: values[ours] for ours, stored in _CONFIG_NAMES.items()},
        }
        if _is_decoder(config, architecture):
            described["is_decoder"] = True
        return described | labels_to_json(labels)

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of transformers' BERT; InputError for an encoder that bertwright cannot build."""
        architectures = raw.get("architectures") or [None]
        if not isinstance(architectures, list) or not isinstance(architectures[0], str | None):
            raise InputError(f"{path}: expected a list with a class name in architectures, got {architectures!r}")
        decodes = architectures[0] == LANGUAGE_MODEL and raw.get("is_decoder") is True
        model_type = raw.get("model_type", "bert")
        wanted = {
            "model_type": ("bert" if model_type == FEATURES_TYPE else model_type, "bert"),
            "position_embedding_type": (raw.get("position_embedding_type", "absolute"), "absolute"),
            "is_decoder": (raw.get("is_decoder", False), decodes),
            "add_cross_attention": (raw.get("add_cross_attention", False), False),
        }
        check_values(path, wanted)
        values = our_values(raw, _CONFIG_NAMES)
        activations = {stored: ours for ours, stored in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
        activation = raw.get("hidden_act")
        if not isinstance(activation, str) or activation not in activations:
            raise InputError(f"{path}: hidden_act is {activation!r}; allowed are {', '.join(activations)}")
        try:
            values |= {"activation": activations[activation], "attends": "left" if decodes else "both"}
            config = EncoderConfig.model_validate(values)
        except ValidationError as error:
            raise InputError(f"{path}: {_by_stored_names(error)}") from None
        labels = read_labels(raw.get("id2label") or {}, path)
        return ModelDescription(config, architectures[0], labels, notes_in(raw, path), raw)

    def weights_to_foreign(self, weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """Return weights under the names of transformers' BERT, with query, key and value as three tensors."""
        from bertwright.model.hf_weights import rename, split_qkv  # torch

        return {rename(name, _WEIGHT_NAMES): tensor for name, tensor in split_qkv(weights).items()}

    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True
    ) -> "dict[str, Tensor]":
        """Return tensors of transformers' BERT, with today's or older names, under our names in fp32.

        A tied table may be stored as the word embeddings, as the decoder of the masked-LM head, or as both. Raises
        InputError for tensors that do not belong to a BERT, are no plain floating-point numbers, or contradict each
        other, and for a single table where `tied` is False.
        """
        import torch

        from bertwright.model.hf_weights import fuse_qkv, our_names, without_tied_output, wrapper_prefix  # torch

        prefix = wrapper_prefix(tensors)
        named: dict[str, Tensor] = {}
        in_file: dict[str, str] = {}
        for name, tensor in tensors.items():
            if (full := _full_name(name.removeprefix(prefix))) in _BUFFERS:
                continue
            if full in named and not torch.equal(named[full], tensor):
                raise InputError(f"{source}: {name} is stored twice, under two names and with different values")
            if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_meta:
                kind = "without values" if tensor.is_meta else f"{tensor.dtype}, {tensor.layout}"
                raise InputError(f"{source}: {name} is {kind}; weights are plain floating-point numbers")
            named[full], in_file[full] = tensor, name
        weights = {name: tensor.float() for name, tensor in named.items()}
        if not tied:
            _refuse_single_table(in_file, source)
        for output, tied_to in _TIED.items():
            weights = without_tied_output(weights, output, tied_to, source=source, in_file=in_file)
        weights = our_names(weights, _WEIGHT_NAMES, kind="BERT", source=source, in_file=in_file)
        return fuse_qkv(weights, source=source, in_file=partial(self.name_in_file, stored=tensors))

    def name_in_file(self, name: str, stored: Collection[str] = ()) -> str:
        """Return the name in transformers' BERT; the three tensors of qkv are named together."""
        from bertwright.model.hf_weights import module_of, rename, wrapper_prefix  # torch

        split = name.replace(".qkv.", ".query.")
        if module_of(split) not in _WEIGHT_NAMES:
            return name
        renamed = rename(split, _WEIGHT_NAMES)
        if split != name:
            renamed = renamed.replace(".query.", ".{query,key,value}.")
        prefix = wrapper_prefix(stored)
        if stored and not any(other.startswith(f"{prefix}bert.") for other in stored):
            renamed = renamed.removeprefix("bert.")
        if any(other.endswith("LayerNorm.gamma") for other in stored):
            renamed = renamed.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return prefix + renamed


def _is_decoder(config: EncoderConfig, architecture: str) -> bool:
    """Return True for a left-to-right language model, which transformers' BERT computes as a decoder."""
    return config.attends == "left" and architecture == LANGUAGE_MODEL


def _by_stored_names(error: ValidationError) -> str:
    """Return the errors of a configuration with the names of config.json."""
    wrong = []
    for part in error.errors():
        name = _CONFIG_NAMES.get(str(part["loc"][0]), str(part["loc"][0])) if part["loc"] else ""
        if part["type"] == "missing":
            wrong.append(f"{name} is missing")
        else:
            wrong.append(f"{name} is {part['input']!r}: {part['msg']}" if name else part["msg"])
    return "; ".join(wrong)


def _refuse_single_table(in_file: Mapping[str, str], source: str) -> None:
    """Raise InputError where a masked-LM head has one table for its input and its output, though they are not tied."""
    tables = [in_file[name] for name in (_WORDS, _DECODER) if name in in_file]
    if len(tables) == 1 and any(name.startswith("cls.predictions.") for name in in_file):
        raise InputError(
            f"{source}: tie_word_embeddings is false in config.json, so that the word embeddings and the output layer "
            f"of the masked-LM head are two tensors; the file holds only {tables[0]}. If they are one tensor, set "
            "tie_word_embeddings to true"
        )


def _full_name(name: str) -> str:
    """Return the present name of a parameter in transformers; an encoder without heads and old files have others."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


BERT_FAMILY = _Bert(
    name="bert",
    config_class=EncoderConfig,
    systems={"bert": "BERT", "bert-left": "left-to-right BERT", "bert-right": "right-to-left BERT"},
    model_types=("bert", FEATURES_TYPE),
)

"""Families of encoders that tables describe: entries of config.json, classes of transformers, names of modules.

A family of bidirectional encoders with post-LayerNorm blocks is an `EncoderFamily` with its own tables.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from bertwright.errors import InputError
from bertwright.model.config import EncoderConfig, SingleBackboneConfig
from bertwright.model.families import ModelDescription, TransformersFamily
from bertwright.model.hf_config import check_values, labels_to_json, notes_in, our_values, read_labels

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.model.encoder import TransformerBackbone
    from bertwright.model.heads import MaskedLMHead, TiedOutput

AnyEncoderConfig = TypeVar("AnyEncoderConfig", bound=EncoderConfig)
CONFIG_NAMES = {
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
"""Our field → entry of config.json in BERT and in most of its successors."""
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
_ALSO_TANH = "gelu_pytorch_tanh"
_QUERY = "encoder.layers.#.attention.query"
"""Module of a family that stores query, key and value as three tensors."""


def encoder_modules(prefix: str) -> dict[str, str]:
    """Return our module → module of transformers for the encoder of BERT and of most of its successors.

    # is the number of the layer. Query, key and value are split from qkv before.
    """
    layer = f"{prefix}.encoder.layer.#"
    return {
        "encoder.embeddings.word": f"{prefix}.embeddings.word_embeddings",
        "encoder.embeddings.position": f"{prefix}.embeddings.position_embeddings",
        "encoder.embeddings.segment": f"{prefix}.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": f"{prefix}.embeddings.LayerNorm",
        "encoder.layers.#.attention.query": f"{layer}.attention.self.query",
        "encoder.layers.#.attention.key": f"{layer}.attention.self.key",
        "encoder.layers.#.attention.value": f"{layer}.attention.self.value",
        "encoder.layers.#.attention.output": f"{layer}.attention.output.dense",
        "encoder.layers.#.attention_norm": f"{layer}.attention.output.LayerNorm",
        "encoder.layers.#.expand": f"{layer}.intermediate.dense",
        "encoder.layers.#.contract": f"{layer}.output.dense",
        "encoder.layers.#.output_norm": f"{layer}.output.LayerNorm",
    }


def usual_classes(name: str) -> dict[str, str]:
    """Return our names of the sets of heads that nearly every family has → its classes, such as RobertaForMaskedLM."""
    heads = ("MaskedLM", "SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering")
    return {"BertModel": f"{name}Model", **{f"BertFor{head}": f"{name}For{head}" for head in heads}}


IN_CLASSIFIER = {
    "BertForSequenceClassification": {"pooler.dense": "classifier.dense", "classifier.linear": "classifier.out_proj"}
}
"""Modules of a classifier of texts that holds the layer on the first token's state itself: RoBERTa's and ELECTRA's."""


@dataclass(frozen=True, kw_only=True)
class EncoderFamily(TransformersFamily[AnyEncoderConfig]):
    """A family of encoders whose models differ from BERT in what these tables and its configuration say.

    title_in_messages: name of the family in messages, such as "BERT".
    prefix: name of the encoder inside a class of transformers that has heads.
    classes: our name of a set of heads → class of transformers.
    modules: our module → module of transformers. # is the number of the layer.
    class_modules: our name of a set of heads → modules whose names are others in that class.
    tied: tensor of the output layer → the tensor to which it is tied; the first entry is the table.
    config_names: our field → entry of config.json. activation_name: entry of the activation.
    fixed: entry of config.json → its only value; a file without the entry has it. written: fixed entries that are
    written.
    published_tokenizers: True where a tokenizer.json with other rules than WordPiece is taken as it is.
    """

    title_in_messages: str
    prefix: str
    classes: Mapping[str, str]
    modules: Mapping[str, str]
    tied: Mapping[str, str]
    class_modules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=lambda: CONFIG_NAMES)
    activation_name: str = "hidden_act"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    written: Collection[str] = ()
    published_tokenizers: bool = False

    def build(self, config: AnyEncoderConfig) -> "TransformerBackbone":
        """Return the encoder of the common blocks."""
        from bertwright.model.encoder import Encoder  # torch

        return Encoder(config)

    def output(self, config: AnyEncoderConfig) -> "MaskedLMHead | TiedOutput":
        """Return the output layer over the vocabulary: the masked-LM head."""
        from bertwright.model.heads import MaskedLMHead  # torch

        return MaskedLMHead(config)

    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        """Return the encoder of the same size, with the fields of `shape` that are set and that this family has."""
        changes = shape.model_dump(exclude_defaults=True)
        fields = self.config_class.model_fields
        return self.config_class.model_validate({name: value for name, value in changes.items() if name in fields})

    def is_standard(self, config: AnyEncoderConfig, architecture: str) -> bool:
        """Return True for the sets of heads that a class of transformers has."""
        return architecture in self.classes

    def config_to_json(self, config: AnyEncoderConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return config.json of a standard model."""
        values = self.values_to_json(config)
        return {
            "architectures": [self.classes.get(architecture, architecture)],
            "model_type": self.model_types[0],
            self.activation_name: _ACTIVATIONS[config.activation],
            **{name: self.fixed[name] for name in self.written},
            **{stored: values[ours] for ours, stored in self.config_names.items()},
            **labels_to_json(labels),
        }

    def values_to_json(self, config: AnyEncoderConfig) -> dict[str, Any]:
        """Return the fields of a configuration as config.json has them, by our names."""
        return config.model_dump()

    def values_from_json(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that config.json gives, by our names; ValueError for entries that cannot be read."""
        return our_values(raw, self.config_names)

    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read a config.json of this family; InputError for an encoder that bertwright cannot build."""
        named = named_class(raw, path)
        check_values(path, {name: (raw.get(name, value), value) for name, value in self.fixed.items()})
        activations = {stored: ours for ours, stored in _ACTIVATIONS.items()} | {_ALSO_TANH: "gelu_tanh"}
        activation = raw.get(self.activation_name)
        if not isinstance(activation, str) or activation not in activations:
            allowed = ", ".join(activations)
            raise InputError(f"{path}: {self.activation_name} is {activation!r}; allowed are {allowed}")
        try:
            values = {**self.values_from_json(raw), "activation": activations[activation]}
            config = self.config_class.model_validate(values)
        except ValidationError as error:
            raise InputError(f"{path}: {self._by_stored_names(error)}") from None
        except ValueError as error:  # from `values_from_json`
            raise InputError(f"{path}: {error}") from None
        labels = read_labels(raw.get("id2label") or {}, path)
        return ModelDescription(config, self._our_class(named), labels, notes_in(raw, path), raw)

    def _our_class(self, named: str | None) -> str | None:
        """Return our name of the heads of a class, also of a class of a sister family; others come back as they are."""
        for ours, stored in self.classes.items():
            if named and (named == stored or named.endswith(ours.removeprefix("Bert"))):
                return ours
        return named

    def _by_stored_names(self, error: ValidationError) -> str:
        """Return the errors of a configuration with the names of config.json."""
        wrong = []
        for part in error.errors():
            name = self.config_names.get(str(part["loc"][0]), str(part["loc"][0])) if part["loc"] else ""
            if part["type"] == "missing":
                wrong.append(f"{name} is missing")
            else:
                wrong.append(f"{name} is {part['input']!r}: {part['msg']}" if name else part["msg"])
        return "; ".join(wrong)

    def _modules(self, architecture: str) -> dict[str, str]:
        """Return our module → module of the class of transformers with these heads."""
        return {**self.modules, **self.class_modules.get(architecture, {})}

    def weights_to_foreign(self, weights: "Mapping[str, Tensor]", architecture: str) -> "dict[str, Tensor]":
        """Return weights under the names of transformers, with query, key and value as three tensors or as one."""
        from bertwright.model.hf_weights import rename, split_qkv  # torch

        modules = self._modules(architecture)
        split = split_qkv(weights) if _QUERY in modules else weights
        return {rename(name, modules): tensor for name, tensor in split.items()}

    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True, architecture: str | None = None
    ) -> "dict[str, Tensor]":
        """Return tensors of transformers, with today's or older names, under our names in fp32.

        A tied table may be stored as the word embeddings, as the output layer of the masked-LM head, or as both. Raises
        InputError for tensors that do not belong to this family, are no plain floating-point numbers, or contradict
        each other, and for a single table where `tied` is False.
        """
        import torch

        from bertwright.model.hf_weights import fuse_qkv, our_names, without_tied_output, wrapper_prefix  # torch

        prefix = wrapper_prefix(tensors)
        named: dict[str, Tensor] = {}
        in_file: dict[str, str] = {}
        for name, tensor in tensors.items():
            if self.is_constant(full := self._full_name(name.removeprefix(prefix))):
                continue
            if full in named and not torch.equal(named[full], tensor):
                raise InputError(f"{source}: {name} is stored twice, under two names and with different values")
            if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_meta:
                kind = "without values" if tensor.is_meta else f"{tensor.dtype}, {tensor.layout}"
                raise InputError(f"{source}: {name} is {kind}; weights are plain floating-point numbers")
            named[full], in_file[full] = tensor, name
        weights = {name: tensor.float() for name, tensor in named.items()}
        if not tied:
            self._refuse_single_table(in_file, source, self.tables_for(in_file, architecture))
        for output, tied_to in self.tied.items():
            weights = without_tied_output(weights, output, tied_to, source=source, in_file=in_file)
        tables = self.tables_for(weights, architecture)
        weights = our_names(weights, tables, kind=self.title_in_messages, source=source, in_file=in_file)
        return fuse_qkv(weights, source=source, in_file=partial(self.name_in_file, stored=tensors))

    def name_in_file(self, name: str, stored: Collection[str] = (), architecture: str = "") -> str:
        """Return the name in transformers; the three tensors of qkv are named together."""
        from bertwright.model.hf_weights import module_of, rename, wrapper_prefix  # torch

        modules = self._modules(architecture)
        split = name.replace(".qkv.", ".query.") if _QUERY in modules else name
        if module_of(split) not in modules:
            return name
        renamed = rename(split, modules)
        if split != name:  # "query", "q_lin": the other two have the other letters
            three = (rename(name.replace(".qkv.", f".{part}."), modules) for part in ("query", "key", "value"))
            begin, rest = zip(*(_cut(part) for part in three), strict=True)
            renamed = f"{begin[0]}.{{{','.join(part for part, _ in rest)}}}.{rest[0][1]}"
        prefix = wrapper_prefix(stored)
        if stored and not any(other.startswith(f"{prefix}{self.prefix}.") for other in stored):
            renamed = renamed.removeprefix(f"{self.prefix}.")
        if any(other.endswith("LayerNorm.gamma") for other in stored):
            renamed = renamed.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return prefix + renamed

    def tables_for(self, names: Collection[str], architecture: str | None) -> Sequence[Mapping[str, str]]:
        """Return the tables of modules by which tensors with these `names` are read: those of all classes."""
        return [self.modules, *self.class_modules.values()]

    def _refuse_single_table(
        self, in_file: Mapping[str, str], source: str, modules: Sequence[Mapping[str, str]]
    ) -> None:
        """Raise InputError where a masked-LM head has one table for input and output, though they are not tied."""
        from bertwright.model.hf_weights import module_of  # torch

        output, words = next(iter(self.tied.items()))
        tables = [in_file[name] for name in (words, output) if name in in_file]
        heads = {module for table in modules for ours, module in table.items() if ours.startswith("masked_lm")}
        if len(tables) == 1 and any(module_of(name) in heads for name in in_file):
            raise InputError(
                f"{source}: tie_word_embeddings is false in config.json, so that the word embeddings and the output "
                f"layer of the masked-LM head are two tensors; the file holds only {tables[0]}. If they are one "
                "tensor, set tie_word_embeddings to true"
            )

    def is_constant(self, name: str) -> bool:
        """Return True for a constant that older versions of transformers stored with the weights."""
        return name in (f"{self.prefix}.embeddings.position_ids", f"{self.prefix}.embeddings.token_type_ids")

    def _full_name(self, name: str) -> str:
        """Return the present name in transformers; an encoder without heads and old files have others."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        inside = f"{self.prefix}."
        parts = {module.removeprefix(inside).partition(".")[0] for module in self.modules.values() if inside in module}
        return f"{inside}{name}" if name.partition(".")[0] in parts else name


def named_class(raw: Mapping[str, Any], path: Path) -> str | None:
    """Return the class that config.json names, None where it names none; InputError where it is not a list of names."""
    architectures = raw.get("architectures") or [None]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str | None):
        raise InputError(f"{path}: expected a list with a class name in architectures, got {architectures!r}")
    return architectures[0]


def _cut(name: str) -> tuple[str, tuple[str, str]]:
    """Return the begin of a parameter's name, and its last module and parameter."""
    begin, module, parameter = name.rsplit(".", 2)
    return begin, (module, parameter)

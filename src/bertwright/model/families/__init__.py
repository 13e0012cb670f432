"""Families of models: a file each, with the configuration, the composition of common blocks, and the stored names.

`bertwright.registry` finds every Family object in this package, so a new family is a new file. A family that lacks a
method cannot be created, so its file fails at import. The files do not import torch at module level, because `--help`
reads the names of the systems; functions that need torch import it themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

from bertwright import registry
from bertwright.model.config import AnyConfig, BackboneConfig, EncoderConfig, SingleBackboneConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

OWN_LANGUAGE_MODEL = "BertwrightLanguageModel"
"""Class name in config.json of a language model that no class of transformers computes."""


@dataclass(frozen=True)
class ModelDescription:
    """Content of a config.json.

    architecture: class of transformers that the file names; None where it names none.
    labels: label names in the order of the outputs. extra: notes of bertwright. raw: the whole file.
    """

    config: BackboneConfig
    architecture: str | None
    labels: tuple[str, ...]
    extra: Mapping[str, Any]
    raw: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family(ABC, Generic[AnyConfig]):
    """A family of backbones that are composed of others; `SystemFamily` is for those that are pre-trained.

    name: name of the family in bertwright's own form of config.json. config_class: class of its configurations.
    """

    name: str
    config_class: type[AnyConfig]

    @abstractmethod
    def build(self, config: AnyConfig) -> Any:
        """Return the backbone (`bertwright.model.backbones.Backbone`) with the initial weights of torch."""

    @abstractmethod
    def title(self, config: AnyConfig) -> str:
        """Return the name of the kind of model, for model cards."""

    @abstractmethod
    def prefixes(self, config: AnyConfig) -> tuple[str, ...]:
        """Return the prefixes of parameter names of the single backbones inside."""

    def system_of(self, config: AnyConfig) -> str | None:
        """Return the system of a configuration; None for a composition."""
        return None


@dataclass(frozen=True, kw_only=True)
class SystemFamily(Family[AnyConfig]):
    """A family of single backbones that can be pre-trained.

    systems: title of each system. A system whose tokens attend to both sides learns masked LM; every other system is a
    language model.
    learns_positions: True where the model has a table of position embeddings.
    trains_on_spans: True for a language model that is trained on spans of the text, without tokens around sentences.
    second_sentence: the usual objective for pairs of sentences (`objectives.settings`), of systems with masked LM.
    learns_pairs: False where masked LM may have no such objective.
    short_share: usual fraction of the documents that are cut into shorter rows; BERT's, unless a paper has none.
    rate_factor: learning rates of new weights with Muon, as a multiple of BERT's; see docs/log.md, "The system of an
    entry".
    """

    systems: Mapping[str, str]
    learns_positions: bool = True
    second_sentence: str = "next"
    learns_pairs: bool = True
    short_share: float = 0.1
    rate_factor: float = 1.0
    trains_on_spans: bool = False

    @abstractmethod
    def output(self, config: AnyConfig) -> "nn.Module":
        """Return the output layer over the vocabulary: one of those in `bertwright.model.heads`."""

    @abstractmethod
    def from_encoder(self, system: str, shape: EncoderConfig, size: str) -> SingleBackboneConfig:
        """Return the configuration of a system that corresponds to a BERT of the same size.

        size: the size as the user wrote it, for messages.
        """

    def prefixes(self, config: AnyConfig) -> tuple[str, ...]:
        """Return one empty prefix."""
        return ("",)

    def system_of(self, config: AnyConfig) -> str:
        """Return the system of a configuration; a family with several systems overrides this method."""
        (system,) = self.systems
        return system

    def title(self, config: AnyConfig) -> str:
        """Return the title of the system."""
        return self.systems[self.system_of(config)]

    def language_architecture(self, config: AnyConfig) -> str:
        """Return the class name for config.json of a language model with this backbone."""
        return OWN_LANGUAGE_MODEL


@dataclass(frozen=True, kw_only=True)
class TransformersFamily(SystemFamily[AnyConfig]):
    """A family that transformers has too: its models are stored under the names that transformers uses.

    model_types: values of `model_type` in the config.json files that `config_from_json` reads.
    """

    model_types: tuple[str, ...]

    @abstractmethod
    def is_standard(self, config: AnyConfig, architecture: str) -> bool:
        """Return whether a class of transformers computes the model; other models are stored in our own form."""

    @abstractmethod
    def config_to_json(self, config: AnyConfig, architecture: str, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return config.json of a standard model."""

    @abstractmethod
    def config_from_json(self, raw: Mapping[str, Any], path: Path) -> ModelDescription:
        """Read the config.json `raw` of a standard model; InputError, with `path`, for a model that cannot be read."""

    @abstractmethod
    def weights_to_foreign(self, weights: "Mapping[str, Tensor]", architecture: str) -> "dict[str, Tensor]":
        """Return weights of a standard model under the names of transformers; `architecture` names its heads."""

    @abstractmethod
    def weights_from_foreign(
        self, tensors: "Mapping[str, Tensor]", source: str, *, tied: bool = True, architecture: str | None = None
    ) -> "dict[str, Tensor]":
        """Return tensors of a standard model under our names, in fp32; InputError for tensors that do not belong.

        tied: False where config.json says that the output layer is another tensor than the word embeddings.
        architecture: our name of the heads that config.json names, for families whose heads share names.
        """

    def name_in_file(self, name: str, stored: Collection[str] = (), architecture: str = "") -> str:
        """Return the name of a parameter in a file of a standard model, for messages; by default, our own name.

        stored: names of the tensors of the file, which decide its prefix; without them, those that we write.
        architecture: our name of its heads.
        """
        return name


def families() -> dict[str, Family[Any]]:
    """Return all families by name, sorted by name."""
    return registry.find(__name__, Family)  # type: ignore[type-abstract]


@overload
def family_of(config: SingleBackboneConfig) -> SystemFamily[Any]: ...
@overload
def family_of(config: BackboneConfig) -> Family[Any]: ...
def family_of(config: BackboneConfig) -> Family[Any]:
    """Return the family of a configuration."""
    return next(family for family in families().values() if family.config_class is type(config))

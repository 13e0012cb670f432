"""A randomly initialised BiLSTM on top of another backbone (paper §5.1, the last row of table 5)."""

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, SerializeAsAny, model_validator

from bertwright.model.config import BackboneConfig, CompositeConfig
from bertwright.model.families import Family, family_of

if TYPE_CHECKING:
    from bertwright.model.recurrent import WithBiLSTM


class TopConfig(CompositeConfig):
    """Configuration of a BiLSTM on top of a backbone."""

    inner: SerializeAsAny[BackboneConfig]
    width: Annotated[int, Field(ge=2, lt=2**24, multiple_of=2)]
    """Width of the BiLSTM; each direction has half of it."""

    @model_validator(mode="after")
    def _single_bilstm(self) -> Self:
        if isinstance(self.inner, TopConfig):
            raise ValueError("inner has a BiLSTM on top already")
        return self

    @property
    def _part(self) -> BackboneConfig:
        return self.inner

    @property
    def hidden(self) -> int:
        """Return the width of the BiLSTM."""
        return self.width

    @property
    def layers(self) -> int:
        """Return the number of layers of the backbone below."""
        return self.inner.layers

    @property
    def shares_layers(self) -> bool:
        """Return True where layers of the backbone below have weights in common."""
        return self.inner.shares_layers

    @property
    def classifier_has_pooler(self) -> bool:
        """Return False: the outputs read the states of the BiLSTM."""
        return False


class _Top(Family[TopConfig]):
    def build(self, config: TopConfig) -> "WithBiLSTM":
        from bertwright.model.backbones import build_backbone  # torch
        from bertwright.model.recurrent import WithBiLSTM  # torch

        return WithBiLSTM(config, build_backbone(config.inner))

    def prefixes(self, config: TopConfig) -> tuple[str, ...]:
        return tuple(f"inner.{prefix}" for prefix in family_of(config.inner).prefixes(config.inner))

    def title(self, config: TopConfig) -> str:
        return f"{family_of(config.inner).title(config.inner)} (BiLSTM on top)"


TOP_FAMILY = _Top(name="top", config_class=TopConfig)

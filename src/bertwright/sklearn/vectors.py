"""texts → vectors of a frozen encoder: BertVectorizer (paper §5.3)."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bertwright.console import say
from bertwright.sklearn.base import TextEstimator, plain
from bertwright.sklearn.inputs import EstimatorError, in_python


class BertVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):  # type: ignore[misc]
    """A dense vector [D] for each text; nothing is trained.

    model        a model folder, a run folder or small-wiki; a fine-tuned one's encoder has learned its task
    pool         mean or max over the tokens of a text, or cls, the state of [CLS]
    layer        0 for the embeddings, then the layers; -1 is the last
    max_length   tokens of a text; None: as many as the model takes
    """

    def __init__(
        self, model: str | Path, *, pool: str = "mean", layer: int = -1, max_length: int | None = None
    ) -> None:
        self.model = model
        self.pool = pool
        self.layer = layer
        self.max_length = max_length

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # texts have none
        return tags

    def fit(self, X: Any, y: Any = None) -> "BertVectorizer":
        """Open the model; of X, only what it is made of is looked at."""
        with in_python():
            from bertwright.prediction.features import check_pool
            from bertwright.sklearn.learned import read

            texts = self._texts(X)
            if len(texts.sides) > 1:
                raise EstimatorError(f"X: {len(texts.sides)} columns; vectors are of single texts")
            if self.pool not in ("mean", "max", "cls"):
                raise EstimatorError(f"pool: {self.pool!r}; allowed are mean, max and cls")
            learned = read(self.model)
            check_pool(learned.saved.config, plain(self.pool))
            layers = learned.saved.config.layers
            if isinstance(self.layer, bool) or plain(self.layer) not in range(-layers - 1, layers + 1):
                raise EstimatorError(f"layer: {self.layer!r}; allowed are {-layers - 1} to {layers}")
            limit = plain(self.max_length)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
                raise EstimatorError(f"max_length: {limit!r}; a whole number or None is due")
            self.learned_ = learned
            self._n_features_out = learned.saved.config.hidden
            self._note_columns(texts)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Vectors [N, D]."""
        check_is_fitted(self)
        with in_python():
            from bertwright.prediction.feature_based import frozen_encoder
            from bertwright.prediction.features import features_of, pooled

            texts = self._as_fitted(X)
            config = self.learned_.saved.config
            pool: Any = self.pool
            encoder = self.learned_.ready(frozen_encoder)
            found = np.empty((len(texts), config.hidden), dtype=np.float32)
            wanted: Any = {
                "layers": [plain(self.layer) % (config.layers + 1)],
                "max_length": plain(self.max_length),
            }
            cut = 0
            for row, one in enumerate(features_of(encoder, self.learned_.words, texts.sides[0], **wanted)):
                found[row] = pooled(one, pool)[0]
                cut += one.truncated
            if cut:
                limit = plain(self.max_length) or config.max_positions
                say(f"X: {cut} of {len(texts)} texts exceed {limit} tokens and are cut")
        return found

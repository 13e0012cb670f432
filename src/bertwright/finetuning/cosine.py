"""pairs of texts → cosine of their mean vectors by a frozen encoder (beside paper §4.1)."""

import numpy as np
import torch
from numpy.typing import NDArray

from bertwright.model.folder import SavedModel
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.finite import check_finite
from bertwright.tasks.inference import answered_batches, evaluating, padded_inputs
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import resolve_device
from bertwright.training.settings import Device


def pair_cosines(
    saved: SavedModel, tokenizer: BaseTokenizer, pairs: list[tuple[str, str]], *, max_length: int, device: Device
) -> NDArray[np.float64]:
    """Return the cosine of the mean of the last states of both texts, for each of N pairs; nothing is trained."""
    target, pad_id = resolve_device(device), saved.config.pad_id
    encoder = frozen_encoder(saved).to(target)
    encoded = encode(tokenizer, [text for pair in pairs for text in pair], max_length=max_length)
    vectors = np.empty((len(encoded), saved.config.hidden), dtype=np.float64)
    with evaluating(encoder):
        for rows in answered_batches(np.array([len(ids) for ids in encoded.ids]), "texts of the cosine baseline"):
            inputs = padded_inputs([encoded.ids[row] for row in rows], pad_id=pad_id)
            ids, segments, mask = (tensor.to(target) for tensor in inputs)
            last = encoder(ids, segments, mask).last.float()
            weights = mask[:, :, None].float()
            vectors[rows] = torch.sum(last * weights, dim=1).div(weights.sum(1)).cpu().numpy()
    check_finite(vectors, "text {}".format, first=1)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    # Rounded, because a rank correlation would order pairs of equal texts by rounding errors.
    cosines: NDArray[np.float64] = np.round(np.sum(vectors[0::2] * vectors[1::2], axis=1), 5)
    return cosines

"""encoder → a table of one vector for each piece, in the layout of model2vec.

Each piece is encoded alone. Principal components shorten the vectors. The weight of a piece with the probability p is
a / (a + p), as in SIF (Arora et al. 2017): frequent pieces say little about a text.
"""

import re
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.files import new_folder
from bertwright.model.folder import open_model, refuse_random_name, weights_digest
from bertwright.output_paths import refuse_existing
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.finite import check_finite
from bertwright.tasks.sentence_vectors import SentenceEncoder, prompt_of
from bertwright.tasks.static_vectors import StaticVectors
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_paragraphs
from bertwright.text.open_tokenizer import special_ids
from bertwright.training.hardware import prepare_processor
from bertwright.version import __version__

WIDTH: Final = 256
"""Default number of components, where the vectors of the encoder have so many."""
SIF_COUNTED: Final = 3e-4
"""The number a of the weights, where the pieces were counted: the best of 1e-4, 3e-4, 1e-3 on the dev part of STS-B."""
SIF_ZIPF: Final = 3e-5
"""The number a where the probabilities are those of Zipf's law: the best of 1e-5, 3e-5, 1e-4 on the same data."""
_UNUSED: Final = re.compile(r"\[unused\d+\]")
"""Pieces of BERT's vocabularies that no text is split into."""
_PARAGRAPHS: Final = 1024
"""Number of paragraphs whose pieces are counted at a time."""


def export_static(
    model: str, out: Path, *, width: int | None = None, corpus: Path | None = None, text: Path | None = None
) -> dict[str, Any]:
    """Write `out`: the table, its tokenizer and config.json, which model2vec and sentence-transformers open.

    width: number of principal components; None is WIDTH. The probabilities of the pieces are counted in a `corpus` of
    the same tokenizer, or in a `text`; without both they are those of Zipf's law by the order of the vocabulary. Return
    the entries of the result.

    Raises InputError where `out` exists, for random weights, for a width that the vectors do not have, and for a corpus
    of another tokenizer.
    """
    refuse_existing(out)
    refuse_random_name(model)
    if corpus is not None and text is not None:
        raise InputError("--corpus and --text: expected one of them, got both; leave one out")
    prepare_processor()
    saved = open_model(model)
    tokenizer = open_tokenizer(saved)
    encoder = SentenceEncoder(saved, tokenizer)
    encoder.check_width(width, "--width")
    pieces = usable_pieces(tokenizer)
    probabilities, counted = piece_probabilities(tokenizer, pieces, corpus, text)
    sif = SIF_COUNTED if corpus or text else SIF_ZIPF
    vectors = piece_vectors(encoder, pieces)
    components, kept = principal_components(vectors, min(width or WIDTH, encoder.size))
    static = StaticVectors(weighted_table(tokenizer, pieces, components, sif / (sif + probabilities)), tokenizer)
    described = {"tokenizer_name": saved.source, "apply_pca": static.size, "sif_coefficient": sif}
    notes = {"version": __version__, "model": saved.source, "model_sha256": weights_digest(saved), **counted}
    with new_folder(out) as folder:
        static.save(folder, {**described, "bertwright": notes})
    return {
        "out": str(out),
        "model": saved.source,
        "pieces": len(pieces),
        "encoder_size": encoder.size,
        "size": static.size,
        "variance_kept": round(kept, 4),
        **counted,
    }


def piece_vectors(encoder: SentenceEncoder, pieces: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the vectors [P, D] of P pieces. Each is a text of its own, with the default prompt where there is one."""
    tokenizer = encoder.tokenizer
    begin, end = special_ids(tokenizer)
    prompt = tokenizer.ids([prompt_of(encoder.settings, "text")])[0]
    rows = [np.array([*begin, *prompt, piece, *end], dtype=np.int32) for piece in pieces.tolist()]
    vectors = encoder.of_rows(rows, progress="pieces encoded")
    check_finite(vectors, lambda row: f"piece {tokenizer.pieces[pieces[row]]!r}", first=0)
    return vectors


def principal_components(vectors: NDArray[np.float32], width: int) -> tuple[NDArray[np.float64], float]:
    """Return the first components [P, width] of the centred vectors [P, D], and the fraction of the variance in them.

    The component of the largest variance is the first. The largest entry of each axis is positive, so that the result
    does not depend on the library.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    axes, variances = axes[:, ::-1][:, :width], np.maximum(variances[::-1], 0.0)
    largest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[largest, np.arange(width)] < 0, -1.0, 1.0)
    return centred @ axes, float(variances[:width].sum() / max(variances.sum(), np.finfo(np.float64).tiny))


def weighted_table(
    tokenizer: BaseTokenizer, pieces: NDArray[np.int64], components: NDArray[np.float64], weights: NDArray[np.float64]
) -> torch.Tensor:
    """Return the table [V, W] with the vectors [P, W] of these pieces, times their weights [P]; zeros elsewhere."""
    table = torch.zeros(tokenizer.vocab_size, components.shape[1])
    table[torch.from_numpy(pieces)] = torch.from_numpy(components * weights[:, None]).float()
    return table


def usable_pieces(tokenizer: BaseTokenizer) -> NDArray[np.int64]:
    """Return the ids of the pieces that texts are split into: special tokens and unused pieces are left out."""
    special = {*tokenizer.special_ids, tokenizer.pad_id, tokenizer.unk_id}
    ids = [id for id, piece in enumerate(tokenizer.pieces) if id not in special and not _UNUSED.fullmatch(piece)]
    return np.array(ids, dtype=np.int64)


def piece_probabilities(
    tokenizer: BaseTokenizer, pieces: NDArray[np.int64], corpus: Path | None, text: Path | None
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the probability [P] of each piece, and the entries of the result that describe their source."""
    if corpus is None and text is None:
        ranks = 1.0 / np.arange(2, len(pieces) + 2)
        return ranks / ranks.sum(), {"frequencies": "Zipf's law"}
    counts = _counts_of_corpus(tokenizer, corpus) if corpus else _counts_of_text(tokenizer, str(text))
    total = int(counts[pieces].sum())
    if not total:
        raise InputError(f"{corpus or text}: expected pieces of the model's vocabulary, found none")
    return counts[pieces] / total, {"frequencies": str(corpus or text), "counted_pieces": total}


def _counts_of_corpus(tokenizer: BaseTokenizer, folder: Path) -> NDArray[np.int64]:
    """Return the count [V] of each piece in all documents. Raises InputError for a corpus of another tokenizer."""
    corpus = Corpus.open(folder)
    if corpus.tokenizer_hash != tokenizer.hash:
        raise InputError(
            f"--corpus {folder}: expected a corpus of the model's tokenizer ({tokenizer.hash[:12]}…), got one of "
            f"another ({corpus.tokenizer_hash[:12]}…); give the text itself: --text"
        )
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for _, tokens in corpus.blocks():
        counts += np.bincount(tokens, minlength=tokenizer.vocab_size)
    return counts


def _counts_of_text(tokenizer: BaseTokenizer, source: str) -> NDArray[np.int64]:
    """Return the count [V] of each piece in a text, which is read as a stream."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    paragraphs = read_paragraphs(find_inputs([source]), TextSettings())
    while block := list(islice(paragraphs, _PARAGRAPHS)):
        ids = np.fromiter(chain.from_iterable(tokenizer.ids(block)), dtype=np.int64)
        counts += np.bincount(ids, minlength=tokenizer.vocab_size)
    return counts

"""text → token ids: open the tokenizer of a folder: BERT's WordPiece, GPT-1's byte pairs, or a published one.

Code that needs [MASK] calls `mask_tokenizer`.
"""

from pathlib import Path
from typing import cast

from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer
from bertwright.text.bpe import BPETokenizer
from bertwright.text.byte_pairs import byte_pairs_of, read_byte_pairs
from bertwright.text.published_tokenizer import PublishedTokenizer, is_published
from bertwright.text.vocabulary import folder_with
from bertwright.text.wordpiece import Tokenizer


def open_tokenizer_folder(folder: Path) -> BaseTokenizer:
    """Return the tokenizer of a tokenizer, model, run or corpus folder.

    Raises InputError where a file is missing or broken, or contradicts another file.
    """
    folder = folder_with(folder, "tokenizer.json", "vocab.txt", "vocab.json")
    path = folder / "tokenizer.json"
    if kind := byte_pairs_of(folder):
        return read_byte_pairs(folder, kind)
    if not path.is_file():
        return Tokenizer.load(folder) if (folder / "vocab.txt").is_file() else BPETokenizer.load(folder)
    described = read_json(path)
    if not isinstance(described, dict):
        raise InputError(
            f"{path}: expected the description of a tokenizer, a JSON object, got a JSON {type(described).__name__}; "
            "copy the file again from where the model is published"
        )
    if is_published(described):
        return PublishedTokenizer.load(folder)
    model = described.get("model")
    is_pairs = isinstance(model, dict) and (model.get("type") == "BPE" or "merges" in model)
    return BPETokenizer.load(folder) if is_pairs else Tokenizer.load(folder)


def mask_tokenizer(tokenizer: BaseTokenizer, *, place: str | Path, advice: str) -> MaskTokenizer:
    """Return the tokenizer where it has a mask token; otherwise raise InputError, whose message ends with `advice`.

    `place` names the model or folder that the tokenizer belongs to.
    """
    if isinstance(tokenizer, BPETokenizer):
        raise InputError(f"{place}: expected a tokenizer with [MASK], got byte pairs as GPT-1's, without it; {advice}")
    return cast(MaskTokenizer, tokenizer)


def special_ids(tokenizer: BaseTokenizer) -> tuple[list[int], list[int]]:
    """Return the ids before and after a text; none where a published GPT-1 or GPT-2 adds no such tokens.

    An empty text is then one unknown piece.
    """
    is_bare = isinstance(tokenizer, PublishedTokenizer) and not tokenizer.has_frame
    if is_bare or (isinstance(tokenizer, BPETokenizer) and not tokenizer.has_special):
        return [], []
    return [tokenizer.begin_id], [tokenizer.end_id]

"""text → token ids: open the tokenizer of a folder, BERT's WordPiece or GPT-1's byte pairs.

Code that needs [MASK], or another property that only BERT's tokenizer has, calls `wordpiece`.
"""

from pathlib import Path
from typing import cast

from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import BPETokenizer
from bertwright.text.vocabulary import folder_with
from bertwright.text.wordpiece import Tokenizer


def open_tokenizer_folder(folder: Path) -> BaseTokenizer:
    """Return the tokenizer of a tokenizer, model, run or corpus folder.

    Raises InputError where a file is missing or broken, holds other rules than BERT's or GPT-1's, or contradicts
    another file.
    """
    folder = folder_with(folder, "tokenizer.json", "vocab.txt", "vocab.json")
    return BPETokenizer.load(folder) if _holds_merges(folder) else Tokenizer.load(folder)


def wordpiece(tokenizer: BaseTokenizer, *, place: str | Path, advice: str) -> Tokenizer:
    """Return the tokenizer where it is a WordPiece one; otherwise raise InputError, whose message ends with `advice`.

    `place` names the model or folder that the tokenizer belongs to.
    """
    if isinstance(tokenizer, BPETokenizer):
        raise InputError(
            f"{place}: expected a WordPiece tokenizer, got byte pairs as GPT-1's, without [MASK]; {advice}"
        )
    return cast(Tokenizer, tokenizer)


def _holds_merges(folder: Path) -> bool:
    """Return whether the files describe a byte-pair tokenizer; `BPETokenizer.load` checks them.

    Raises InputError where tokenizer.json is not the description of a tokenizer at all.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return not (folder / "vocab.txt").is_file()
    described = read_json(path)
    if not isinstance(described, dict):
        raise InputError(
            f"{path}: expected the description of a tokenizer, a JSON object, got a JSON {type(described).__name__}; "
            "copy the file again from where the model is published"
        )
    model = described.get("model")
    return isinstance(model, dict) and (model.get("type") == "BPE" or "merges" in model)


def special_ids(tokenizer: BaseTokenizer) -> tuple[list[int], list[int]]:
    """Return the ids before and after a text; none where GPT-1's published vocabulary has no such tokens.

    An empty text is then one unknown piece.
    """
    if isinstance(tokenizer, BPETokenizer) and not tokenizer.has_special:
        return [], []
    return [tokenizer.begin_id], [tokenizer.end_id]

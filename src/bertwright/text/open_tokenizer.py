"""text → token ids: what corpora, models and tasks ask of a tokenizer, and the one that a folder holds, of either kind.

BERT's WordPiece vocabularies (tokenizer.py) and GPT-1's byte-pair ones (bpe.py) answer alike. A row of a task is
`begin_id`, a text, then `between_id` and a second text, if there is one, and `end_id`: [CLS] A [SEP] B [SEP] there,
_start_ A _delimiter_ B _classify_ here. What needs a mask, or other things of BERT's alone, asks for `wordpiece`.
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
    """The tokenizer of a tokenizer, model, run or corpus folder.

    InputError where a file is missing or broken, holds other rules than BERT's or GPT-1's, or contradicts another.
    """
    place = folder_with(folder, "tokenizer.json", "vocab.txt", "vocab.json")
    return BPETokenizer.load(place) if _holds_merges(place) else Tokenizer.load(place)


def wordpiece(found: BaseTokenizer, *, place: str | Path, advice: str) -> Tokenizer:
    """The tokenizer as a WordPiece one; InputError, which ends with the advice, where it is none."""
    if isinstance(found, BPETokenizer):
        raise InputError(f"{place}: its vocabulary is a byte-pair one, as GPT-1's, without [MASK]; {advice}")
    return cast(Tokenizer, found)


def _holds_merges(folder: Path) -> bool:
    """Whether the files are meant as those of a byte-pair vocabulary; the reader says what is wrong with them."""
    described = folder / "tokenizer.json"
    if not described.is_file():
        return not (folder / "vocab.txt").is_file()
    value = read_json(described)
    model = value.get("model") if isinstance(value, dict) else None
    return isinstance(model, dict) and (model.get("type") == "BPE" or "merges" in model)

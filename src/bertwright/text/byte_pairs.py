"""text → token ids: byte-level byte pairs as GPT-2's and RoBERTa's, from vocab.json and merges.txt, or learned.

Text is cut by GPT-2's pattern into words that contain the space before them, then into its bytes in UTF-8, each written
as a letter. The pair of neighbours that comes first in the list of merges is joined, until no pair of the list is left.
No text is unknown.

Learning gives the same bytes with any number of threads. Words are counted first. The trainer of `tokenizers` receives
the special tokens and the 256 letters in a fixed order, because it breaks ties by their numbers.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import read_object, read_object_if_there
from bertwright.text.bpe import check_merges, read_merges
from bertwright.text.published_tokenizer import PublishedTokenizer
from bertwright.text.vocabulary import pieces_by_id
from bertwright.text.wordpiece import refuse_too_many, train_on

BytePairs = Literal["gpt2", "roberta"]
_END_OF_TEXT: Final = "<|endoftext|>"
_TOKENS: Final[Mapping[BytePairs, Mapping[str, str]]] = {
    "gpt2": {"unk_token": _END_OF_TEXT, "bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT},
    "roberta": {
        "bos_token": "<s>",
        "cls_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    },
}
"""Special tokens of each kind, as transformers names them where the files do not."""
_SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""Special tokens of a learned vocabulary, in the order of their ids, which is that of RoBERTa's."""
_CLASSES: Final[Mapping[str, BytePairs]] = {"GPT2Tokenizer": "gpt2", "RobertaTokenizer": "roberta"}
_MODEL_TYPES: Final[Mapping[str, BytePairs]] = {"gpt2": "gpt2", "roberta": "roberta"}


def byte_pairs_of(folder: Path) -> BytePairs | None:
    """Return the kind of byte-level pairs in the vocab.json and merges.txt of a folder; None for another tokenizer.

    tokenizer_config.json names the class. Without it, config.json names the kind of model.
    """
    if (folder / "tokenizer.json").is_file() or not (folder / "vocab.json").is_file():
        return None
    named = _settings(folder).get("tokenizer_class")
    if named is None and (folder / "config.json").is_file():
        return _MODEL_TYPES.get(str(read_object(folder / "config.json").get("model_type")))
    return _CLASSES.get(str(named).removesuffix("Fast"))


def read_byte_pairs(folder: Path, kind: BytePairs) -> PublishedTokenizer:
    """Return the tokenizer that transformers makes of vocab.json and merges.txt.

    Raises InputError for files that are broken or contradict each other, and for rules that are not read here.
    """
    vocabulary, settings = folder / "vocab.json", _settings(folder)
    if (added := folder / "added_tokens.json").is_file() and read_object(added):
        raise InputError(
            f"{added}: expected no tokens beside those of vocab.json; open the folder with transformers' AutoTokenizer "
            "and save it: tokenizer.json then holds them"
        )
    if settings.get("add_bos_token"):
        raise InputError(f"{folder / 'tokenizer_config.json'}: add_bos_token is true; only false can be read")
    ids = read_object(vocabulary)
    pieces_by_id(ids, vocabulary)
    merges = read_merges(folder / "merges.txt")
    check_merges(merges, ids, f"{vocabulary} and merges.txt")
    names = {**_TOKENS[kind], **{name: settings[name] for name in _TOKENS[kind] if settings.get(name)}}
    tokens: dict[str, str] = {}
    for role, written in names.items():
        token = written.get("content") if isinstance(written, dict) else written
        if not isinstance(token, str):
            raise InputError(
                f"{folder / 'tokenizer_config.json'}: expected a text as {role}, or an object with a text as content, "
                f"got {str(written)[:100]}"
            )
        tokens[role] = token
    if missing := sorted({token for token in tokens.values() if token not in ids}):
        raise InputError(f"{vocabulary}: expected the special tokens {', '.join(missing)}, which are not in it")
    prefix = bool(settings.get("add_prefix_space"))
    rust = _assembled(ids, merges, tokens, add_prefix_space=prefix, is_framed=kind == "roberta")
    return PublishedTokenizer(json.loads(rust.to_str()), {**settings, **names}, place=str(vocabulary))


def train_byte_pairs(texts: Iterable[str], *, vocab_size: int, min_count: int = 2) -> PublishedTokenizer:
    """Learn a vocabulary of `vocab_size` pieces; the same texts give the same bytes with any number of threads.

    The texts are read once and only word counts are kept. A pair is joined if it occurs `min_count` times. The pieces
    are, in this order: <s> <pad> </s> <unk> <mask>, the 256 letters of bytes, the learned pieces. Rows are framed as
    RoBERTa's; GPT-2's end of a text is </s>. Raises InputError for a `vocab_size` that cannot hold the letters, and for
    texts without a word.
    """
    refuse_too_many(vocab_size, "pieces")
    first = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if vocab_size < len(first):
        raise InputError(
            f"a vocabulary of {vocab_size} pieces is too small: the {len(first) - len(_SPECIAL)} letters of bytes and "
            f"the {len(_SPECIAL)} special tokens need at least {len(first)}"
        )
    counts = _counted(texts)
    if not counts:
        raise InputError("the text holds no word, so no vocabulary can be learned from it")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_count, special_tokens=first, show_progress=False
    )
    rust = train_on(counts, models.BPE(), trainer)  # it splits at white space, which no letter of a byte is
    learned = json.loads(rust.to_str())["model"]
    if len(learned["vocab"]) < vocab_size:
        say(
            f"the text is too short: it gives {len(learned['vocab']):,} pieces, fewer than the {vocab_size:,} requested"
        )
    merges = [(left, right) for left, right in learned["merges"]]
    built = _assembled(learned["vocab"], merges, _TOKENS["roberta"], add_prefix_space=False, is_framed=True)
    settings = {"tokenizer_class": "RobertaTokenizer", **_TOKENS["roberta"], "model_max_length": 512}
    return PublishedTokenizer(json.loads(built.to_str()), settings)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_object_if_there(path)


def _assembled(
    ids: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    tokens: Mapping[str, str],
    *,
    add_prefix_space: bool,
    is_framed: bool,
) -> tokenizers.Tokenizer:
    """Return the tokenizer of the package `tokenizers`; with `is_framed` a row is `<s> A </s></s> B </s>`."""
    model = models.BPE(dict(ids), list(merges), continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    rust = tokenizers.Tokenizer(model)
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    rust.decoder = decoders.ByteLevel()
    if is_framed:
        sep, cls = ((tokens[role], ids[tokens[role]]) for role in ("sep_token", "cls_token"))
        rust.post_processor = processors.RobertaProcessing(
            sep=sep, cls_token=cls, trim_offsets=True, add_prefix_space=add_prefix_space
        )
    special = sorted(set(tokens.values()), key=ids.__getitem__)
    rust.add_special_tokens([AddedToken(name, lstrip=name == tokens.get("mask_token")) for name in special])
    return rust


def _counted(texts: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs, with the space before it, written in letters of bytes."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines: Counter[str] = Counter()
    for text in texts:
        lines.update(word for word, _ in splitter.pre_tokenize_str(text))
    return lines

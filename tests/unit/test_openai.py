"""GPT-1 from OpenAI's release and from Hugging Face's form: the same numbers, and every broken file by its name."""

import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.errors import InputError
from bertwright.interop.gpt import read_gpt_folder
from bertwright.interop.openai import import_gpt, read_openai, recognises
from bertwright.model.folder import load_weights
from bertwright.model.gpt import GPT
from bertwright.model.gpt_folder import open_gpt
from bertwright.text.bpe import BPETokenizer
from tests import bpe_oracle

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

OWN_TEXT = Path(__file__).parents[1] / "fixtures" / "own_text.txt"
LAYERS, HIDDEN, POSITIONS = 2, 24, 20
LAYER = ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2")
"""The parts of a layer in the order of the release; each is a weight and a bias."""


@cache
def vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    return bpe_oracle.learn(re.findall(r"[a-z]+|[^a-z\s]", OWN_TEXT.read_text("utf-8").lower()), 60)


def shapes() -> list[list[int]]:
    wide = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    found = [[POSITIONS, HIDDEN], [len(vocabulary()[0]), HIDDEN]]
    for part in LAYER * LAYERS:
        first, last = (HIDDEN * times for times in wide.get(part, (1, 1)))
        found += [[1, first, last], [last]] if part in wide else [[last], [last]]
    return found


def release(folder: Path) -> dict[str, Tensor]:
    """Write a small release in OpenAI's layout; the same weights by the names of transformers."""
    folder.mkdir()
    random = np.random.default_rng(7)
    arrays = [random.normal(0, 0.3, shape).astype(np.float32) for shape in shapes()]
    row = np.concatenate([array.ravel() for array in arrays])
    for index, shard in enumerate(np.array_split(row, 10)):
        np.save(folder / f"params_{index}.npy", shard)
    (folder / "params_shapes.json").write_text(json.dumps(shapes()))
    pieces, merges = vocabulary()
    (folder / "encoder_bpe_40000.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (folder / "vocab_40000.bpe").write_text("".join(["#version: 0.2\n", *(f"{a} {b}\n" for a, b in merges)]))
    names = [f"h.{layer}.{part}.{leaf}" for layer in range(LAYERS) for part in LAYER for leaf in ("weight", "bias")]
    named = zip(("positions_embed.weight", "tokens_embed.weight", *names), arrays, strict=True)
    return {name: torch.from_numpy(array.squeeze()) for name, array in named}


def theirs(weights: dict[str, Tensor]) -> Any:
    settings = transformers.OpenAIGPTConfig(
        n_layer=LAYERS, n_embd=HIDDEN, n_positions=POSITIONS, vocab_size=len(weights["tokens_embed.weight"])
    )
    model = transformers.OpenAIGPTLMHeadModel(settings).eval()
    model.transformer.load_state_dict(weights)
    return model


def published(folder: Path) -> dict[str, Tensor]:
    """The same model in Hugging Face's form."""
    weights = release(folder.with_name("release"))
    theirs(weights).save_pretrained(folder)
    BPETokenizer(*vocabulary()).save(folder)
    return weights


def same(folder: Path, weights: dict[str, Tensor]) -> None:
    """The model folder gives the numbers of transformers' model with these weights."""
    texts = [line for line in OWN_TEXT.read_text("utf-8").splitlines() if line][:4]
    saved = open_gpt(str(folder))
    model = GPT(saved.config).eval()
    load_weights(model, saved)
    pieces, merges = vocabulary()
    tokenizer = BPETokenizer.load(saved.tokenizer)
    assert (tokenizer.pieces, tokenizer.merges) == (pieces, merges)
    ids = torch.tensor([ids[:POSITIONS] for ids in tokenizer.ids(texts)])
    with torch.inference_mode():
        mine = model(ids, torch.ones_like(ids, dtype=torch.bool)).last
        other = theirs(weights)(ids, output_hidden_states=True)
        torch.testing.assert_close(mine, other.hidden_states[-1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model.logits(mine), other.logits, atol=1e-5, rtol=1e-5)
        opened = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder)
        assert torch.equal(opened.eval()(ids).logits, other.logits)
    assert transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"] == tokenizer.ids(texts)


FOUND = {
    "architecture": "OpenAIGPTLMHeadModel",
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": 12,
    "left_out": [],
}


def test_the_release_becomes_a_model_folder_of_the_same_numbers(tmp_path: Path) -> None:
    weights = release(tmp_path / "model")
    assert recognises(tmp_path / "model")
    said = import_gpt(tmp_path / "model", tmp_path / "out")
    total = sum(tensor.numel() for tensor in weights.values())
    assert said == FOUND | {
        "found": "a GPT-1 as OpenAI released it (10 numpy files)",
        "vocabulary": len(vocabulary()[0]),
        "parameters": total,
    }
    same(tmp_path / "out", weights)
    assert recognises(tmp_path / "out")
    again = import_gpt(tmp_path / "out", tmp_path / "again")
    assert again == said | {"found": "a GPT-1 in Hugging Face's form (model.safetensors)"}
    for file in (tmp_path / "out").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


def test_the_form_of_hugging_face_is_read(tmp_path: Path) -> None:
    weights = published(tmp_path / "theirs")
    said = import_gpt(tmp_path / "theirs", tmp_path / "out")
    assert said["found"] == "a GPT-1 in Hugging Face's form (model.safetensors)"
    same(tmp_path / "out", weights)


def test_its_old_files_with_constants_among_the_weights_are_read(tmp_path: Path) -> None:
    """A bare body in pytorch_model.bin, the causal mask and positions stored, and no tokenizer.json."""
    weights = published(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    constants = {f"h.{layer}.attn.bias": torch.ones(1, 1, POSITIONS, POSITIONS).tril() for layer in range(LAYERS)}
    constants["position_ids"] = torch.arange(POSITIONS)
    torch.save({**weights, **constants}, tmp_path / "theirs" / "pytorch_model.bin")
    said = import_gpt(tmp_path / "theirs", tmp_path / "out")
    assert said["found"] == "a GPT-1 in Hugging Face's form (pytorch_model.bin)"
    assert said["left_out"] == list(constants)
    same(tmp_path / "out", weights)


def test_only_a_gpt_is_recognised(tmp_path: Path) -> None:
    release(tmp_path / "model")
    for name in ("params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe", "params_0.npy"):
        only = tmp_path / f"only {name}"
        only.mkdir()
        shutil.copyfile(tmp_path / "model" / name, only / name)
        assert recognises(only)
    for config in ('{"model_type": "bert"}', '{"model_type": "gpt2"}', "[]", "{"):
        (tmp_path / "config.json").write_text(config)
        assert not recognises(tmp_path)
    assert not recognises(tmp_path / "absent")
    assert not recognises(tmp_path / "config.json")


class Code:
    """What runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("params.npy", b"")


def edited(name: str, edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A change to a JSON file, in place or by a new value."""

    def change(folder: Path) -> None:
        value = json.loads((folder / name).read_text("utf-8"))
        new = edit(value)
        (folder / name).write_text(json.dumps(value if new is None else new), "utf-8")

    return change


def shard(index: int, edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A change to the numbers of a shard."""

    def change(folder: Path) -> None:
        path = folder / f"params_{index}.npy"
        np.save(path, edit(np.load(path)))

    return change


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def put(value: float) -> Callable[[Any], Any]:
    return lambda row: np.where(np.arange(len(row)) == 2, np.float32(value), row)


BROKEN_RELEASE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no shapes": (lambda f: (f / "params_shapes.json").unlink(), r"params_shapes\.json: there is no such file"),
    "shapes no JSON": (
        lambda f: (f / "params_shapes.json").write_text("[[1,"),
        r"params_shapes\.json:1: not valid JSON",
    ),
    "shapes no list": (edited("params_shapes.json", lambda s: {"a": s}), r"params_shapes\.json: not a list of shapes"),
    "shape of text": (edited("params_shapes.json", lambda s: s[3].append("1")), "not a list of shapes, each a list of"),
    "shape of nothing": (edited("params_shapes.json", lambda s: s[3].append(0)), "whole numbers above 0"),
    "no layer": (edited("params_shapes.json", lambda s: s[:2]), "lists 2 tensors; a GPT-1 has 2 and then 12 a layer"),
    "a tensor too few": (edited("params_shapes.json", lambda s: s[:-1]), "lists 25 tensors; a GPT-1 has 2 and then 12"),
    "no tables": (edited("params_shapes.json", lambda s: s[::-1]), r"begins with \[\[24\], \[24\]\]; a GPT-1 has"),
    "another model's shape": (
        edited("params_shapes.json", lambda s: s[8].append(s[8].pop(1))),
        r"tensor 8 has the shape \[1, 96, 24\]; in a GPT-1 of this width it has \[1, 24, 96\]",
    ),
    "two widths": (
        edited("params_shapes.json", lambda s: s[1].__setitem__(1, 25)),
        r"tensor 1 has the shape \[\d+, 25\]; in a GPT-1 of this width it has \[\d+, 24\]",
    ),
    "a width for no 12 heads": (
        edited(
            "params_shapes.json",
            lambda s: [[n // 24 * 25 if n % 24 == 0 else n for n in shape] for shape in s],
        ),
        r"params_shapes\.json: hidden is 25, which is no multiple of the 12 heads of the release",
    ),
    "a shard is missing": (lambda f: (f / "params_3.npy").unlink(), r"params_3\.npy missing; the release has params_0"),
    "a shard too many": (
        lambda f: shutil.copyfile(f / "params_3.npy", f / "params_10.npy"),
        r"params_10\.npy is no part of the release, which ends with params_9\.npy",
    ),
    "too few numbers": (shard(9, lambda row: row[:-1]), r"the shards hold [\d,]+ numbers, but params_shapes\.json has"),
    "too many numbers": (shard(0, lambda row: np.append(row, row[:1])), "the shards hold"),
    "doubles": (
        shard(4, lambda row: row.astype(np.float64)),
        r"params_4\.npy: holds float64 of shape \(\d+,\); a shard",
    ),
    "big-endian": (shard(4, lambda row: row.astype(">f4")), r"params_4\.npy: holds >f4 of shape"),
    "a table": (
        shard(4, lambda row: row[None]),
        r"params_4\.npy: holds float32 of shape \(1, \d+\); a shard is one row",
    ),
    "truncated": (
        lambda f: os.truncate(f / "params_5.npy", 1000),
        r"params_5\.npy: not a whole numpy file of plain numbers: mmap length is greater than file size",
    ),
    "truncated in its header": (
        lambda f: os.truncate(f / "params_5.npy", 50),
        r"params_5\.npy: not a whole numpy file",
    ),
    "empty": (lambda f: os.truncate(f / "params_5.npy", 0), r"params_5\.npy: not a whole numpy file"),
    "more numbers than a machine holds": (
        lambda f: (f / "params_5.npy").write_bytes(
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**15,)}")
        ),
        r"params_5\.npy: not a whole numpy file",
    ),
    "a header with a hole": (
        lambda f: (f / "params_5.npy").write_bytes(header("{'descr': ('<f4', [('''")),
        r"params_5\.npy: not a whole numpy file",
    ),
    "an archive": (lambda f: zipped(f / "params_5.npy"), r"params_5\.npy: not a whole numpy file of plain numbers"),
    "objects with code": (
        lambda f: np.save(f / "params_5.npy", np.array([Code(f / "ran")], dtype=object), allow_pickle=True),
        r"params_5\.npy: not a whole numpy file of plain numbers: \w",
    ),
    "a bare pickle": (
        lambda f: (f / "params_5.npy").write_bytes(pickle.dumps(Code(f / "ran"))),
        r"params_5\.npy: not a whole numpy file of plain numbers",
    ),
    "not a number": (shard(0, put(np.nan)), r"infinite values or values that are no numbers in position\.weight$"),
    "infinite": (shard(9, put(-np.inf)), r"values that are no numbers in layers\.1\."),
    "no encoder": (
        lambda f: (f / "encoder_bpe_40000.json").unlink(),
        r"encoder_bpe_40000\.json: there is no such file",
    ),
    "no merges": (lambda f: (f / "vocab_40000.bpe").unlink(), r"vocab_40000\.bpe: cannot be read: No such file"),
    "fewer pieces": (
        edited("encoder_bpe_40000.json", lambda ids: ids.pop(next(reversed(ids))) and None),
        r"vocab_40000\.bpe: merge 60 joins '\S+' and '\S+', but '\S+' is not in the vocabulary",
    ),
    "more pieces": (
        edited("encoder_bpe_40000.json", lambda ids: ids.update({"_start_": len(ids)})),
        r"encoder_bpe_40000\.json: holds (\d+) pieces, but params_shapes\.json has embeddings for \d+; they must be",
    ),
    "a hole in the ids": (
        edited("encoder_bpe_40000.json", lambda ids: ids.update({"zz": len(ids) + 1})),
        r"encoder_bpe_40000\.json: the piece 'zz' has id \d+, where \d+ was expected",
    ),
    "no header": (
        lambda f: (f / "vocab_40000.bpe").write_text("a b\n"),
        r"vocab_40000\.bpe:1: begins with 'a b'; a list of merges begins with",
    ),
}


@pytest.mark.parametrize(("damage", "words"), BROKEN_RELEASE.values(), ids=BROKEN_RELEASE.keys())
def test_broken_releases_are_refused(tmp_path: Path, damage: Callable[[Path], Any], words: str) -> None:
    release(tmp_path / "model")
    damage(tmp_path / "model")
    assert recognises(tmp_path / "model")
    with pytest.raises(InputError, match=words):
        import_gpt(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "model" / "ran").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_reader_says_what_is_broken_before_anything_is_written(tmp_path: Path) -> None:
    release(tmp_path / "model")
    os.truncate(tmp_path / "model" / "params_5.npy", 1000)
    with pytest.raises(InputError, match=r"params_5\.npy"):
        read_openai(tmp_path / "model")
    (tmp_path / "out").mkdir()
    published(tmp_path / "theirs")
    with pytest.raises(InputError, match="out: exists already; name another folder or remove it"):
        import_gpt(tmp_path / "theirs", tmp_path / "out")


def weights_with(edit: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    """A change to the tensors of a folder."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def pickled(value: Callable[[Path], Any]) -> Callable[[Path], None]:
    """What a pytorch_model.bin holds in place of model.safetensors."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(value(folder), folder / "pytorch_model.bin")

    return change


def bare_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Code(folder / "ran")))


WORDS = "transformer.tokens_embed.weight"
BROKEN_FOLDER: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another activation": (edited("config.json", lambda c: c.update(afn="relu")), "afn is 'relu'; only 'gelu' can be"),
    "an untied output": (
        edited("config.json", lambda c: c.update(tie_word_embeddings=False)),
        "tie_word_embeddings is",
    ),
    "special embeddings": (
        edited("config.json", lambda c: c.update(n_special=3)),
        "n_special is 3; only 0 can be read",
    ),
    "two dropouts": (
        edited("config.json", lambda c: c.update(embd_pdrop=0.3)),
        "embd_pdrop is 0.3; only 0.1 can be read",
    ),
    "no width": (edited("config.json", lambda c: c.pop("n_embd") and None), r"config\.json: .*\n.*hidden\n +Field req"),
    "a width of text": (edited("config.json", lambda c: c.update(n_embd="wide")), r"config\.json: .*\n.*hidden\n"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors: there is no such file"),
    "truncated": (lambda f: os.truncate(f / "model.safetensors", 900), r"model\.safetensors: broken or truncated"),
    "a head of its own": (
        weights_with(lambda t: t.update({"score.weight": torch.zeros(2, HIDDEN)})),
        "1 of 27 tensors have no place in a GPT-1: score.weight",
    ),
    "another output": (
        weights_with(lambda t: t.update({"lm_head.weight": t[WORDS] + 1})),
        "lm_head.weight is not transformer.tokens_embed.weight; only models that tie",
    ),
    "a tensor is missing": (
        weights_with(lambda t: t.pop("transformer.h.1.ln_1.bias")),
        r"not a whole OpenAIGPTLMHeadModel; missing: layers\.1\.attention_norm\.bias$",
    ),
    "a layer too many": (
        weights_with(lambda t: t.update({"transformer.h.2.ln_1.bias": torch.zeros(HIDDEN)})),
        r"no place for: layers\.2\.attention_norm\.bias$",
    ),
    "a shape": (
        weights_with(lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": torch.zeros(4 * HIDDEN, HIDDEN)})),
        r"layers\.0\.expand\.weight is \(24, 96\), not \(96, 24\)$",
    ),
    "not a number": (weights_with(lambda t: t[WORDS][3].fill_(np.nan)), r"that are no numbers in word\.weight$"),
    "code": (pickled(lambda f: {"a": Code(f / "ran")}), r"pytorch_model\.bin: broken, or holds code or objects"),
    "code alone": (bare_pickle, r"pytorch_model\.bin: broken, or holds code or objects beside tensors, which are not"),
    "a number": (pickled(lambda f: {"epoch": 3}), r"pytorch_model\.bin: holds other things than tensors by name"),
    "a list": (pickled(lambda f: [torch.zeros(2)]), r"pytorch_model\.bin: holds other things than tensors by name"),
    "no vocabulary": (
        lambda f: [(f / name).unlink() for name in ("tokenizer.json", "vocab.json", "merges.txt")],
        "holds no tokenizer of a GPT-1",
    ),
    "more pieces": (
        lambda f: BPETokenizer([*vocabulary()[0], "zz"], vocabulary()[1]).save(f),
        r"the vocabulary has \d+ pieces, but there are embeddings for \d+",
    ),
}


@pytest.mark.parametrize(("damage", "words"), BROKEN_FOLDER.values(), ids=BROKEN_FOLDER.keys())
def test_broken_folders_are_refused(tmp_path: Path, damage: Callable[[Path], Any], words: str) -> None:
    published(tmp_path / "theirs")
    damage(tmp_path / "theirs")
    assert recognises(tmp_path / "theirs")
    with pytest.raises(InputError, match=words):
        import_gpt(tmp_path / "theirs", tmp_path / "out")
    assert not (tmp_path / "theirs" / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_rows_without_a_piece_may_follow_the_vocabulary(tmp_path: Path) -> None:
    published(tmp_path / "theirs")
    weights_with(lambda t: t.update({WORDS: torch.cat([t[WORDS], torch.ones(3, HIDDEN)])}))(tmp_path / "theirs")
    edited("config.json", lambda c: c.update(vocab_size=c["vocab_size"] + 3))(tmp_path / "theirs")
    read = read_gpt_folder(tmp_path / "theirs")
    assert read.config.vocab_size == read.tokenizer.vocab_size + 3
    import_gpt(tmp_path / "theirs", tmp_path / "out")
    saved = open_gpt(str(tmp_path / "out"))
    assert saved.weights is not None
    assert len(saved.weights["word.weight"]) == saved.config.vocab_size

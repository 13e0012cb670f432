"""GPT-1 from OpenAI's release: the numbers of transformers' model, and every broken file by its name."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.errors import InputError
from bertwright.interop.import_model import import_model
from bertwright.interop.openai import is_gpt1, read_gpt
from bertwright.text.bpe import BPETokenizer
from tests.support.gpt_files import (
    HIDDEN,
    LAYERS,
    OWN_TEXT,
    Code,
    assert_same_as_transformers,
    edited,
    published,
    release,
    vocabulary,
)

OLDER = Path(sys.prefix) / "transformers4"
CONVERT = """
import json, sys
import torch, transformers
from transformers.models.openai.modeling_openai import load_tf_weights_in_openai_gpt
release, ours = sys.argv[1:]
model = transformers.OpenAIGPTLMHeadModel(transformers.AutoConfig.from_pretrained(ours))
load_tf_weights_in_openai_gpt(model.transformer, model.config, release)
opened, report = transformers.OpenAIGPTLMHeadModel.from_pretrained(ours, output_loading_info=True)
assert not any(report.values()), report
pairs = zip(model.transformer.named_parameters(), opened.transformer.named_parameters(), strict=True)
assert all(name == other and torch.equal(one, two) for (name, one), (other, two) in pairs)
print(transformers.__version__, len(opened.transformer.state_dict()))
texts = sys.stdin.read().splitlines()
print(json.dumps(transformers.AutoTokenizer.from_pretrained(ours)(texts)["input_ids"]))
print(json.dumps(transformers.OpenAIGPTTokenizer.from_pretrained(ours)(texts)["input_ids"]))
"""

FOUND = {
    "architecture": "OpenAIGPTLMHeadModel",
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": 12,
    "cased": False,
    "labels": [],
    "task": "",
    "vectors": "",
    "left_out": [],
}


def test_the_release_becomes_a_model_folder_of_the_same_numbers(tmp_path: Path) -> None:
    weights = release(tmp_path / "model")
    assert is_gpt1(tmp_path / "model")
    said = import_model(str(tmp_path / "model"), tmp_path / "out")
    total = sum(tensor.numel() for tensor in weights.values())
    expected = FOUND | {
        "found": "a GPT-1 as OpenAI released it, 10 numpy files",
        "vocabulary": len(vocabulary()[0]),
        "parameters": total,
        "model": str(tmp_path / "out"),
    }
    assert {name: said[name] for name in said if name != "text"} == expected
    assert_same_as_transformers(tmp_path / "out", weights)
    assert is_gpt1(tmp_path / "out")
    again = import_model(str(tmp_path / "out"), tmp_path / "again")
    assert again["found"] == "a GPT-1 in Hugging Face's layout, model.safetensors"
    for file in (tmp_path / "out").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_the_conversion_of_transformers_4_gives_the_same_bits_and_ids(tmp_path: Path) -> None:
    """Only the fourth line converts the release, given names; its slow tokenizer is plain Python."""
    assert OLDER.is_dir(), f"{OLDER} is missing: `make slow` installs it"
    release(tmp_path / "model")
    import_model(str(tmp_path / "model"), tmp_path / "out")
    parts = {"attn/c_attn": "wb", "attn/c_proj": "wb", "ln_1": "gb", "mlp/c_fc": "wb", "mlp/c_proj": "wb", "ln_2": "gb"}
    names = [f"h{layer}/{part}/{leaf}" for layer in range(LAYERS) for part in parts for leaf in parts[part]]
    named = [f"model/{name}:0" for name in ("we", *names)]
    (tmp_path / "model" / "parameters_names.json").write_text(json.dumps(named))
    command = [sys.executable, "-c", CONVERT, str(tmp_path / "model"), str(tmp_path / "out")]
    text = OWN_TEXT.read_text("utf-8")
    answered = subprocess.run(
        command, check=False, capture_output=True, text=True, input=text, env={**os.environ, "PYTHONPATH": str(OLDER)}
    )
    assert answered.returncode == 0, answered.stderr
    about, fast, slow = answered.stdout.splitlines()
    assert about.startswith("4.57.")
    assert about.endswith(f" {2 + 12 * LAYERS}")
    ids = BPETokenizer.load(tmp_path / "out").ids(text.splitlines())
    assert json.loads(fast) == json.loads(slow) == ids


def test_only_a_gpt_is_recognised(tmp_path: Path) -> None:
    release(tmp_path / "model")
    for name in ("params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe", "params_0.npy"):
        only = tmp_path / f"only {name}"
        only.mkdir()
        shutil.copyfile(tmp_path / "model" / name, only / name)
        assert is_gpt1(only)
    for config in ('{"model_type": "bert"}', '{"model_type": "gpt2"}', "[]", "{"):
        (tmp_path / "config.json").write_text(config)
        assert not is_gpt1(tmp_path)
    assert not is_gpt1(tmp_path / "absent")
    assert not is_gpt1(tmp_path / "config.json")


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("params.npy", b"")


def shard(index: int, edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A change to the numbers of a shard."""

    def change(folder: Path) -> None:
        path = folder / f"params_{index}.npy"
        np.save(path, edit(np.load(path)))

    return change


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def value_at_two(value: float) -> Callable[[Any], Any]:
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
        r"tensor 8: expected the shape \[1, 24, 96\] of a GPT-1, got \[1, 96, 24\]",
    ),
    "two widths": (
        edited("params_shapes.json", lambda s: s[1].__setitem__(1, 25)),
        r"tensor 1: expected the shape \[\d+, 24\] of a GPT-1, got \[\d+, 25\]",
    ),
    "a width for no 12 heads": (
        edited(
            "params_shapes.json",
            lambda s: [[n // 24 * 25 if n % 24 == 0 else n for n in shape] for shape in s],
        ),
        r"params_shapes\.json: hidden is 25, which is not a multiple of the 12 heads of the release",
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
        r"params_5\.npy: not a complete numpy file of plain numbers: mmap length is greater than file size",
    ),
    "truncated in its header": (
        lambda f: os.truncate(f / "params_5.npy", 50),
        r"params_5\.npy: not a complete numpy file",
    ),
    "empty": (lambda f: os.truncate(f / "params_5.npy", 0), r"params_5\.npy: not a complete numpy file"),
    "more numbers than a machine holds": (
        lambda f: (f / "params_5.npy").write_bytes(
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**15,)}")
        ),
        r"params_5\.npy: not a complete numpy file",
    ),
    "a header with a hole": (
        lambda f: (f / "params_5.npy").write_bytes(header("{'descr': ('<f4', [('''")),
        r"params_5\.npy: not a complete numpy file",
    ),
    "an archive": (lambda f: zipped(f / "params_5.npy"), r"params_5\.npy: not a complete numpy file of plain numbers"),
    "objects with code": (
        lambda f: np.save(f / "params_5.npy", np.array([Code(f / "ran")], dtype=object), allow_pickle=True),
        r"params_5\.npy: not a complete numpy file of plain numbers: \w",
    ),
    "a bare pickle": (
        lambda f: (f / "params_5.npy").write_bytes(pickle.dumps(Code(f / "ran"))),
        r"params_5\.npy: not a complete numpy file of plain numbers",
    ),
    "not a number": (
        shard(0, value_at_two(np.nan)),
        r"values that are no numbers in encoder\.embeddings\.position\.weight$",
    ),
    "infinite": (shard(9, value_at_two(-np.inf)), r"values that are no numbers in encoder\.layers\.1\."),
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
        r"encoder_bpe_40000\.json: holds (\d+) pieces, but params_shapes\.json has embeddings for \d+; the numbers",
    ),
    "a hole in the ids": (
        edited("encoder_bpe_40000.json", lambda ids: ids.update({"zz": len(ids) + 1})),
        r"encoder_bpe_40000\.json: the piece 'zz' has the id \d+; expected \d+",
    ),
    "no header": (
        lambda f: (f / "vocab_40000.bpe").write_text("a b\n"),
        r"vocab_40000\.bpe:1: expected a first line '#version: 0\.2', got 'a b'",
    ),
}


@pytest.mark.parametrize(("damage", "words"), BROKEN_RELEASE.values(), ids=BROKEN_RELEASE.keys())
def test_broken_releases_are_refused(tmp_path: Path, damage: Callable[[Path], Any], words: str) -> None:
    release(tmp_path / "model")
    damage(tmp_path / "model")
    assert is_gpt1(tmp_path / "model")
    with pytest.raises(InputError, match=words):
        import_model(str(tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "model" / "ran").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_reader_says_what_is_broken_before_anything_is_written(tmp_path: Path) -> None:
    release(tmp_path / "model")
    os.truncate(tmp_path / "model" / "params_5.npy", 1000)
    with pytest.raises(InputError, match=r"params_5\.npy"):
        read_gpt(tmp_path / "model")
    (tmp_path / "out").mkdir()
    published(tmp_path / "theirs")
    with pytest.raises(InputError, match="out: exists already; name another folder or remove it"):
        import_model(str(tmp_path / "theirs"), tmp_path / "out")

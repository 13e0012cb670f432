"""The compiled steps of answering, built for every width of vectors, against torch."""

import ctypes
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from bertwright.jit import compiler_words, cpp_compiler
from bertwright.model.config import size_config
from bertwright.model.cpu import kernels
from bertwright.model.cpu.encoder import PackedLayer
from bertwright.model.cpu.modern_encoder import PackedModernEncoder
from bertwright.model.cpu.packing import multiplies_halves
from bertwright.model.cpu.products import HalfProduct, PackedProduct
from bertwright.model.encoder import EncoderLayer
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.modern_encoder import ModernEncoder
from tests.support.processor import needs_halves

ARCHITECTURES = {"x86-64": 8, "x86-64-v3": 16, "x86-64-v4": 32, "icelake-server": 32}
"""Kind of processor → number of outputs that are computed together: two registers of 4, 8 or 16 floats."""


def built_for(architecture: str, folder: Path, *flags: str) -> ctypes.CDLL:
    """Build the library for another processor; one without a C++ compiler or of another kind skips the test."""
    compiler, out = cpp_compiler(), folder / "kernels.so"
    if platform.machine() != "x86_64" or compiler is None:
        pytest.skip("needs a C++ compiler on x86")
    sources = [str(path) for path in kernels._SOURCES if path.suffix == ".cpp"]
    command = [*compiler_words(compiler), *kernels._FLAGS, f"-march={architecture}", *flags, *sources, "-o", str(out)]
    result = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    return ctypes.CDLL(str(out))


@pytest.fixture(scope="module")
def narrowest(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library with vectors of 4 floats, which every x86 runs."""
    return built_for("x86-64", tmp_path_factory.mktemp("narrowest"))


def is_gcc() -> bool:
    if (compiler := cpp_compiler()) is None:
        return False
    command = [*compiler_words(compiler), "-dM", "-E", "-x", "c++", os.devnull]
    macros = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    return "__GNUC__" in macros and "__clang__" not in macros


@pytest.mark.skipif(not is_gcc(), reason="of all compilers only g++ reports a vector that it cannot keep in a register")
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_vector_is_a_register(architecture: str, tmp_path: Path) -> None:
    built = built_for(architecture, tmp_path, "-Werror=vector-operation-performance")
    assert built.columns() == ARCHITECTURES[architecture]


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=needs_halves)])
@pytest.mark.parametrize("width", ["native", "narrowest"])
@pytest.mark.parametrize(("queries", "tokens"), [(1, 1), (7, 7), (1, 33), (33, 33), (7, 200)])
@pytest.mark.parametrize("head", [32, 64])
def test_attention_of_each_width_is_that_of_torch(
    width: str, queries: int, tokens: int, head: int, *, half: bool, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = kernels.library() if width == "native" else request.getfixturevalue("narrowest")
    assert built is not None
    monkeypatch.setattr(kernels, "library", lambda: built)
    generator = torch.Generator().manual_seed(tokens)
    begins = torch.tensor([0, tokens, tokens + 1, 2 * tokens + 1])  # the second text has one token
    query_begins = torch.tensor([0, queries, queries + 1, 2 * queries + 1])
    query = torch.randn(2 * queries + 1, 2 * head, generator=generator)
    key_value = torch.randn(2 * tokens + 1, 4 * head, generator=generator)
    attended = kernels.attend(query, key_value, begins, query_begins, heads=2, half=half)
    monkeypatch.setattr(kernels, "library", lambda: None)
    wanted = kernels.attend(query, key_value, begins, query_begins, heads=2)
    in_halves = half and width == "native"
    torch.testing.assert_close(attended, wanted, atol=0.03 if in_halves else 2e-6, rtol=0 if in_halves else 1e-5)


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=needs_halves)])
@pytest.mark.parametrize("width", ["native", "narrowest"])
@pytest.mark.parametrize("radius", [0, 3, 64])
def test_a_window_around_each_query_is_that_of_torch(
    width: str, radius: int, *, half: bool, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = kernels.library() if width == "native" else request.getfixturevalue("narrowest")
    monkeypatch.setattr(kernels, "library", lambda: built)
    generator = torch.Generator().manual_seed(radius)
    begins = torch.tensor([0, 150, 151, 260])
    positions = torch.cat([torch.arange(150), torch.tensor([4]), 2 * torch.arange(109)])  # the last text has gaps
    chosen = torch.tensor([149, 0, 77, 78, 150, 259, 200, 201, 202])  # rows of all texts, not in order
    query_begins = torch.tensor([0, 4, 5, 9])
    query, key_value = (torch.randn(260, width, generator=generator) for width in (64, 128))
    window = kernels.Window(radius, positions, positions[chosen])
    attended = kernels.attend(query[chosen], key_value, begins, query_begins, heads=2, half=half, window=window)
    keep = (positions[chosen, None] - positions).abs() <= radius
    for text in range(3):
        rows, columns = (slice(int(edges[text]), int(edges[text + 1])) for edges in (query_begins, begins))
        keep[rows, : columns.start] = keep[rows, columns.stop :] = False
    parts = [part.unflatten(1, (2, 32)).transpose(0, 1) for part in (query[chosen], *key_value.chunk(2, dim=1))]
    scores = (parts[0] @ parts[1].transpose(1, 2) / 32**0.5).masked_fill(~keep, -torch.inf)
    wanted = (scores.softmax(-1) @ parts[2]).transpose(0, 1).flatten(1)
    in_halves = half and width == "native"
    torch.testing.assert_close(attended, wanted, atol=0.03 if in_halves else 2e-6, rtol=0 if in_halves else 1e-5)


def test_few_rows_of_the_narrowest_vectors_are_those_of_torch(
    narrowest: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "library", lambda: narrowest)
    plain = EncoderLayer(size_config("mini", 30, hidden_dropout=0.0, attention_dropout=0.0)).eval()
    layer = PackedLayer(plain, PackedProduct)
    hidden = torch.randn(3, 11, 256, generator=torch.Generator().manual_seed(0))
    keep = torch.ones(3, 1, 1, 11, dtype=torch.bool)
    with torch.inference_mode():
        answered = layer(hidden.flatten(0, 1), torch.arange(4) * 11)
        torch.testing.assert_close(answered, plain(hidden, keep).flatten(0, 1), atol=1e-5, rtol=1e-5)
    assert layer._fused is not None


def test_few_rows_of_modernbert_with_the_narrowest_vectors_are_those_of_torch(
    narrowest: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModernBertConfig(vocab_size=30, hidden=128, layers=2, heads=2, intermediate=192, window=6, pad_id=0)
    plain = ModernEncoder(config).eval()
    ids = torch.randint(30, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        wanted = plain(ids, ids, mask).last
        monkeypatch.setattr(kernels, "library", lambda: narrowest)
        packed = PackedModernEncoder(plain, PackedProduct)
        torch.testing.assert_close(packed(ids, ids, mask).last, wanted, atol=1e-5, rtol=1e-5)
    assert all(layer._fused for layer in packed.layers)


def test_a_library_without_bf16_computes_no_layer_in_bf16(
    narrowest: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "library", lambda: narrowest)
    layer = PackedLayer(EncoderLayer(size_config("mini", 30)).eval(), HalfProduct)
    assert layer.most_fused == 0
    assert not multiplies_halves(size_config("mini", 30))

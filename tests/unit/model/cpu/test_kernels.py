"""The compiled steps of answering, built for every width of vectors, against torch."""

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from bertwright.jit import compiler_words, cpp_compiler
from bertwright.model.cpu import kernels

ARCHITECTURES = {"x86-64": 8, "x86-64-v3": 16, "x86-64-v4": 32}
"""Kind of processor → number of outputs that are computed together: two registers of 4, 8 or 16 floats."""


def built_for(architecture: str, folder: Path) -> ctypes.CDLL:
    """Build the library for another processor; a vector that does not fit into its registers is an error."""
    compiler, out = cpp_compiler(), folder / "kernels.so"
    assert compiler is not None
    flags = [*kernels._FLAGS, f"-march={architecture}", "-Werror=vector-operation-performance"]
    sources = [str(path) for path in kernels._SOURCES if path.suffix == ".cpp"]
    subprocess.run([*compiler_words(compiler), *flags, *sources, "-o", str(out)], check=True, capture_output=True)
    return ctypes.CDLL(str(out))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the architectures are those of x86")
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_vector_is_a_register(architecture: str, tmp_path: Path) -> None:
    built = built_for(architecture, tmp_path)
    assert built.columns() == ARCHITECTURES[architecture]


@pytest.mark.parametrize("architecture", ["native", "x86-64"])
@pytest.mark.parametrize("tokens", [1, 7, 33, 200])
def test_attention_of_each_width_is_that_of_torch(
    architecture: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if architecture != "native":
        if platform.machine() != "x86_64":
            pytest.skip("the architectures are those of x86")
        built = built_for(architecture, tmp_path)
        monkeypatch.setattr(kernels, "library", lambda: built)
    generator = torch.Generator().manual_seed(tokens)
    query, key_value = (torch.randn(3, tokens, width, generator=generator) for width in (128, 256))
    keep = torch.rand(3, 1, 1, tokens, generator=generator) < 0.8
    keep[..., 0] = True
    attended = kernels.attend(query, key_value, keep, heads=2)
    monkeypatch.setattr(kernels, "library", lambda: None)
    torch.testing.assert_close(attended, kernels.attend(query, key_value, keep, heads=2), atol=2e-6, rtol=1e-5)

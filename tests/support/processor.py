"""Marks of tests that only some processors can pass."""

import pytest

from bertwright.model.config import size_config
from bertwright.model.cpu.packing import multiplies_halves
from bertwright.tasks import inference

needs_bytes = pytest.mark.skipif(not inference.multiplies_bytes(), reason="this processor has no VNNI")
"""Products of 8 bits overflow in other processors, where the program computes in fp32 instead."""

needs_halves = pytest.mark.skipif(
    not multiplies_halves(size_config("mini", 100)), reason="this processor has no bf16 instructions, or AMX"
)
"""Layers in bf16 are packed in no other processor."""

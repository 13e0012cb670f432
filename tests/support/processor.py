"""Marks of tests that only some processors can pass."""

import pytest

from bertwright.tasks import inference

needs_bytes = pytest.mark.skipif(not inference.multiplies_bytes(), reason="this processor has no VNNI")
"""Products of 8 bits overflow in other processors, where the program computes in fp32 instead."""

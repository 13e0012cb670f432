"""The compiled steps of training in bf16 against torch."""

import pytest
import torch

from bertwright.model.cpu import training_kernels


def tile_of(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits without bias in bf16, a bias, and labels around columns that begin at 100."""
    generator = torch.Generator().manual_seed(rows)
    labels = torch.randint(100 - columns, 100 + 2 * columns, (rows,), generator=generator)
    logits = 4 * torch.randn(rows, columns, generator=generator)
    return logits.bfloat16(), torch.randn(columns, generator=generator), labels


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (37, 45), (600, 384)])
@pytest.mark.parametrize("threads", [1, 2])
def test_exponentials_leave_out_the_label(rows: int, columns: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    tile, bias, labels = tile_of(rows, columns)
    exact = (tile.double() + bias).exp()
    inside = (labels >= 100) & (labels < 100 + columns)
    exact[inside, labels[inside] - 100] = 0.0
    sums = torch.full((rows,), 3.0)
    training_kernels.exponentials(tile, bias, labels, sums, first=100)
    torch.set_num_threads(before)
    torch.testing.assert_close(tile.double(), exact, atol=0, rtol=2**-8)
    torch.testing.assert_close(sums.double(), 3.0 + exact.sum(1), atol=0, rtol=1e-6)


def test_a_logit_that_no_float_can_raise_makes_a_sum_that_is_refused() -> None:
    sums = torch.zeros(1)
    training_kernels.exponentials(
        torch.full((1, 3), 300.0).bfloat16(), torch.zeros(3), torch.tensor([9]), sums, first=0
    )
    assert float(sums) > 1e20


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (37, 45), (600, 384)])
def test_column_sums_have_the_weights_of_the_rows(rows: int, columns: int) -> None:
    tile, _, _ = tile_of(rows, columns)
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(1))
    exact = weights.double() @ tile.double()
    torch.testing.assert_close(training_kernels.column_sums(tile, weights).double(), exact, atol=1e-4, rtol=1e-5)

"""AdamW on a table with sparse gradients against torch's AdamW on the whole table."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.training.checkpoint import load_checkpoint, save_checkpoint
from bertwright.training.optimizer import AdamW, build_optimizer, clip_gradients, set_rate
from bertwright.training.settings import OptimizerSettings

SIZE, STEPS = 50, 60
SETTINGS = OptimizerSettings(learning_rate=1e-2, weight_decay=0.1, bias_correction=True)


class Reader(nn.Module):
    """A table that is read, and a layer behind it."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(SIZE, 24, sparse=sparse)
        self.layer = nn.Linear(24, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.layer(self.table(ids))
        return out


def ids_of(step: int) -> Tensor:
    """Rows 0 to 9 often, others seldom, 45 to 49 never; with repeats."""
    generator = torch.Generator().manual_seed(step)
    often = torch.randint(0, 10, (2, 6), generator=generator)
    return torch.cat([often, torch.randint(0, 45, (2, 1), generator=generator)], dim=1)


def train(model: Reader, optimizer: AdamW, steps: range) -> None:
    model.train()
    for step in steps:
        optimizer.zero_grad(set_to_none=True)
        model(ids_of(step)).square().sum().backward()
        clip_gradients(model.parameters(), 0.5)
        set_rate(optimizer, SETTINGS.learning_rate * (1 - step / STEPS))
        optimizer.step()


def test_the_weights_are_those_of_adamw_on_the_whole_table() -> None:
    models = {sparse: Reader(sparse=sparse) for sparse in (True, False)}
    for model in models.values():
        optimizer = build_optimizer(model, SETTINGS)
        train(model, optimizer, range(STEPS))
        optimizer.apply_pending_decay()
    start = Reader(sparse=False).table.weight
    assert float((models[False].table.weight[45:] - start[45:]).abs().max().detach()) > 0.01  # unread rows decay
    for name, tensor in models[True].state_dict().items():
        torch.testing.assert_close(tensor, models[False].state_dict()[name], atol=2e-6, rtol=2e-6, msg=name)


def test_a_row_is_up_to_date_when_it_is_first_read() -> None:
    model = Reader(sparse=True)
    train(model, build_optimizer(model, SETTINGS), range(STEPS))
    before = model.table.weight[[48, 49]].detach().clone()
    model.train()
    model(torch.tensor([[49]]))
    assert torch.equal(model.table.weight[48], before[0])
    assert bool((model.table.weight[49].abs() < before[1].abs()).all())


def test_reading_without_training_changes_nothing() -> None:
    model = Reader(sparse=True)
    optimizer = build_optimizer(model, SETTINGS)
    train(model, optimizer, range(5))
    before = copy.deepcopy(model.state_dict())
    model.eval()
    model(torch.arange(SIZE))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_resumed_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole = Reader(sparse=True)
    optimizer = build_optimizer(whole, SETTINGS)
    train(whole, optimizer, range(STEPS // 2))
    save_checkpoint(tmp_path, whole, optimizer, step=STEPS // 2, notes={})
    train(whole, optimizer, range(STEPS // 2, STEPS))
    again = Reader(sparse=True)
    resumed = build_optimizer(again, SETTINGS)
    assert load_checkpoint(tmp_path, again, resumed) == (STEPS // 2, {})
    train(again, resumed, range(STEPS // 2, STEPS))
    for one in (optimizer, resumed):
        one.apply_pending_decay()
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("begun", [False, True])
def test_a_sparse_table_and_a_dense_one_resume_from_each_other(tmp_path: Path, begun: bool) -> None:
    """Several processes train dense tables, one process trains sparse ones."""
    undisturbed, first, second = Reader(sparse=False), Reader(sparse=begun), Reader(sparse=not begun)
    train(undisturbed, build_optimizer(undisturbed, SETTINGS), range(STEPS))
    optimizer = build_optimizer(first, SETTINGS)
    train(first, optimizer, range(STEPS // 2))
    save_checkpoint(tmp_path, first, optimizer, step=STEPS // 2, notes={})
    optimizer = build_optimizer(second, SETTINGS)
    assert load_checkpoint(tmp_path, second, optimizer) == (STEPS // 2, {})
    train(second, optimizer, range(STEPS // 2, STEPS))
    optimizer.apply_pending_decay()
    for name, tensor in second.state_dict().items():
        torch.testing.assert_close(tensor, undisturbed.state_dict()[name], atol=2e-6, rtol=2e-6, msg=name)


def test_a_checkpoint_of_another_version_is_named(tmp_path: Path) -> None:
    other = torch.nn.Linear(2, 2)
    save_checkpoint(tmp_path, other, build_optimizer(other, SETTINGS), step=1, notes={})
    model = Reader(sparse=True)
    with pytest.raises(
        InputError, match=r"step-000000001: expected the tensor table.weight.* another version of bertwright wrote"
    ):
        load_checkpoint(tmp_path, model, build_optimizer(model, SETTINGS))


def test_a_second_optimiser_takes_the_table_over() -> None:
    model = Reader(sparse=True)
    train(model, build_optimizer(model, SETTINGS), range(10))
    second = build_optimizer(model, SETTINGS)
    before = model.table.weight.detach().clone()
    model.train()
    model(torch.arange(SIZE))
    assert torch.equal(model.table.weight, before)
    assert second.tables[0].state["seen"].all()

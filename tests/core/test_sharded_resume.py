"""A state that is loaded before the network is sharded leaves the weights of the run that it is from, to the last bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.support.sharded import local, whole


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def start() -> tuple[nn.Module, Plan]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 9), nn.ReLU(), nn.Linear(9, 3))
    return model, compress(model, ContinuousSparsification(target=0.5), SMOL(target_bits=3), steps=40)


def shard(model: nn.Module) -> torch.optim.Optimizer:
    mesh = init_device_mesh("cpu", (1,))
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def weights(model: nn.Module) -> list[Tensor]:
    return [local(layer.weight.detach()).clone() for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("one_rank")
def test_weights_are_those_of_the_run_to_the_last_bit() -> None:
    model, plan = start()
    optimizer = shard(model)
    rows = torch.randn(16, 7)
    for _ in range(8):
        for _ in range(3):
            nn.functional.cross_entropy(model(rows), torch.arange(16) % 3).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
        other, continued = start()
        other.load_state_dict({name: whole(value) for name, value in model.state_dict().items()})
        shard(other)
        continued.load_state_dict(plan.state_dict())
        assert all(map(torch.equal, weights(model), weights(other)))

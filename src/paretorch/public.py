"""`compress` as users call it: the core's, with byte budgets measured by the artefact's own encoder."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from paretorch.core.compress import compress as _compress
from paretorch.core.finish.byte_budget import Meter
from paretorch.core.method import Method
from paretorch.core.plan import Plan
from paretorch.edits import Edit
from paretorch.support.inputs import Example


def compress(
    model: nn.Module,
    *methods: Method,
    steps: int,
    example: Example | None = None,
    budget: int | None = None,
    seed: int = 0,
) -> Plan:
    """Attach the methods to the model's weights and return the plan that trains, rounds and removes them.

    steps: optimizer steps until `harden`. example: a batch of inputs, if channels are to be removed (`group="channel"`) or
    activations quantized: a tensor, a tuple of the model's arguments, or a dict of keyword arguments.
    budget: bytes of the saved file, kept at `finalize`. seed: of the noise.
    Load pretrained weights before; wrap in DDP, FSDP2, compile or an average after.
    """
    meter: Meter | None = None
    if budget is not None:
        from paretorch.deploy import encoded_size

        def meter(state: Mapping[str, Tensor], edits: Sequence[Edit]) -> int:
            return encoded_size(state, model, edits)

    return _compress(model, *methods, steps=steps, example=example, budget=budget, seed=seed, meter=meter)

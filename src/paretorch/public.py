"""`compress` as users call it: the core's, with byte budgets measured by the artefact's own encoder; `shrink` and `distillation_loss`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paretorch.core.arguments import check_arguments
from paretorch.core.compress import compress as _compress
from paretorch.core.finish.byte_budget import Meter
from paretorch.core.finish.latency_budget import require_cuts
from paretorch.core.method import Method
from paretorch.core.plan import Plan
from paretorch.edits import Edit
from paretorch.errors import ConfigError
from paretorch.support.inputs import Example
from paretorch.support.text import dense_bytes, parse_bytes


def compress(
    model: nn.Module,
    *methods: Method,
    steps: int,
    example: Example | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    compact: bool = False,
    compile: bool = False,
    runtime: str | None = None,
    latency: str | None = None,
) -> Plan:
    """Attach the methods to the model's weights and return the plan that trains, rounds and removes them.

    steps: optimizer steps until `harden`. example: a batch of inputs, if channels are to be removed (`group="channel"`) or
    activations quantized: a tensor, a tuple of the model's arguments, or a dict of keyword arguments.
    budget: bytes of the saved file, kept at `finalize`: a number, or text such as "1.3 MB", "500 KiB" or "1/10" of the dense network.
    seed: of the noise. compact: with a budget, which counts it: `finalize` folds batch norms to the two vectors that evaluation needs and rounds
    vectors (norms, biases) to bfloat16. The network is not for further training then.
    compile: have torch's compiler make one piece of schedules and feedback, which takes 5 to 30 seconds once; for loops that are captured
    as one CUDA graph. Nothing is compiled otherwise.
    runtime: where the network will run, such as "onnxruntime-int4" or "gguf:Q4_0": `SMOL` or `LSQ` then trains weights on the values that it
    stores, and `export` writes exactly these. Layers that it has no codes for stay in fp16.
    latency: the time of a batch like the example: "5 ms", or "1/2" of the dense network's. `harden` removes channels until the exported network, measured
    on this machine's CPU, takes 0.95 to 1.00 of it. Measured under onnxruntime, or runtime="torch"; needs `group="channel"` without a target.
    Load pretrained weights before; wrap in DDP, FSDP2, compile or an average after.

    Example:
        >>> import torch, paretorch as pt
        >>> model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
        >>> plan = pt.compress(model, pt.ContinuousSparsification(target=0.9), steps=100)
        >>> plan
        Plan(ContinuousSparsification: 2 weights, searching, 100 steps)
        >>> small = plan.finalize()  # after 100 steps of your loop
        >>> int((small[0].weight == 0).sum() + (small[2].weight == 0).sum())
        1350
    """
    if compact and budget is None:
        raise ConfigError(
            "compact=True says what a budget counts: give a budget, or save the model with fold_norms=True"
        )
    time, stopwatch = None, None
    if latency is not None:
        check_arguments(model, methods, steps, None, seed)
        require_cuts(methods, example is not None)
        assert example is not None
        from paretorch.deploy.measure.stopwatch import TIMED_ONLY, stopwatch_for

        time, stopwatch = stopwatch_for(model, example, runtime, latency)
        runtime = None if runtime in TIMED_ONLY else runtime
    if runtime is not None:
        from paretorch.deploy.runtimes import restrict

        if budget is not None:
            raise ConfigError(f"runtime={runtime!r} says what a weight takes: leave out budget=, or give target_bits")
        methods = restrict(model, methods, runtime, cuts=example is not None)
    meter: Meter | None = None
    finish = None
    if budget is not None:
        if isinstance(budget, str) and isinstance(model, nn.Module):
            budget = parse_bytes(budget, lambda: dense_bytes(model))
        if compact:
            from paretorch.training.norms import compact_meter, make_compact

            meter, finish = compact_meter(model), make_compact
        else:
            from paretorch.deploy import encoded_size

            def meter(state: Mapping[str, Tensor], edits: Sequence[Edit]) -> int:
                return encoded_size(state, model, edits)

    return _compress(
        model,
        *methods,
        steps=steps,
        example=example,
        budget=budget,
        seed=seed,
        compile=compile,
        meter=meter,
        finish=finish,
        latency=time,
        stopwatch=stopwatch,
    )


def distillation_loss(
    student_outputs: Any, teacher_outputs: Any, temperature: float = 1.0, *, mask: Tensor | None = None, dim: int = -1
) -> Tensor:
    """Return how far the student's outputs are from the teacher's, as a tensor of no dimensions to call `backward` on.

    Of logits it is the mean KL divergence of the student from the teacher, times the square of the temperature; of an
    encoder's `last_hidden_state` the squared error relative to the teacher's squares. Outputs may be tensors, tuples, dicts,
    dataclasses or transformers outputs. The teacher gets no gradient; run it in evaluation mode.

    Args:
        temperature: Above 0. A larger one counts classes that the teacher finds unlikely.
        mask: Which rows count, such as a tokenizer's `attention_mask`: the shape of the logits without their classes.
        dim: The dimension of the classes.

    Example:
        >>> import torch, paretorch as pt
        >>> student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]])
        >>> round(float(pt.distillation_loss(student, teacher)), 4)
        0.3278
    """
    from paretorch.training.distillation import distillation_loss as loss  # training is too much to import for all

    return loss(student_outputs, teacher_outputs, temperature, mask=mask, dim=dim)


def shrink(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    budget: int | str | None = None,
    steps: int = 1000,
    folder: str | Path | None = None,
    progress: str = "auto",
    runtime: str | None = None,
    latency: str | None = None,
) -> nn.Module:
    """Return a smaller network: a trained model rounded to a byte budget, or cut to a latency, and trained to answer as before.

    The model is its own teacher, so that batches need no labels. It stays as it is; what is returned is a plain module in evaluation mode
    whose file, as `paretorch.save` writes it, is within the budget. Weights are rounded by second-order post-training, then
    trained straight through at a rate that a line search finds. What training gives is kept only if it is nearer to the model on
    batches that were held out.

    Args:
        model: A trained network: convolutional, a transformer, a language model, with tied weights or not.
        batches: What the model takes: tensors, tuples of arguments or dicts of keyword arguments; labels after the inputs are left out. A list
            or a data loader is read as often as needed, an iterator must yield `steps` batches and a few more.
        budget: Bytes of the file: a number, or text such as "4 MB", "500 KiB" or "1/10" of the dense network.
        runtime: In place of a budget: where the network will run, such as "gguf:Q4_0". Weights are rounded to and trained on the values that
            it stores, and `export` writes exactly these.
        latency: The time of one row of a batch, exported and measured on this machine's CPU: "5 ms", or "1/2" of the dense network's. Channels are
            removed for it. With a budget or a runtime's formats, these come afterwards, and each gets half of the steps.
        steps: Training steps; 0 rounds only, without any training.
        folder: Where to keep checkpoints, and at the end the file and a record. The same call with the same folder goes on if it was killed.
        progress: "bar", "plain" or "quiet"; "auto" is a bar on a terminal, and quiet elsewhere.

    Example:
        >>> import torch, paretorch as pt
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        >>> small = pt.shrink(model, [torch.randn(32, 64) for _ in range(8)], budget="3 kB", steps=0)
        >>> small(torch.randn(1, 64)).shape
        torch.Size([1, 10])
    """
    from paretorch.workflows.shrink import shrink_network  # as above

    return shrink_network(
        model, batches, budget=budget, steps=steps, folder=folder, progress=progress, runtime=runtime, latency=latency
    ).model

"""Distillation: a student learns to answer as its teacher does.

Of logits, with a temperature T, classes c and the mean over all rows (images, or tokens that are no padding):

    L = T² · mean_rows Σ_c p_c · (log p_c − log q_c),   p = softmax(teacher / T),  q = softmax(student / T)

the KL divergence of the student from the teacher (Hinton et al., 2015, "Distilling the Knowledge in a Neural Network"); T²
keeps gradients as large as those of T = 1. Encoders give no logits, but hidden states h. Of these:

    L = Σ ‖h_student − h_teacher‖² / Σ ‖h_teacher‖²

over the same rows: 0 if they are equal, 1 if the student gives zeros, whatever the scale. A cosine would leave the lengths of the
states free, which what reads them does not.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.support.checks import require_number
from paretorch.support.inputs import ModelCall, parts_of

ALPHA = 0.9
"""The default weight of the teacher's loss; 1 − ALPHA is that of the task."""
_STATES = "last_hidden_state"
_SMALLEST = 1e-12
_NO_LABEL = -100  # of a token that does not count, for torch and transformers


def distillation_loss(
    student_outputs: Any,
    teacher_outputs: Any,
    temperature: float = 1.0,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """Return how far the student's outputs are from the teacher's, as a tensor of no dimensions to call `backward` on.

    Outputs may be tensors of logits; tuples or lists, whose tensors are all compared (nested parts, such as the states of an
    LSTM, are not); dicts, dataclasses or transformers outputs, of which `logits` count, or else all names that end in "_logits",
    or else `last_hidden_state`, or else all tensors. Several tensors count with their mean. The teacher gets no gradient.

    Args:
        temperature: T, above 0. A larger one counts classes that the teacher finds unlikely.
        mask: Which rows count: True or 1 for tokens, False or 0 for padding, such as a tokenizer's `attention_mask`. It has the
            shape of the logits without their classes. Default: all.
        dim: The dimension of the classes; 1 for maps of images, [N, classes, height, width].

    Example:
        >>> student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]])
        >>> round(float(distillation_loss(student, teacher)), 4)
        0.3278
    """
    require_number("temperature", temperature, 0.0, 1e6, "give a number above 0, such as 1.0 or 4.0", above=True)
    students, teachers = _compared(student_outputs, "student"), _compared(teacher_outputs, "teacher")
    if students.keys() != teachers.keys():
        raise ConfigError(
            f"the outputs do not match: those of the student have {', '.join(students)}, those of the teacher {', '.join(teachers)}"
        )
    losses = []
    for name, student in students.items():
        teacher = teachers[name].detach()
        if student.shape != teacher.shape:
            raise ConfigError(
                f"the outputs do not match: {name} of the student has shape {tuple(student.shape)}, that of the teacher "
                f"{tuple(teacher.shape)}"
            )
        student, teacher, rows = _masked(student, teacher.to(student.device), mask, dim)
        if name == _STATES:
            losses.append(_relative_error(student, teacher))
        else:
            losses.append(_divergence(student, teacher, temperature, dim, rows))
    return torch.stack(losses).mean()


def _compared(outputs: Any, whose: str) -> dict[str, Tensor]:
    """The tensors of an output that are compared, by name."""
    if isinstance(outputs, Tensor):
        return {"logits": outputs}
    found = {
        name: part
        for name, part in parts_of(outputs).items()
        if isinstance(part, Tensor) and part.is_floating_point() and part.dim()  # a loss has no dimensions
    }
    if len(found) == 1 and _STATES not in found:
        return {"logits": next(iter(found.values()))}
    logits = [name for name in found if name.endswith("_logits")]
    names = ["logits"] if "logits" in found else logits or ([_STATES] if _STATES in found else list(found))
    if not names:
        raise ConfigError(f"the {whose} gives {type(outputs).__name__} without tensors to compare: give logits")
    return {name: found[name] for name in names}


def _masked(student: Tensor, teacher: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, Tensor, Tensor | int]:
    """Both in at least fp32, with rows that do not count set to 0, and the number of rows that count."""
    if not student.dim() or not -student.dim() <= dim < student.dim():
        raise ConfigError(f"dim={dim} is no dimension of outputs of shape {tuple(student.shape)}")
    wide = torch.promote_types(student.dtype, torch.float32)
    student, teacher = student.to(wide), teacher.to(wide)
    rows = student.numel() // max(student.shape[dim], 1)
    if mask is None:
        if not rows:
            raise ConfigError(f"outputs of shape {tuple(student.shape)} have no rows: give a batch of at least one")
        return student, teacher, rows
    shape = [size for i, size in enumerate(student.shape) if i != dim % student.dim()]
    if list(mask.shape) != shape:
        raise ConfigError(
            f"mask has shape {tuple(mask.shape)}, and outputs of {tuple(student.shape)} need {tuple(shape)}"
        )
    # Set to 0 before anything is computed: padding may hold numbers that are not finite, and has no gradient.
    counts = mask.to(student.device).bool()
    kept = counts.unsqueeze(dim)
    return student.where(kept, 0.0), teacher.where(kept, 0.0), counts.sum().clamp_min(1)


def _divergence(student: Tensor, teacher: Tensor, temperature: float, dim: int, rows: Tensor | int) -> Tensor:
    if student.shape[dim] < 2:
        raise ConfigError(
            f"outputs of shape {tuple(student.shape)} have fewer than two classes in dimension {dim}: compare numbers by "
            "nn.functional.mse_loss"
        )
    log_q, log_p = ((logits / temperature).log_softmax(dim) for logits in (student, teacher))
    p = log_p.exp()
    # A class that the teacher excludes (logit −∞) counts 0, whatever the student says.
    terms = torch.where(p > 0, p * (log_p - log_q), 0.0)
    return temperature**2 * terms.sum() / rows


def _relative_error(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).square().sum() / teacher.square().sum().clamp_min(_SMALLEST)


class Teacher:
    """A network to learn from, and how much of the loss is its: alpha · distillation + (1 − alpha) · task.

    The network is put into evaluation mode, again whenever something puts it back into training mode, and runs without
    gradients. It must not share parameters with the student.

    Args:
        model: The network; it takes what the student takes.
        alpha: The weight of the teacher's loss, from 0 to 1.
        temperature: As for `distillation_loss`.
    """

    def __init__(self, model: nn.Module, alpha: float = ALPHA, temperature: float = 1.0) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"teacher takes a module, not {type(model).__name__}")
        require_number("alpha", alpha, 0.0, 1.0, "give the weight of the teacher's loss, a number from 0 to 1")
        require_number("temperature", temperature, 0.0, 1e6, "give a number above 0, such as 1.0 or 4.0", above=True)
        self.model, self.alpha, self.temperature = model.eval(), alpha, temperature

    def prepare(self, student: nn.Module, device: torch.device | None = None) -> None:
        """Move the network to where the student is; raise if they share parameters, since one of them is trained."""
        own = {id(parameter) for parameter in student.parameters()}
        if any(id(parameter) in own for parameter in self.model.parameters()):
            raise ConfigError(
                "the teacher shares parameters with the student: give a copy, made by copy.deepcopy(model) before compress"
            )
        first = next(student.parameters(), None)
        self.model.to(device if device is not None or first is None else first.device)

    def outputs(self, run: Callable[[nn.Module], Any]) -> Any:
        """What `run` gives for the network, in evaluation mode and without gradients."""
        if self.model.training:  # Lightning does so if it is part of the module that is trained
            self.model.eval()
        with torch.no_grad():
            return run(self.model)

    def mix(self, loss: Tensor, student: Any, teacher: Any, mask: Tensor | None = None) -> Tensor:
        """The loss to minimise, from the task's and the outputs of both."""
        return self.add(loss, distillation_loss(student, teacher, self.temperature, mask=mask))

    def add(self, loss: Tensor, distilled: Tensor) -> Tensor:
        """alpha · distilled + (1 − alpha) · loss."""
        return self.alpha * distilled + (1 - self.alpha) * loss

    def repeat(self, call: ModelCall, student: Any) -> Tensor:
        """The distillation loss of a student that gave these outputs for this call, without padding."""
        taught = self.outputs(lambda network: call(network))
        return distillation_loss(student, taught, self.temperature, mask=_padding(call, student))


def _padding(call: ModelCall, outputs: Any) -> Tensor | None:
    """Which tokens count, if the arguments of a transformer say so: by the mask of its decoder, its own mask, or its labels."""
    tensors = _compared(outputs, "student")
    rows = next(iter(tensors.values())).shape[:-1]
    given = call.kwargs
    masks = [given.get("decoder_attention_mask")]
    labels = given.get("labels")
    marked = labels != _NO_LABEL if isinstance(labels, Tensor) else None
    # The mask of an encoder is not that of what its decoder gives, even if both are equally long.
    decodes = "decoder_input_ids" in given or "encoder_last_hidden_state" in parts_of(outputs)
    masks += [marked] if decodes else [given.get("attention_mask")]
    return next((mask for mask in masks if isinstance(mask, Tensor) and mask.shape == rows), None)

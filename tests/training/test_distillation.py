"""The loss of a student: the formula, what is compared, what is not, and what is refused."""

import copy
import doctest
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
    QuestionAnsweringModelOutput,
)

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.support import inputs
from paretorch.training import distillation
from paretorch.training.distillation import Teacher


def literal(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """The formula, in a loop."""
    total, rows = 0.0, list(zip(student.flatten(0, -2).tolist(), teacher.flatten(0, -2).tolist(), strict=True))
    for s, t in rows:
        q, p = ([math.exp(x / temperature) for x in row] for row in (s, t))
        total += sum(a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q, strict=True))
    return temperature**2 * total / len(rows)


def logits(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.sampled_from([(3, 4), (2, 3, 5), (1, 2)]), st.sampled_from([0.5, 1.0, 4.0]))
def test_it_is_the_divergence_of_the_student_from_the_teacher(
    seed: int, shape: tuple[int, ...], temperature: float
) -> None:
    student, teacher = logits(*shape, seed=seed), logits(*shape, seed=seed + 100)
    found = float(pt.distillation_loss(student, teacher, temperature))
    assert found == pytest.approx(literal(student, teacher, temperature), rel=1e-4, abs=1e-6)
    assert found >= 0
    assert float(pt.distillation_loss(teacher, teacher, temperature)) == pytest.approx(0.0, abs=1e-6)
    # Logits are known up to a constant per row.
    assert float(pt.distillation_loss(student + 3.0, teacher, temperature)) == pytest.approx(found, rel=1e-3, abs=1e-5)


def test_the_gradient_is_that_of_the_student_alone() -> None:
    student, teacher = logits(3, 4).requires_grad_(), logits(3, 4, seed=1).requires_grad_()
    pt.distillation_loss(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None
    torch.testing.assert_close(student.grad, (student.softmax(1) - teacher.softmax(1)).detach() / 3)


S, T = logits(2, 3, 4), logits(2, 3, 4, seed=1)
LOSS = float(pt.distillation_loss(S, T))
KINDS = [
    (S, (T,)),
    ((S, "state"), [T, None]),
    ((S, (T, T)), (T, (S, S))),
    ({"logits": S, "loss": torch.tensor(3.0)}, {"logits": T}),
    ({"logits": S, "hidden": S}, {"logits": T, "hidden": T + 1}),
    (CausalLMOutputWithPast(logits=S, loss=torch.tensor(1.0)), T),
    (CausalLMOutputWithPast(logits=S), CausalLMOutputWithPast(logits=T, past_key_values=object(), hidden_states=(T,))),
    ({"scores": S}, T),
    (S.to(torch.float64), T.to(torch.float64)),
]


@pytest.mark.parametrize(("student", "teacher"), KINDS)
def test_what_is_compared(student: Any, teacher: Any) -> None:
    assert float(pt.distillation_loss(student, teacher)) == pytest.approx(LOSS, rel=1e-5)


def test_several_outputs_count_with_their_mean() -> None:
    other = float(pt.distillation_loss(2 * S, T))
    mean = pytest.approx((LOSS + other) / 2, rel=1e-5)
    assert float(pt.distillation_loss((S, 2 * S), (T, T))) == mean
    assert float(pt.distillation_loss({"a": S, "b": 2 * S}, {"b": T, "a": T})) == mean
    start = QuestionAnsweringModelOutput(start_logits=S, end_logits=2 * S, hidden_states=(S,))
    assert float(pt.distillation_loss(start, QuestionAnsweringModelOutput(start_logits=T, end_logits=T))) == mean


def test_hidden_states_by_their_relative_error() -> None:
    student, teacher = (BaseModelOutputWithPooling(last_hidden_state=one, pooler_output=one[:, 0]) for one in (S, T))
    expected = float((S - T).square().sum() / T.square().sum())
    assert float(pt.distillation_loss(student, teacher)) == pytest.approx(expected, rel=1e-5)
    assert float(pt.distillation_loss({"last_hidden_state": 0 * T}, teacher)) == pytest.approx(1.0)
    assert float(pt.distillation_loss(teacher, teacher)) == 0.0
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    kept = mask.bool()
    expected = float((S - T)[kept].square().sum() / T[kept].square().sum())
    assert float(pt.distillation_loss(student, teacher, mask=mask)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_padding_does_not_count(kind: torch.dtype) -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    student, teacher = S.clone(), T.clone()
    student[mask == 0], teacher[mask == 0] = math.nan, math.inf
    student.requires_grad_()
    found = pt.distillation_loss(student, teacher, mask=mask.to(kind))
    found.backward()
    assert float(found.detach()) == pytest.approx(float(pt.distillation_loss(S[mask == 1], T[mask == 1])), rel=1e-5)
    assert student.grad is not None
    assert bool((student.grad[mask == 0] == 0).all())
    assert bool((student.grad[mask == 1] != 0).any())
    assert float(pt.distillation_loss(S, T, mask=torch.zeros(2, 3))) == 0.0


def test_maps_of_classes_have_them_in_the_second_dimension() -> None:
    student, teacher = S.movedim(-1, 1), T.movedim(-1, 1)
    assert float(pt.distillation_loss(student, teacher, dim=1)) == pytest.approx(LOSS, rel=1e-5)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    expected = float(pt.distillation_loss(S, T, mask=mask))
    assert float(pt.distillation_loss(student, teacher, dim=1, mask=mask)) == pytest.approx(expected, rel=1e-5)


def test_classes_that_the_teacher_excludes() -> None:
    teacher, student = T.clone(), S.clone().requires_grad_()
    teacher[..., 0] = -math.inf
    found = pt.distillation_loss(student, teacher)
    found.backward()
    assert math.isfinite(float(found.detach()))
    assert student.grad is not None
    assert bool(student.grad.isfinite().all())


def test_half_precision_is_compared_in_single() -> None:
    found = pt.distillation_loss(S.bfloat16(), T.bfloat16())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(LOSS, rel=0.03)


WRONG = [
    ((S, T[:1]), {}, r"logits of the student has shape \(2, 3, 4\), that of the teacher \(1, 3, 4\)"),
    (({"a": S, "b": S}, T), {}, "those of the student have a, b, those of the teacher logits"),
    (("text", T), {}, "the student gives str without tensors to compare"),
    ((S, {"loss": torch.tensor(1.0)}), {}, "the teacher gives dict without tensors"),
    (
        (S[..., :1], T[..., :1]),
        {},
        r"fewer than two classes in dimension -1: compare numbers by nn\.functional\.mse_loss",
    ),
    ((S, T), {"temperature": 0.0}, "temperature=0.0: give a number above 0"),
    ((S, T), {"mask": torch.ones(2, 4)}, r"mask has shape \(2, 4\), and outputs of \(2, 3, 4\) need \(2, 3\)"),
    ((S, T), {"dim": 3}, "dim=3 is no dimension"),
    ((S[:0], T[:0]), {}, "have no rows"),
]


@pytest.mark.parametrize(("outputs", "options", "told"), WRONG)
def test_outputs_that_do_not_match_are_told(outputs: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        pt.distillation_loss(*outputs, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "function", [pt.distillation_loss, distillation.distillation_loss, inputs.read_example, inputs.named_tensors]
)
def test_the_examples_of_the_docstrings_run(function: Any) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_it_compiles_without_a_break() -> None:
    """A step on a GPU may be compiled, and is captured: nothing may ask the host for a value."""
    compiled = torch.compile(pt.distillation_loss, backend="aot_eager", fullgraph=True)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    torch.testing.assert_close(compiled(S, T, 2.0, mask=mask), pt.distillation_loss(S, T, 2.0, mask=mask))
    teacher, student = Teacher(network()), network()

    def step(x: Tensor) -> Tensor:
        return teacher.mix(student(x).sum(), student(x), teacher.outputs(lambda one: one(x)))

    student.eval()
    x = torch.randn(5, 3)
    torch.testing.assert_close(torch.compile(step, backend="aot_eager", fullgraph=True)(x), step(x))


# Teachers


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))


def test_a_teacher_is_in_evaluation_mode_and_has_no_gradients() -> None:
    model = network().train()
    teacher = Teacher(model)
    assert not any(module.training for module in model.modules())
    x, before = torch.randn(5, 3), copy.deepcopy(model.state_dict())
    model.train()
    found = teacher.outputs(lambda one: one(x))
    assert not any(module.training for module in model.modules())
    assert not found.requires_grad
    assert torch.equal(found, model(x))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_teacher_and_task_are_mixed() -> None:
    task = torch.tensor(5.0)
    for alpha in (0.0, 0.3, 1.0):
        mixed = Teacher(network(), alpha, 2.0).mix(task, S, T)
        expected = alpha * float(pt.distillation_loss(S, T, 2.0)) + (1 - alpha) * 5.0
        assert float(mixed) == pytest.approx(expected, rel=1e-5)


def test_teachers_that_cannot_teach() -> None:
    model = network()
    with pytest.raises(ConfigError, match=r"shares parameters with the student: give a copy, made by copy\.deepcopy"):
        Teacher(model).prepare(nn.ModuleList([model]))
    Teacher(copy.deepcopy(model)).prepare(model)
    with pytest.raises(ConfigError, match="teacher takes a module, not str"):
        Teacher("model.pare")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"alpha=1\.5: give the weight"):
        Teacher(model, alpha=1.5)
    with pytest.raises(ConfigError, match=r"temperature=-1\.0"):
        Teacher(model, temperature=-1.0)

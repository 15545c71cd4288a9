"""The C loop for CPUs: compiled for this machine, kept in a cache that is checked, and replaced if it cannot be compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paretorch.optim import AvaGrad, AvaGradW
from paretorch.optim.kernels import choose_implementation, compiled
from paretorch.support import c_code

from .common import KINDS, build

needs_compiler = pytest.mark.skipif(c_code.find_compiler() is None, reason="needs a C compiler")
LENGTHS = [3 * compiled.CHUNK + 17, 5000, 1, 0, compiled.CHUNK]


def implementation(param: Tensor, **options: object) -> str:
    group = {"foreach": None, "fused": None, "state_dtype": None, **options}
    return choose_implementation(group, param, "AvaGrad")


def run(kind, dtype: torch.dtype, steps: int = 5, **options: object) -> list[Tensor]:
    """Long and short tensors, one that often has no gradient, coordinates without history; the weights and moments."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(n, generator=generator).to(dtype).requires_grad_() for n in LENGTHS]
    optimizer = build(kind, params, lr=0.05, eps=1e-6, weight_decay=0.1, maximize=True, **options)
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
            p.grad[: p.numel() // 3] *= step > 1
            if i == 1 and step % 2:
                p.grad = None
        optimizer.param_groups[0]["lr"] = 0.05 / (step + 1)
        optimizer.step()
    state = [value for p in params for key, value in optimizer.state[p].items() if key != "step"]
    return [p.detach() for p in params] + state


@needs_compiler
def test_when_it_is_used() -> None:
    weight = torch.zeros(3, 3)
    for param, options in ((weight, {}), (weight, {"fused": True}), (weight.double(), {})):
        assert implementation(param, **options) == "compiled"
    for param, options in ((weight[:, 1], {}), (weight.bfloat16(), {}), (weight, {"state_dtype": torch.bfloat16})):
        assert implementation(param, **options) == "chunked"
    assert implementation(weight, fused=False) == implementation(weight, foreach=False) == "loop"


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_the_steps_of_the_chunked_update(kind) -> None:
    for fast, slow in zip(run(kind, torch.float64, fused=True), run(kind, torch.float64), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)


@needs_compiler
@pytest.mark.parametrize("own", [False, True])
def test_the_result_does_not_depend_on_the_threads(own, monkeypatch) -> None:
    """Neither on those of torch's OpenMP nor, without OpenMP, on those that are started for the step."""
    if own:
        library = compiled.build(["REAL=float", "OWN_THREADS"])
        monkeypatch.setattr(compiled, "library", lambda dtype: library)
    monkeypatch.setattr(compiled, "ELEMENTS_PER_THREAD", 100)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(run(AvaGrad, torch.float32, fused=True))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@needs_compiler
def test_autograd_notices_a_step_between_forward_and_backward() -> None:
    """As for torch's optimizers: the gradient would be that of other weights."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = AvaGrad(model.parameters(), fused=True)
    loss = model(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@needs_compiler
def test_a_library_is_compiled_once_and_cached(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.build(["REAL=float"]) is not None
    (made,) = (tmp_path / "paretorch").iterdir()
    assert (tmp_path / "paretorch").stat().st_mode & 0o077 == 0
    monkeypatch.setattr(c_code, "_compile", lambda *_: pytest.fail("compiled again"))
    assert compiled.build(["REAL=float"])._name == str(made)


def steps_in_a_new_process(environments: list[dict[str, str]]) -> list[str]:
    """Step weights of 1 with gradients of 1, as if anew in each environment; returns the classes of the buckets and the weights."""
    code = (
        "import json, os, sys, torch, paretorch as pt\n"
        "from paretorch.optim.kernels import compiled\n"
        "for environment in json.loads(sys.argv[1]):\n"
        "    os.environ.update(environment)\n"
        "    compiled.library.cache_clear()\n"
        "    p = torch.ones(3, requires_grad=True)\n"
        "    p.grad = torch.ones(3)\n"
        "    optimizer = pt.AvaGrad([p], lr=1.0, betas=(0.5, 0.5), fused=True)\n"
        "    optimizer.step()\n"
        "    print(type(optimizer._buckets[0][1]).__name__, *p.tolist())\n"
    )
    command = [sys.executable, "-c", code, json.dumps(environments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.splitlines()


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 3],
    "another byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@needs_compiler
def test_damaged_libraries_are_compiled_again(tmp_path: Path, monkeypatch) -> None:
    """Loading a truncated one would end the process with SIGBUS; an empty one was never replaced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.build(["REAL=float"]) is not None
    (path,) = (tmp_path / "paretorch").iterdir()
    content = path.read_bytes()
    for name, damage in DAMAGES.items():  # copies: this process has loaded the file itself
        folder = tmp_path / name / "paretorch"
        folder.mkdir(parents=True, mode=0o700)
        (folder / path.name).write_bytes(damage(content))
    found = steps_in_a_new_process([{"XDG_CACHE_HOME": str(tmp_path / name)} for name in DAMAGES])
    assert found == ["CompiledBucket 0.5 0.5 0.5"] * len(DAMAGES)
    monkeypatch.setattr(c_code, "_compile", lambda *_: pytest.fail("compiled again"))
    for name in DAMAGES:
        (again,) = (tmp_path / name / "paretorch").iterdir()
        assert len(again.read_bytes()) == len(content)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        assert compiled.build(["REAL=float"])._name == str(again), "and the new one is kept"


@needs_compiler
def test_a_library_that_cannot_be_cached_is_still_used(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", full)
    assert compiled.build(["REAL=float"]) is not None
    assert not list((tmp_path / "paretorch").iterdir())


@needs_compiler
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "paretorch"
    folder.mkdir()
    folder.chmod(0o777)
    assert compiled.build(["REAL=float"]) is not None
    assert not list(folder.iterdir())


@needs_compiler
def test_without_file_owners_nothing_is_cached(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delattr(os, "getuid")  # as on Windows
    assert compiled.build(["REAL=float"]) is not None
    assert not list((tmp_path / "paretorch").iterdir())


def test_without_a_compiler_the_chunked_update_is_used(tmp_path: Path) -> None:
    """No compiler, and one that fails: in a new process, which has not loaded the library yet."""
    compilers = [{"CC": compiler, "XDG_CACHE_HOME": str(tmp_path)} for compiler in ("no-such-compiler", "false")]
    assert steps_in_a_new_process(compilers) == ["ChunkedBucket 0.5 0.5 0.5"] * 2


@needs_compiler
def test_processes_that_start_together_can_all_compile_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, paretorch.optim.kernels.compiled as c, torch\n"
        "print(c.library(torch.float32) is not None, c.library(torch.float64) is not None)\n"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    start = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate()[0].split() for process in start] == [["True", "True"]] * 2
    assert len(list((tmp_path / "paretorch").iterdir())) == 2


@needs_compiler
def test_torch_compile_does_not_trace_it() -> None:
    """torch.compile leaves the call to Python."""
    p, q = (torch.ones(40).requires_grad_() for _ in range(2))
    fast, plain = AvaGradW([p], fused=True), AvaGradW([q], fused=True)
    step = torch.compile(fast.step, backend="eager")
    for scale in (1.0, -0.5):
        p.grad, q.grad = torch.arange(40.0) * scale, torch.arange(40.0) * scale
        step()
        plain.step()
    assert torch.equal(p, q)


@needs_compiler
@pytest.mark.parametrize(
    ("moments", "dtype"),
    [
        ((torch.float32, torch.float32), torch.float64),
        ((torch.bfloat16, torch.bfloat16), torch.float32),
        ((torch.float32, torch.bfloat16), torch.float32),
    ],
    ids=str,
)
def test_moments_of_other_dtypes_are_converted(moments, dtype) -> None:
    """Such as a state of fp32 weights that is loaded for fp64 ones: the C loop reads addresses without their dtype."""
    generator = torch.Generator().manual_seed(0)
    first, second, grad = (torch.rand(40, generator=generator) for _ in range(3))
    first, second = first.to(moments[0]), second.to(moments[1])
    eta = 1 / (second.to(dtype).sqrt() + 1e-3)
    expected = 1 - 0.1 * eta / eta.square().mean().sqrt() * (0.9 * first.to(dtype) + 0.1 * grad)
    for options in ({"fused": True}, {"foreach": True}):
        weight = torch.ones(40, dtype=dtype, requires_grad=True)
        optimizer = AvaGrad([weight], **options)
        moment = {"step": 3, "exp_avg": first.clone(), "exp_avg_sq": second.clone()}
        group = {"params": [0], "lr": 0.1, "eps": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.0}
        optimizer.load_state_dict({"state": {0: moment}, "param_groups": [group]})
        weight.grad = grad.to(dtype)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_a_network_may_become_double_during_training() -> None:
    model = nn.Linear(6, 5)
    optimizer = AvaGrad(model.parameters(), fused=True)
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        model.zero_grad()
        model(torch.ones(2, 6, dtype=dtype)).square().sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
        assert model.weight.isfinite().all()
        assert not torch.equal(model.weight, before)
        assert optimizer.state[model.weight]["exp_avg"].dtype == torch.float32

"""Compiles the kernel for an H200, which needs none, and prints its PTX."""

from __future__ import annotations

import sys

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paretorch.deploy.fast.codes import WIDTHS
from paretorch.deploy.fast.kernel import packed_linear
from paretorch.deploy.fast.launch import assembly

POINTERS = {"x": "*bf16", "out": "*bf16", "bias": "*bf16", "partial": "*fp32"}
NUMBERS = ("batch", "outputs", "inputs", "x_stride", "tiles")


def main(width: int, batch: int, early: int) -> str:
    numbers = {"ROWS": 32, "COLUMNS": 256, "BATCH": batch, "WARPS": 4, "SPLITS": 2, "STAGES": 3, "EARLY": early}
    constants = {
        **numbers,
        **({"batch": 1} if batch == 1 else {}),  # Triton makes a constant of every argument that is 1
        **{f"HAS{w}": w == width for w in WIDTHS},
        **{f"ASM{w}": assembly(w, True) for w in WIDTHS},
        **dict.fromkeys(("ODD", "FULL", "REGULAR", "WHOLE", "BIAS"), True),
    }
    names = packed_linear.arg_names
    kinds = {name: "*i16" if name.startswith("words") else POINTERS.get(name, "*i32") for name in names}
    kinds |= dict.fromkeys(NUMBERS, "i32") | dict.fromkeys(constants, "constexpr")
    aligned = [n for n in names if kinds[n].startswith("*") or n in ("outputs", "inputs", "x_stride")]
    source = ASTSource(
        packed_linear,
        kinds,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return str(compile_kernel(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"])


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

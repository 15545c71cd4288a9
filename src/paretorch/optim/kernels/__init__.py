"""How a step of the optimizers is computed.

All implementations compute the same update; `dispatch.py` chooses one per parameter.

* `compiled.py`, `compiled.c`: the default on a CPU, a loop in C.
* `chunked.py`: on a CPU without a C compiler, or for other dtypes.
* `triton.py`, `triton_kernel.py`: the default on a GPU, one kernel launch.
* `foreach.py`: torch's multi-tensor operations, for any device.

They share the interface, the norm and the stochastic rounding of bf16 states in `bucket.py`, and the view of a parameter and
its state in `parameter.py`.
"""

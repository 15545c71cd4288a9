"""A trained network to a byte budget by forward passes alone: no labels, no training.

budget        `post_train`: checks, the search for a file that fits
network       all layers at one price per bit, stage by stage;  prices: λ and what it buys
sensitivity   what a layer's error does to the outputs
layers, moments, calibration   weights as matrices, second moments of their inputs, batches
solver, rates one layer's codes, and what codes cost
norms         biases and batch norms after rounding
gptq, pruning the rivals: GPTQ; SparseGPT and Wanda
"""

from paretorch.workflows.posttraining.budget import PostTrained, post_train

__all__ = ["PostTrained", "post_train"]

"""Coupled channels: which of them can be removed only together, found from an example before anything is trained.

A channel is made by rows of a weight, scaled by norms, added to others by shortcuts, and read by columns of the weights
behind. All of these have one decision. The way from a model to its decisions:

1. `trace` goes through the exported graph once. Each element of an activation carries the label of its channel instead
   of a number; `rules` says what an operation does to `labels`. What is not understood keeps its channels.
2. `coupling` turns labels that are one into decisions: which tensors a decision gates, and which it cuts.
3. `couple` tries them out on a copy: channels removed must compute what channels set to zero compute. It leaves
   out what fails. This is the entry point.
4. `shares` counts what is left of weights and multiply-adds, and `threshold_for` (`coupling`) finds which scores meet a target.
"""

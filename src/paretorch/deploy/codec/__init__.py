"""The `.pare` file format, from the outside in.

container    the file: a safetensors container with checksum, index, coded words and plain bytes
tensors      one tensor, in the cheapest of the `codings`
codings      constant, small, grid, codebook, planes, sparse, steps: each writes itself and reads itself back
affine       the coding of steps and offsets of groups
grids        the grid that values lie on, read off the values
grouped      steps, offsets and codes of groups; `multiples` fits steps, `lines` steps and offsets
symbols      integers as symbols with frequencies; `slice_groups`: which slices or blocks of a weight share a table
streams      the parts of a file, with the entropy coder; `words`: tensors as bit patterns
sizes        where the bytes go
"""

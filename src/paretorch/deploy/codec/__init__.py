"""The `.pare` file format, from the outside in.

container    the file: one safetensors tensor of bytes, replaced atomically
blob         the bytes: checksum, index, coded words, plain bytes; every tensor declared before it is read
tensors      one tensor: which of the `codings` takes the fewest bytes
codings      constant, grid, codebook, steps, planes, sparse: each writes itself and reads itself back
affine       the coding of steps and offsets of groups
grids        which grid values lie on, read off the values
grouped      steps, offsets and codes of groups: `layouts` finds how values are grouped, `multiples` steps, `lines` offsets too
symbols      integers as symbols with frequencies; `slice_groups`: which slices or blocks of a weight share a table
entropy      the entropy coder;  streams, words: numbers and bit patterns as bytes
filling      from a checked file into a module
"""

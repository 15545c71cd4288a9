"""Weights of 2, 4 or 8 bits that stay packed in memory on a CPU.

few_bits     the packed form, and the exact inverse
kernel       products with it, by few_bits.c
layers       Linear, Embedding and Conv2d with packed weights
swap         which layers can have them, and putting them into a network
weights      a network's weights, packed while its file is read
"""

from paretorch.deploy.packed.layers import FewBitConv2d, FewBitEmbedding, FewBitLinear

__all__ = ["FewBitConv2d", "FewBitEmbedding", "FewBitLinear"]

"""Operations and modules of torch by what they do to labels of channels, for `paretorch.core.channels.trace`."""

from torch import nn

MOVES = frozenset({
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "flatten", "unflatten", "unsqueeze", "squeeze",
    "expand", "slice", "select", "narrow", "split", "chunk", "split_with_sizes", "cat", "stack", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "roll", "flip", "pad", "constant_pad_nd", "repeat",
    "unbind", "movedim", "moveaxis", "swapaxes", "contiguous", "clone", "detach", "alias", "lift_fresh_copy",
})  # fmt: skip
CASTS = frozenset({"to", "_to_copy"})  # labels keep their type: few numbers are whole in half precision
SPATIAL = frozenset(
    f"{name}{d}d"
    for d in (1, 2, 3)
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "upsample_nearest", "feature_dropout")
) | {"upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_nearest_exact2d"}  # fmt: skip
# Elementwise, though some versions of torch do not say so.
POINTWISE = frozenset({
    "dropout", "feature_dropout", "hardswish", "hardsigmoid", "hardtanh", "relu6", "mish", "gelu", "silu", "elu", "selu",
    "celu", "softplus", "leaky_relu", "softsign", "logsigmoid",
})  # fmt: skip
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin"})

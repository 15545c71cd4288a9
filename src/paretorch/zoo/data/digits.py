"""The 8×8 handwritten digits that come with the package: small enough for tests, large enough to learn.

Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998,
doi:10.24432/C50P49, licensed CC BY 4.0. The 1,797 images are the repository's test part. See DIGITS.md for what was
changed and how the split was drawn.
"""

from pathlib import Path

import numpy as np
import torch

from paretorch.errors import DataError
from paretorch.zoo.data.images import Images, statistics

_FILE = Path(__file__).with_name("digits.npz")


def load() -> Images:
    """Return 1,437 training and 360 test images, 1×8×8, of ten classes. The split is fixed."""
    try:
        with np.load(_FILE, allow_pickle=False) as arrays:
            counts, labels, test = arrays["images"], arrays["labels"], arrays["test"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{_FILE} is missing or damaged; reinstall paretorch to repair it") from error
    # each value is the number of inked pixels in a 4×4 block, 0..16; scaled to grey levels 0..255
    pixels = torch.from_numpy((counts.astype(np.int64) * 255 // 16).astype(np.uint8))[:, None]
    classes = torch.from_numpy(labels.astype(np.int64))
    is_test = torch.from_numpy(test)
    mean, std = statistics(pixels[~is_test])
    return Images("digits", (pixels[~is_test], classes[~is_test]), (pixels[is_test], classes[is_test]), 10, mean, std)

"""The data of the thesis: sets of images in memory, text, translation, image folders, shortest paths."""

from paretorch.zoo.data.images import Augment, Images, augment, normalise
from paretorch.zoo.data.registry import load

__all__ = ["Augment", "Images", "augment", "load", "normalise"]

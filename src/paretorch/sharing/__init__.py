"""Sharing: weights mixed from templates, how alike layers have become, and networks folded into loops (chapter 3)."""

from paretorch.sharing.folding import Folding, fold
from paretorch.sharing.layers import Similarity, layer_similarity
from paretorch.sharing.similarity import reparametrize
from paretorch.sharing.soft import SoftSharing

__all__ = ["Folding", "Similarity", "SoftSharing", "fold", "layer_similarity", "reparametrize"]

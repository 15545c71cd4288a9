"""Sharing: weights mixed from templates, how alike layers have become, and networks folded into loops (chapter 3)."""

from paretorch.methods.sharing.folding import Folding, fold
from paretorch.methods.sharing.layers import Similarity, layer_similarity
from paretorch.methods.sharing.similarity import reparametrize
from paretorch.methods.sharing.soft import SoftSharing

__all__ = ["Folding", "Similarity", "SoftSharing", "fold", "layer_similarity", "reparametrize"]

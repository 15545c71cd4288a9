"""What can be learned beside images: text, translation, shortest paths, generators. Each is a `Task` for the one loop."""

from paretorch.training.tasks.gan import Gan
from paretorch.training.tasks.language import LanguageModel
from paretorch.training.tasks.shortest_paths import ShortestPaths
from paretorch.training.tasks.translation import Translation

__all__ = ["Gan", "LanguageModel", "ShortestPaths", "Translation"]

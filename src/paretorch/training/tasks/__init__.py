"""What can be learned beside images: text, translation, shortest paths. Each is a `Task` for the one loop."""

from paretorch.training.tasks.language import LanguageModel
from paretorch.training.tasks.shortest_paths import ShortestPaths
from paretorch.training.tasks.translation import Translation

__all__ = ["LanguageModel", "ShortestPaths", "Translation"]

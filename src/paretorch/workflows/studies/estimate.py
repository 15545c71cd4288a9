"""How long a study would take on one H200, run after run: epochs, times the seconds of an epoch of its network.

Seconds are those of one process alone, with the step captured in a CUDA graph: measured, or estimated where nothing was. Several runs at
once share the GPU and take less in all. Expect an error of a third.
"""

import re
from collections.abc import Sequence

from paretorch.training.recipe import Recipe
from paretorch.workflows.studies.study import Study
from paretorch.workflows.tickets.search import make_searches

_MEASURED = {
    "resnet20": 0.65,  # results/train-step
    "vgg16": 0.65,
    "lstm-300": 11.6,  # the fastest of results/optim-lstm300-rates
    "shortest-paths-cnn": 0.4,  # the fastest of results/sharing-shortest-paths
}
_ASSUMED = {
    "conv6": 0.8,
    "mobilenetv2": 3.0,
    "shufflenet": 2.5,
    "dcgan-generator": 6.0,
    "transformer": 8.0,
    "shortest-paths-scnn": 1.5,
    "lstm-1000": 30.0,
    # ImageNet, by about 3,000 images a second of a ResNet-50 in bf16 and multiply-adds.
    "resnet18": 190.0,
    "resnet50": 430.0,
    "wrn-50-2": 1100.0,
    "swrn-50-2": 1100.0,
}
_WIDE, _WIDE_LEAST = 4.3, 1.33  # WRN-28-10 (results/train-step), and the fastest of results/sharing-wrn28-4
_BATCH = 128


def seconds_per_epoch(network: str, batch: int = _BATCH) -> float:
    """Of a dense network on CIFAR-10, ImageNet or its own task; methods add 1 to 25 %."""
    known = {**_ASSUMED, **_MEASURED}
    if network not in known and (found := re.fullmatch(r"s?wrn-(\d+)-(\d+)(-\d+)?", network)):
        depth, width = int(found[1]), int(found[2])
        return max(_WIDE * (depth - 4) / 24 * (width / 10) ** 2, _WIDE_LEAST)
    small = network in ("resnet20", "vgg16", "conv6")  # the number of steps decides, not their size
    return known.get(network, 1.0) * (max(_BATCH / batch, 1.0) if small else 1.0)


def minutes_of(recipe: Recipe) -> float:
    """Of one run."""
    epochs = recipe.epochs + recipe.finetune
    return epochs * seconds_per_epoch(recipe.network, recipe.data.batch) / 60


def ticket_epochs(study: Study, methods: Sequence[str] = ()) -> int:
    """Epochs of the study's ticket searches over all its seeds, of these methods or of all, without the dense networks."""
    (recipe,) = study.settings.values()
    found = 0
    for table in study.tickets:
        for search in make_searches({"seeds": list(study.seeds), **table}, study.name):
            if not methods or search.method.name in methods:
                found += search.trainings() * recipe.epochs
    return found


def ticket_minutes(study: Study, methods: Sequence[str] = ()) -> float:
    """Of its searches, and of the dense network of each seed."""
    (recipe,) = study.settings.values()
    epochs = ticket_epochs(study, methods) + len(study.seeds) * recipe.epochs
    return epochs * seconds_per_epoch(recipe.network, recipe.data.batch) / 60


def search_minutes(study: Study, label: str) -> float:
    """Of one of its searches over all seeds, by the name that rows have without the seed, such as "imp-rate0.2"."""
    (recipe,) = study.settings.values()
    searches = [
        one
        for table in study.tickets
        for one in make_searches({"seeds": list(study.seeds), **table}, study.name)
        if one.name.rpartition("-seed")[0] == label
    ]
    epochs = sum(one.trainings() * recipe.epochs for one in searches)
    return epochs * seconds_per_epoch(recipe.network, recipe.data.batch) / 60

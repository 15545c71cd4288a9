"""Which channels of which modules stay, as structural edits, and what is left of a model or its state after them."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from paretorch.edits import KeepChannels


def channel_edits(cuts: Sequence[tuple[str, str, Tensor]]) -> list[KeepChannels]:
    """Edits for (module, side, kept channels), side "out" or "in"; modules that keep the same channels share one."""
    sides: dict[tuple[str, int], dict[str, list[str]]] = {}
    for module, side, keep in cuts:
        bits = sum(1 << c for c in keep.nonzero().flatten().tolist())
        sides.setdefault((f"{bits:x}", len(keep)), {"out": [], "in": []})[side].append(module)
    return [KeepChannels(*key, tuple(own["out"]), tuple(own["in"])) for key, own in sides.items()]


def keep_channels(model: nn.Module, edit: KeepChannels) -> None:
    """Cut the modules of one edit, in place."""
    edit.apply(model)


def cut_state(state: Mapping[str, Tensor], model: nn.Module, edits: Iterable[KeepChannels]) -> dict[str, Tensor]:
    """The state of a model after edits that were not made on it."""
    cut = dict(state)
    for edit in edits:
        cut = edit.cut_state(cut, model)
    return cut

"""The engines by name: "local", or a Ray cluster."""

from paretorch.errors import ConfigError
from paretorch.workflows.queue.jobs import Engine
from paretorch.workflows.queue.local import LocalEngine
from paretorch.workflows.queue.ray_engine import RayEngine

LOCAL = "local"


def choose_engine(name: str, places: int | None, device: str = "auto") -> Engine:
    """The engine of that name.

    Args:
        name: "local"; "auto", the Ray cluster that this machine belongs to; or "ray://HOST" and "ray://HOST:PORT".
        places: Jobs at the same time; None: one on this machine, or as many as the cluster has GPUs or cores for.
        device: The device that jobs are given.
    """
    if name == LOCAL:
        return LocalEngine(places or 1, device)
    if name != "auto" and not name.startswith("ray://"):
        raise ConfigError(f"There is no engine {name!r}: use {LOCAL}, auto, or ray://HOST")
    return RayEngine(name, places, device)

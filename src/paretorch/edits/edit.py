"""The base of all structural edits: they read and write themselves as JSON, check themselves, and apply themselves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, Self

from torch import nn

from paretorch.errors import ArtefactError, ConfigError

_WIDTHS = (
    "in_channels",
    "out_channels",
    "in_features",
    "out_features",
    "num_features",
    "num_channels",
    "num_parameters",
)


class ModelInfo:
    """What the checks of edits need to know about a model. Values that take long to compute are computed once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @cached_property
    def names(self) -> frozenset[str]:
        """The keys of the model's state dict."""
        return frozenset(self.model.state_dict())

    @cached_property
    def widest(self) -> int:
        """The largest number of channels on any side of any layer."""
        sizes = (getattr(module, name, 0) for module in self.model.modules() for name in _WIDTHS)
        return max((size for size in sizes if isinstance(size, int)), default=0)


class Edit(ABC):
    """One structural edit. Subclasses are frozen dataclasses; `paretorch.edits.KINDS` lists all of them.

    A file is not trusted: `from_json` raises `ArtefactError` unless the values are valid. `check` and `apply` raise
    `ConfigError` if the edit does not fit the model.
    """

    kind: ClassVar[str]
    json_fields: ClassVar[Mapping[str, type]]
    """JSON names and types, in the order of the dataclass fields. Lists become tuples."""
    structural: ClassVar[bool] = True
    """Whether `apply` changes modules; if not, the edit only describes the values."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the edit from a JSON object with exactly its fields."""
        exact = set(data) == {"kind", *cls.json_fields} and data["kind"] == cls.kind
        if not exact or any(type(data[name]) is not of for name, of in cls.json_fields.items()):
            wanted = ", ".join(f"{name}: {of.__name__}" for name, of in cls.json_fields.items())
            raise ArtefactError(f"A {cls.kind!r} edit needs exactly {wanted}")
        cls.check_json(data)
        return cls(*(_as_tuples(data[name]) for name in cls.json_fields))

    def to_json(self) -> dict[str, Any]:
        """Return the edit as a JSON object, as files store it."""
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return {"kind": self.kind} | {
            name: _as_lists(value) for name, value in zip(self.json_fields, values, strict=True)
        }

    @classmethod
    @abstractmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        """Raise `ArtefactError` for values that have the right types and are impossible."""

    @abstractmethod
    def check(self, info: ModelInfo) -> None:
        """Raise `ConfigError` if the edit cannot be made on the model as it is now."""

    @abstractmethod
    def apply(self, model: nn.Module) -> None:
        """Make the edit, in place."""

    @abstractmethod
    def renamed(self, name: Callable[[str], str]) -> Self:
        """Return the same edit with other names of its modules: of a network that is a part of another one."""

    def added_names(self) -> set[str]:
        """Return the keys that the edit adds to the state dict and that a file stores."""
        return set()

    def added_bytes(self) -> int:
        """Return the bytes of the tensors that the edit adds."""
        return 0


def find_module(model: nn.Module, name: str) -> nn.Module:
    """Return the submodule that an edit names."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ConfigError(f"An edit names {name!r}, which {type(model).__name__} does not have") from None


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(one) for one in value) if isinstance(value, list) else value


def _as_lists(value: Any) -> Any:
    return [_as_lists(one) for one in value] if isinstance(value, tuple) else value

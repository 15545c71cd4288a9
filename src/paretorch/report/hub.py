"""Compressed networks on the Hugging Face Hub, or in a folder of the same layout: the file, how to build the network, and a card.

    push_to_hub(small, "me/my-model", accuracy=0.912)
    again = from_pretrained("me/my-model")             # of a zoo network or a model of transformers
    again = from_pretrained("me/my-model", into=build())

| file          | what it holds                                                                            |
|---------------|------------------------------------------------------------------------------------------|
| `model.pare`  | every weight, and the structural edits: removed channels, quantized activations, shared layers |
| `config.json` | of a model of transformers its configuration, of a class with `HubMixin` its arguments   |
| `README.md`   | the model card: the report's numbers, and how to load the file                           |

Nothing from the hub is executed: a model of transformers is built from the class that its configuration names in the installed
package. transformers' own `save_pretrained` and `from_pretrained` work for finished networks too, unless channels were
removed: a configuration has one width for all layers.
"""

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from torch import nn

from paretorch.deploy.artefact import StrPath, load, save
from paretorch.deploy.measure.record import Report
from paretorch.deploy.plain import plain
from paretorch.errors import ArtefactError, ConfigError, MissingExtraError
from paretorch.report.measure import report
from paretorch.support.files import read_json, write_file
from paretorch.support.text import human

try:
    from huggingface_hub import HfApi, ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
except ImportError as error:
    raise MissingExtraError("the hub needs huggingface_hub: pip install 'paretorch[hub]'") from error

FILE, CONFIG, CARD = "model.pare", "config.json", "README.md"
_LAYERS = 40
"""Layers in the table of a card, at most."""


def save_pretrained(
    model: nn.Module,
    folder: StrPath,
    *,
    accuracy: float | None = None,
    repo_id: str | None = None,
    card: str | None = None,
) -> Path:
    """Write a finished network into a folder as the hub has it, and return the folder.

    Args:
        accuracy: A fraction, for the card and for the file's summary.
        repo_id: The name on the hub, for the card.
        card: Text of the card after its title, before the numbers.
    """
    network, target = plain(model, "save_pretrained"), Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be a folder ({error.strerror}): give another") from error
    save(network, target / FILE, summary=None if accuracy is None else {"accuracy": accuracy})
    if (config := _config_of(network)) is not None:
        write_file(target / CONFIG, json.dumps(config, indent=2).encode())
    found = report(network, accuracy=accuracy, latency=False)
    write_file(
        target / CARD,
        str(
            model_card(found, repo_id=repo_id, text=card, into=config is None and not vars(network).get("zoo_name"))
        ).encode(),
    )
    return target


def push_to_hub(
    model: nn.Module,
    repo_id: str,
    *,
    accuracy: float | None = None,
    card: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a compressed network",
) -> str:
    """Upload what `save_pretrained` writes, and return the address of the commit.

    Args:
        repo_id: Such as "me/my-model"; it is created if it is not there.
        accuracy: As in `save_pretrained`, as is `card`.
        private: Whether a repository that is created is private.
        token: Of the hub; default: the one that `hf auth login` has stored.
        revision: The branch; default: the main one.
        commit_message: Of the commit.
    """
    api = HfApi(token=token)
    with TemporaryDirectory() as folder:  # written first: what cannot be saved leaves no empty repository
        save_pretrained(model, folder, accuracy=accuracy, repo_id=repo_id, card=card)
        name = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
        done = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=commit_message, revision=revision, repo_type="model"
        )
    return str(done)


def from_pretrained(
    name_or_folder: StrPath,
    into: nn.Module | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: StrPath | None = None,
    local_files_only: bool = False,
) -> nn.Module:
    """Return the network in a folder or on the hub, in evaluation mode if it is built here.

    Args:
        name_or_folder: A folder with a model.pare, or a name on the hub such as "me/my-model".
        into: The network to fill. Default: the zoo network that the file names, or the model of transformers that the
            configuration describes.
        revision: The branch, tag or commit on the hub.
        token: Of the hub; default: the one that `hf auth login` has stored.
        cache_dir: Where downloads are kept.
        local_files_only: Whether to use what was downloaded before, without a request.
    """
    fetch = _Fetch(name_or_folder, revision, token, cache_dir, local_files_only)
    return _filled(fetch, into)


def _filled(fetch: "_Fetch", into: Any) -> nn.Module:
    path = fetch(FILE)
    if path is None:
        raise ConfigError(
            f"{fetch.where} has no {FILE}: give a folder, or a name on the hub, that save_pretrained wrote"
        )
    if into is None:
        config = fetch(CONFIG)
        into = None if config is None else _build(config)
    return load(path, into=into)


class HubMixin(ModelHubMixin, library_name="paretorch", tags=["paretorch"]):
    """Gives a class of yours `save_pretrained`, `from_pretrained` and `push_to_hub`, for finished networks of any shape.

    The arguments of `__init__` go into config.json, from which `from_pretrained` builds the network before the file changes its
    structure and fills it.

    Example:
        >>> class Mine(nn.Module, HubMixin):  # doctest: +SKIP
        ...     def __init__(self, width: int = 64): ...
        >>> small.push_to_hub("me/my-model", model_card_kwargs={"accuracy": 0.912})  # doctest: +SKIP
        >>> again = Mine.from_pretrained("me/my-model")  # doctest: +SKIP
    """

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **options: Any) -> str:
        """As huggingface_hub has it; model_card_kwargs: `accuracy`, a fraction, and `text`, after the title of the card."""
        card = {"repo_id": repo_id, **(model_card_kwargs or {})}
        return str(super().push_to_hub(repo_id, model_card_kwargs=card, **options))

    def _save_pretrained(self, save_directory: Path) -> None:
        save(plain(self, "save_pretrained"), save_directory / FILE)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: StrPath | None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        **arguments: Any,
    ) -> Self:
        made = cls(**arguments)
        fetch = _Fetch(model_id, revision, token, cache_dir, local_files_only)
        network: Any = _filled(fetch, made)
        own: Self = network.eval()
        return own

    def generate_model_card(
        self, *args: Any, accuracy: float | None = None, repo_id: str | None = None, **kwargs: Any
    ) -> ModelCard:
        """Return the card with the report's numbers."""
        found = report(plain(self, "a model card"), accuracy=accuracy, latency=False)
        return model_card(found, repo_id=repo_id, text=kwargs.get("text"), of=type(self).__name__)


def model_card(
    found: Report, *, repo_id: str | None = None, text: str | None = None, into: bool = False, of: str | None = None
) -> ModelCard:
    """Return a model card: the report's numbers in words, a table of layers, and how to load the file.

    Args:
        repo_id: The name on the hub.
        text: What to say after the title.
        into: Whether a network must be given to be filled.
        of: The class with `HubMixin`, if there is one.
    """
    size, name = found.sizes, repo_id or "FOLDER"
    facts = [
        ("file", f"{human(size.total)} ({size.total:,} bytes)"),
        ("plain tensors", f"{human(found.dense)}, {found.dense / max(size.total, 1):.1f} times the file"),
        ("weights", f"{found.weights:,}: the parameters of two or more dimensions"),
        ("sparsity", f"{found.sparsity:.2%} of these are zero"),
        ("bits per weight", f"{found.bits:.2f} without masks and map, {found.bits_on_disk:.2f} on disk"),
    ]
    if found.accuracy is not None:
        facts.insert(0, ("accuracy", f"{found.accuracy:.2%}"))
    layers = [
        f"| `{_cell(one.name)}` | {'×'.join(map(str, one.size.shape))} | {one.sparsity:.1%} | {one.size.bits:.2f} | {one.size.total:,.0f} |"
        for one in found.layers[:_LAYERS]
    ]
    left = len(found.layers) - len(layers)
    use = (
        f'{of}.from_pretrained("{name}")' if of else f'from_pretrained("{name}"{", into=your_network" if into else ""})'
    )
    get = "" if of else "from paretorch.report.hub import from_pretrained\n\n"
    lines = [
        f"# {(repo_id or found.name).rpartition('/')[2]}",
        *([text] if text else []),
        "A network made smaller with paretorch.",
        "| | |\n|---|---|\n" + "\n".join(f"| {label} | {said} |" for label, said in facts),
        f"```python\n{get}model = {use}\n```",
        "| layer | shape | zero | bits | bytes |\n|---|---|---|---|---|\n" + "\n".join(layers),
        *([f"{left} more layers are in the file."] if left else []),
    ]
    metrics = [] if found.accuracy is None else ["accuracy"]
    head = ModelCardData(library_name="paretorch", tags=["paretorch"], metrics=metrics or None)
    return ModelCard(f"---\n{head.to_yaml()}\n---\n\n" + "\n\n".join(lines) + "\n")


def _cell(name: str) -> str:
    return name.replace("|", "\\|").replace("`", "'")


class _Fetch:
    """Returns the path of a file of a folder or of a repository; None if it has none of that name."""

    def __init__(
        self, where: StrPath, revision: str | None, token: str | bool | None, cache: StrPath | None, local: bool
    ) -> None:
        self.where = where
        self._options: dict[str, Any] = {
            "revision": revision, "token": token, "cache_dir": cache, "local_files_only": local
        }  # fmt: skip

    def __call__(self, name: str) -> Path | None:
        folder = Path(self.where)
        if folder.is_dir():
            return path if (path := folder / name).is_file() else None
        try:
            return Path(hf_hub_download(str(self.where), name, **self._options))
        except EntryNotFoundError as error:
            if name != FILE or not isinstance(error, LocalEntryNotFoundError):
                return None
            raise ConfigError(
                f"{self.where} is no folder here, and the hub cannot be reached, or has no {name}"
            ) from error
        except (OSError, ValueError) as error:  # no such name, no network, no such folder
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ConfigError(
                f"{self.where} is no folder here, and the hub does not give its {name}: {reason}"
            ) from error


def _config_of(network: nn.Module) -> dict[str, Any] | None:
    """Return the configuration of a model of transformers; None for any other."""
    config: Any = vars(network).get("config")
    if not hasattr(config, "to_json_string") or not hasattr(config, "model_type"):
        return None
    config = copy.deepcopy(config)
    config.architectures = [type(network).__name__]
    config.dtype = next(network.parameters()).dtype
    own: dict[str, Any] = json.loads(config.to_json_string())
    return own


def _build(path: Path) -> nn.Module | None:
    """Return the model of transformers that a configuration names, its weights as they come; None if it names none."""
    try:
        own = dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise ArtefactError(
            f"{path} is no configuration: get a fresh copy, or give the network to fill as into="
        ) from error
    if "model_type" not in own:
        return None
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"{path} describes a model of transformers: pip install 'paretorch[transformers]', or give into="
        ) from error
    names = own.get("architectures")
    kind = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ArtefactError(
            f"{path} names {str(names)[:80]}, which the installed transformers does not have: give the network as into="
        )
    config = transformers.AutoConfig.from_pretrained(path.parent)
    model: nn.Module = kind._from_config(config)
    return model.eval()

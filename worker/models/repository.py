"""A directory of models, DIR/NAME/VERSION/: what it holds, and how one of them becomes ready to serve.

A version holds model.toml and one of model.py (a subclass of `Model`), model.pt (TorchScript) or model.pt2 (a program
of torch.export).
"""

import importlib.util
import itertools
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from shared.errors import SettingsError
from shared.keys import SAFE_NAME
from worker.models import artefacts, manifest, replies
from worker.models.convert import map_tensors
from worker.models.interface import LoadContext, Model, ModelConfig, ModelLoadError, ModelRequest

_VERSION = re.compile(r"[1-9][0-9]*")
_module_number = itertools.count(1)

MODEL_FILE = "model.py"


def demo_repository() -> Path:
    """The models that come with tailrace."""
    return Path(__file__).parent / "demo"


def scan(directory: Path) -> list[ModelConfig]:
    """Every version of every model in the repository, by name and ascending version.

    Raises one SettingsError with all that is wrong with all of them.
    """
    if not directory.is_dir():
        raise SettingsError(f"the model repository {directory} is not a directory")
    problems: list[str] = []
    configs = []
    for model in _subdirectories(directory):
        if not SAFE_NAME.fullmatch(model.name):
            problems.append(f"{model}: a model's name must match {SAFE_NAME.pattern}")
            continue
        versions = _subdirectories(model)
        if not versions:
            problems.append(f"{model}: holds no version; put the model into {model / '1'}")
        for version in sorted(versions, key=lambda path: (len(path.name), path.name)):
            if not _VERSION.fullmatch(version.name):
                problems.append(f"{version}: a version must be a positive integer, for example {model / '1'}")
            elif config := manifest.read(version, name=model.name, version=version.name, problems=problems):
                configs.append(config)
    if not configs and not problems:
        problems.append(f"{directory}: holds no model; expected NAME/VERSION/{manifest.FILE} in it")
    if problems:
        raise SettingsError("\n".join(("the model repository has mistakes:", *(f"  {text}" for text in problems))))
    return configs


def load(config: ModelConfig, device: str) -> Model:
    """Load a model onto `device` ("cpu", "cuda:0") and warm it up. Raises ModelLoadError saying what to do."""
    context = LoadContext(config, config.path, device)
    label = f"model '{config.name}' version {config.version}"
    model = _model_class(config)() if config.platform == "pytorch_python" else artefacts.Artefact()
    model.context = context
    try:
        model.load(context)
    except ModelLoadError as e:
        raise ModelLoadError(f"{label}: {e}") from e
    except Exception as e:
        raise ModelLoadError(f"{label}: load failed: {type(e).__name__}: {e}{_place(e)}") from e
    warm_up(model, config)
    return model


def warm_up(model: Model, config: ModelConfig) -> None:
    """Run the model's examples, the first alone and then all together, so that no client pays for the first pass.

    The answers are checked and thrown away. Raises ModelLoadError.
    """
    if config.warm_up_rows == 0:
        return
    try:
        examples = list(model.examples())
        batches = [examples[:1]]
        if config.max_batch_size > 0 and len(examples) > 1:
            batches.append(examples)
        for requests in batches:
            _run_once(model, config, requests)
    except Exception as e:
        raise ModelLoadError(
            f"model '{config.name}' version {config.version}: the warm-up failed: {type(e).__name__}: {e}"
            f"{_place(e)}; correct the model, or override examples() if only made-up input breaks it"
        ) from e


def _place(error: Exception) -> str:
    """Where in the author's files an error came from, innermost; nothing when it came from elsewhere."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).name == MODEL_FILE:
            return f" ({frame.filename}, line {frame.lineno}, in {frame.name})"
    return ""


def _run_once(model: Model, config: ModelConfig, requests: Sequence[ModelRequest]) -> None:
    device = torch.device(model.context.device)
    with torch.inference_mode():
        for request in requests:
            model.cost(request)
            model.batch_key(request)
        batch: Any = map_tensors(model.collate(requests), lambda tensor: tensor.to(device))
        model.tokens(requests, batch)
        outputs = map_tensors(model.forward(batch), lambda tensor: tensor.cpu())
        answers = model.split(outputs, requests, batch)
    replies.check_count(answers, requests)
    for request, answer in zip(requests, answers, strict=True):
        replies.encode(config, request, answer, wanted=())


def _subdirectories(directory: Path) -> list[Path]:
    hidden = ("__pycache__",)
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in hidden)


def _model_class(config: ModelConfig) -> type[Model]:
    module = _import(config)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Model) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        found = ", ".join(c.__name__ for c in classes) or "none"
        raise ModelLoadError(
            f"{module.__file__} must define exactly one subclass of Model, but defines {found}; "
            f"keep shared base classes in a module beside it and import them from there"
        )
    return classes[0]


def _import(config: ModelConfig) -> ModuleType:
    path = config.path / MODEL_FILE
    # A new name each time: two models may not see each other's module, nor a reloaded one its predecessor's.
    name = f"_tailrace_model_{next(_module_number)}"
    # As a package, so that model.py can say `from . import helper`.
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(config.path)])
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        del sys.modules[name]
        raise ModelLoadError(f"{path} cannot be imported: {type(e).__name__}: {e}") from e
    return module

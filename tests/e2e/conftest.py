"""The system that most end-to-end tests share: one `tailrace up`, real processes, started once."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import e2e_stack
import numpy as np
import pytest
import torch
from e2e_stack import ROWS, Stack

from worker.models import repository as model_repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo models, those that only tests need, and one that each count of statistics has to itself."""
    own, demo = e2e_stack.OWN_MODELS, e2e_stack.DEMO_MODELS
    models = {
        "minilm": demo / "minilm",
        "mlp": demo / "mlp",
        "pair": own / "pair",
        "slow": own / "slow",
        "nap": own / "nap",
        "counted_sync": demo / "mlp",
        "counted_aio": demo / "mlp",
    }
    return e2e_stack.make_repository(tmp_path_factory.mktemp("models"), models)


@pytest.fixture(scope="session")
def slow_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `slow` alone: a worker with it starts faster."""
    return e2e_stack.make_repository(tmp_path_factory.mktemp("slow"), {"slow": e2e_stack.OWN_MODELS / "slow"})


@pytest.fixture(scope="session")
def stack(repository: Path) -> Iterator[Stack]:
    """`tailrace up` with one worker. Whoever hurts it waits until it is well again."""
    running = e2e_stack.start_up(repository)
    yield running
    e2e_stack.stop_all(running)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name; pytest's own may be too long for the kernel."""
    with tempfile.TemporaryDirectory(prefix="tr-e2e-") as name:
        yield Path(name)


@pytest.fixture
def url(stack: Stack) -> str:
    """Where the shared system listens."""
    return stack.url


@pytest.fixture(scope="session")
def x() -> np.ndarray:
    """Rows for `mlp`."""
    return np.random.default_rng(7).standard_normal((ROWS, 64), dtype=np.float32)


@pytest.fixture(scope="session")
def expected_y(x: np.ndarray) -> np.ndarray:
    """What the same weights give when torch is asked directly."""
    (config,) = [c for c in model_repository.scan(model_repository.demo_repository()) if c.name == "mlp"]
    with torch.inference_mode():
        return model_repository.load(config, "cpu").forward({"x": torch.from_numpy(x.copy())}).numpy()

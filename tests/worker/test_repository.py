"""A model repository: what is in it, what is wrong with it, and three ways to bring a model."""

import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.errors import SettingsError
from shared.wire import ModelTensor
from worker.models import repository
from worker.models.interface import Model, ModelLoadError, ModelRequest

TOML = """
max_batch_size = 8
[[inputs]]
name = "x"
datatype = "FP32"
shape = [4]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [2]
"""

MODEL_PY = """
from worker.models.interface import Model

class Doubled(Model):
    def forward(self, batch):
        return batch["x"][:, :2] * 2
"""


def add(root: Path, name: str, *, toml: str | None = TOML, version: str = "1", **files: str) -> Path:
    """Put a version of a model into the repository; `model_py="..."` writes model.py."""
    directory = root / name / version
    directory.mkdir(parents=True)
    if toml is not None:
        (directory / "model.toml").write_text(toml)
    for file, text in files.items():
        (directory / file.replace("_", ".")).write_text(text)
    return directory


def mistakes(root: Path) -> str:
    with pytest.raises(SettingsError) as raised:
        repository.scan(root)
    return str(raised.value)


def run(model: Model, *requests: ModelRequest) -> list[dict[str, np.ndarray]]:
    with torch.inference_mode():
        batch = model.collate(requests)
        return [reply.outputs for reply in model.split(model.forward(batch), requests, batch)]


def x_request(rows: int, seed: int = 0) -> ModelRequest:
    return ModelRequest({"x": np.random.default_rng(seed).random((rows, 4), dtype=np.float32)}, rows=rows)


def test_everything_in_model_toml_arrives(tmp_path: Path) -> None:
    """Each key has its place in the configuration, and the gateway's part of it in the descriptor."""
    toml = (
        'task = "embedding"\n'
        + TOML.replace("[4]", "[-1, 4]")
        + "[batching]\ncost_max = 512\nmax_queue_delay_microseconds = 200\npreferred_batch_size = [4, 8]\n"
        + '[parameters]\nauthor = "me"\nscale = 0.5\nfast = true\n'
    )
    directory = add(tmp_path, "net", toml=toml, version="12", model_py=MODEL_PY)
    [config] = repository.scan(tmp_path)
    assert (config.name, config.version, config.platform, config.path) == ("net", "12", "pytorch_python", directory)
    assert (config.max_batch_size, config.task, config.cost_max, config.linger_us) == (8, "embedding", 512, 200)
    assert config.preferred_batch_sizes == (4, 8)
    descriptor = config.descriptor()
    assert descriptor.inputs == [ModelTensor("x", "FP32", [-1, 4])]
    assert descriptor.parameters == {"author": "me", "scale": 0.5, "fast": True}


def test_versions_come_in_numeric_order(tmp_path: Path) -> None:
    """10 is after 9, whatever the alphabet says; hidden directories and caches are nobody's model."""
    for version in ("10", "9", "2"):
        add(tmp_path, "net", version=version, model_py=MODEL_PY)
    (tmp_path / ".git").mkdir()
    (tmp_path / "net" / "__pycache__").mkdir()
    assert [c.version for c in repository.scan(tmp_path)] == ["2", "9", "10"]


def test_all_mistakes_of_all_models_are_reported_at_once(tmp_path: Path) -> None:
    """One run of the worker is enough to learn everything that must be corrected."""
    add(tmp_path, "typo", toml="max_batchsize = 8\n" + TOML + "[batching]\ncost_mx = 3\nzzz = 1\n", model_py=MODEL_PY)
    add(tmp_path, "types", toml=TOML.replace("= 8", "= true").replace("[4]", '["4", 0]'), model_py=MODEL_PY)
    add(tmp_path, "datatype", toml=TOML.replace('"FP32"', '"float32"', 1), model_py=MODEL_PY)
    add(tmp_path, "negative", toml=TOML + "[batching]\ncost_max = -1\npreferred_batch_size = [9]\n", model_py=MODEL_PY)
    add(tmp_path, "twice", toml=TOML + '[[inputs]]\nname = "x"\ndatatype = "INT8"\nshape = []\n', model_py=MODEL_PY)
    add(tmp_path, "script", toml=TOML.replace("FP32", "BYTES"), model_pt="")
    add(tmp_path, "parameter", toml=TOML + "[parameters]\nlist = [1]\n", model_py=MODEL_PY)
    add(tmp_path, "nothing", toml="", model_py=MODEL_PY)
    add(tmp_path, "broken", toml="max_batch_size = \n", model_py=MODEL_PY)
    add(tmp_path, "untold", toml=None, model_py=MODEL_PY)
    add(tmp_path, "neither")
    add(tmp_path, "both", model_py=MODEL_PY, model_pt="")
    add(tmp_path, "version", version="v1", model_py=MODEL_PY)
    add(tmp_path, "bad name", model_py=MODEL_PY)
    (tmp_path / "empty").mkdir()
    add(tmp_path, "good", model_py=MODEL_PY)
    text = mistakes(tmp_path)
    expected = [
        "unknown key 'max_batchsize'; did you mean 'max_batch_size'?",
        "[batching]: unknown key 'cost_mx'; did you mean 'cost_max'?",
        "[batching]: unknown key 'zzz'; valid are cost_max, max_queue_delay_microseconds, preferred_batch_size",
        "max_batch_size = True must be an integer",
        "shape holds '4'; each dimension must be a positive integer",
        "shape holds 0;",
        "unknown datatype 'float32'; did you mean 'FP32'?",
        "cost_max = -1 must not be negative",
        "preferred_batch_size holds 9; each must be 1 to max_batch_size = 8",
        "[[inputs]] 2: name 'x' is declared twice",
        "tensor 'x' is BYTES, which only a model.py can handle",
        "list = [1] must be a string, a number or true/false",
        "nothing/1/model.toml: declares no inputs; add a [[inputs]] table",
        "nothing/1/model.toml: declares no outputs",
        "broken/1/model.toml: cannot be read as TOML",
        "untold/1: has no model.toml",
        "neither/1: holds no model; it must hold exactly one of model.py, model.pt, model.pt2",
        "both/1: holds model.py and model.pt;",
        "version/v1: a version must be a positive integer",
        "bad name: a model's name must match",
        "empty: holds no version",
    ]
    assert [line for line in expected if line not in text] == [], text
    assert "good" not in text


def test_a_repository_without_models_is_a_mistake(tmp_path: Path) -> None:
    """A worker with nothing to serve was started with the wrong directory."""
    assert "holds no model; expected NAME/VERSION/model.toml" in mistakes(tmp_path)
    assert "is not a directory" in mistakes(tmp_path / "missing")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


@pytest.fixture(scope="module")
def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Net().eval()


def save_exported(net: Net, path: Path) -> None:
    program = torch.export.export(net, (torch.zeros(2, 4),), dynamic_shapes=({0: torch.export.Dim("rows", max=64)},))
    torch.export.save(program, path)


def test_python_torchscript_and_export_give_the_modules_own_answers(net: Net, tmp_path: Path) -> None:
    """Three ways to bring the same module: all load, batch requests of unequal rows, and agree with it."""
    from safetensors.torch import save_file

    python = add(
        tmp_path,
        "python",
        model_py=(
            "import torch\nfrom safetensors.torch import load_file\nfrom worker.models.interface import Model\n"
            "class Net(Model):\n"
            "    def load(self, context):\n"
            "        self.w = load_file(context.directory / 'net.safetensors', device=context.device)\n"
            "    def forward(self, batch):\n"
            "        w = self.w\n"
            "        return {'y': torch.relu(batch['x'] @ w['linear.weight'].T + w['linear.bias'])}\n"
        ),
    )
    save_file(net.state_dict(), python / "net.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(net, torch.zeros(2, 4)), add(tmp_path, "script") / "model.pt")
    save_exported(net, add(tmp_path, "export") / "model.pt2")

    requests = [x_request(1, seed=1), x_request(3, seed=2), x_request(2, seed=3)]
    for config in repository.scan(tmp_path):
        model = repository.load(config, "cpu")
        for request, outputs in zip(requests, run(model, *requests), strict=True):
            with torch.inference_mode():
                own = net(torch.from_numpy(request.inputs["x"])).numpy()
            np.testing.assert_allclose(outputs["y"], own, atol=1e-6, err_msg=config.name)


def test_a_file_that_would_run_code_is_refused(net: Net, tmp_path: Path) -> None:
    """torch.export.load falls back to unpickling anything; ours must not, whoever wrote the file."""
    path = add(tmp_path, "evil") / "model.pt2"
    honest, ran = tmp_path / "honest.pt2", tmp_path / "ran"
    save_exported(net, honest)

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (ran,))  # type: ignore[return-value]

    payload = tmp_path / "payload.pt"
    torch.save(Evil(), payload)
    with zipfile.ZipFile(honest) as source, zipfile.ZipFile(path, "w") as target:
        names = [name for name in source.namelist() if "sample_inputs" in name]
        assert names
        for name in source.namelist():
            target.writestr(name, payload.read_bytes() if name in names else source.read(name))
    [config] = repository.scan(tmp_path)
    with pytest.raises(ModelLoadError, match="load failed"):
        repository.load(config, "cpu")
    assert not ran.exists()
    # The danger is real: without our guard the same file runs its code.
    with pytest.raises(Exception):  # noqa: B017  (what comes after the payload ran is torch's affair)
        torch.export.load(path).module()(1, 2, 3)
    assert ran.exists()


@pytest.mark.parametrize(
    ("written", "meant"), [("TYPE_STRING", "BYTES"), ("fp32", "FP32"), ("double", "FP64"), ("TYPE_INT32", "INT32")]
)
def test_a_datatype_by_another_name_is_recognised(written: str, meant: str, tmp_path: Path) -> None:
    """Triton, numpy and torch have their own names; the error says ours."""
    add(tmp_path, "net", toml=TOML.replace('"FP32"', f'"{written}"', 1), model_py=MODEL_PY)
    assert f"unknown datatype '{written}'; did you mean '{meant}'?" in mistakes(tmp_path)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "must define exactly one subclass of Model, but defines none"),
        (MODEL_PY + "class Other(Model):\n    pass\n", "but defines Doubled, Other"),
        ("from worker.models.repository import Model\n", "but defines none"),
        ("import no_such_thing\n", "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        (
            MODEL_PY + "    def load(self, context):\n        open('/no/such/weights')\n",
            "load failed: FileNotFoundError",
        ),
        (MODEL_PY.replace("[:, :2]", ""), "warm-up failed.*'y' has shape.*model.toml makes it"),
        (MODEL_PY.replace("* 2", "> 0"), "warm-up failed.*'y' is bool; model.toml declares FP32"),
        (MODEL_PY.replace("forward", "forwards"), "must define forward"),
    ],
)
def test_a_model_that_cannot_serve_is_refused_with_the_reason(source: str, complaint: str, tmp_path: Path) -> None:
    """The worker says at its start what the first client would otherwise find out; no half-made module stays."""
    add(tmp_path, "net", model_py=source)
    [config] = repository.scan(tmp_path)
    with pytest.raises(ModelLoadError, match=f"(?s){complaint}"):
        repository.load(config, "cpu")


def test_a_module_beside_the_model_can_be_imported(tmp_path: Path) -> None:
    """model.py may say `from . import helper`, and two models' helpers of one name do not meet."""
    for name, factor in (("double", 2), ("triple", 3)):
        source = MODEL_PY.replace("* 2", "* helper.FACTOR").replace("\nclass", "from . import helper\nclass")
        directory = add(tmp_path, name, model_py=source)
        (directory / "helper.py").write_text(f"FACTOR = {factor}\n")
    request = x_request(1)
    for config, factor in zip(repository.scan(tmp_path), (2, 3), strict=True):
        [outputs] = run(repository.load(config, "cpu"), request)
        np.testing.assert_array_equal(outputs["y"], request.inputs["x"][:, :2] * factor)


def test_a_failed_import_leaves_no_module_behind(tmp_path: Path) -> None:
    """A reload after the repair must not find the broken one."""
    add(tmp_path, "net", model_py="raise RuntimeError('no')\n")
    [config] = repository.scan(tmp_path)
    before = set(sys.modules)
    with pytest.raises(ModelLoadError):
        repository.load(config, "cpu")
    assert not [name for name in set(sys.modules) - before if name.startswith("_tailrace_model")]


def test_a_model_may_bring_its_own_examples_or_no_warm_up(tmp_path: Path) -> None:
    """The made-up requests are zeros; a model that cannot take zeros says what it can take."""
    source = (
        "import numpy as np\n"
        + MODEL_PY.replace("return", "assert (batch['x'] > 0).all()\n        return")
        + "    def examples(self):\n        return EXAMPLES\n"
    )
    for name, examples, toml in (
        ("own", "[ModelRequest({'x': np.ones((1, 4), np.float32)})]", TOML),
        ("none", "[]", "warm_up_rows = 0\n" + TOML),
    ):
        text = source.replace("EXAMPLES", examples).replace("import Model", "import Model, ModelRequest")
        add(tmp_path, name, toml=toml, model_py=text)
    assert [repository.load(config, "cpu").config.name for config in repository.scan(tmp_path)] == ["none", "own"]


def test_only_requests_of_equal_shape_share_a_batch_by_default(tmp_path: Path) -> None:
    """The default collate concatenates along rows, so the rest of the shape is the key; rows themselves may differ."""
    add(tmp_path, "net", toml=TOML.replace("[4]", "[-1]"), model_py=MODEL_PY)
    [config] = repository.scan(tmp_path)
    model = repository.load(config, "cpu")

    def key(*shape: int) -> object:
        return model.batch_key(ModelRequest({"x": np.zeros(shape, np.float32)}, rows=shape[0]))

    assert key(1, 4) == key(3, 4) != key(1, 5)


def test_the_demo_repository_is_in_order() -> None:
    """What we ship scans without a complaint; the perceptron answers the same in every process."""
    configs = {c.name: c for c in repository.scan(repository.demo_repository())}
    assert set(configs) >= {"minilm", "mlp"}
    model = repository.load(configs["mlp"], "cpu")
    [outputs] = run(model, ModelRequest({"x": np.ones((1, 64), np.float32)}, rows=1))
    assert outputs["y"].shape == (1, 8)
    assert float(outputs["y"].sum()) == pytest.approx(-1.80743, abs=1e-4)

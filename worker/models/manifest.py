"""model.toml: read and checked, every mistake reported, none hidden behind another."""

import difflib
import tomllib
from pathlib import Path
from typing import Any

from shared.tensors import DATATYPES
from shared.wire import ModelTensor, Scalar
from worker.models.interface import ModelConfig

FILE = "model.toml"
PLATFORM_OF = {
    "model.py": "pytorch_python",
    "model.pt": "pytorch_torchscript",
    "model.pt2": "pytorch_export",
}
"""The one file beside model.toml, and what it makes of the model."""

_OTHER_NAMES = {"HALF": "FP16", "FLOAT": "FP32", "DOUBLE": "FP64", "BFLOAT16": "BF16", "STRING": "BYTES"}
"""What the datatypes are called elsewhere; FLOATn and Triton's TYPE_ are handled apart."""

_TYPE_NAMES = {int: "an integer", bool: "true or false", str: "a string", list: "a list", dict: "a table"}


class _Table:
    """One table of the file. Takes keys out, notes what is wrong with them, and finally notes what nobody took."""

    def __init__(self, values: dict[str, Any], where: str, problems: list[str]) -> None:
        self._left = dict(values)
        self._known: list[str] = []
        self.where = where
        self.problems = problems

    def problem(self, text: str) -> None:
        self.problems.append(f"{self.where}: {text}")

    def take(self, key: str, kind: type, default: Any) -> Any:
        """The value of `key`, or `default` if it is missing or not of `kind`."""
        self._known.append(key)
        value = self._left.pop(key, default)
        # In Python True is an int; in a file of settings it is a mistake.
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        self.problem(f"{key} = {value!r} must be {_TYPE_NAMES[kind]}")
        return default

    def count(self, key: str, default: int = 0) -> int:
        """A whole number that is not negative."""
        value: int = self.take(key, int, default)
        if value < 0:
            self.problem(f"{key} = {value} must not be negative")
            return default
        return value

    def table(self, key: str) -> "_Table":
        return _Table(self.take(key, dict, {}), f"{self.where} [{key}]", self.problems)

    def tables(self, key: str) -> list["_Table"]:
        """The elements of [[key]]; at least one is needed."""
        found = self.take(key, list, [])
        if not found:
            self.problem(f"declares no {key}; add a [[{key}]] table with name, datatype and shape")
        tables = []
        for i, values in enumerate(found):
            if isinstance(values, dict):
                tables.append(_Table(values, f"{self.where} [[{key}]] {i + 1}", self.problems))
            else:
                self.problem(f"{key}[{i}] = {values!r} must be a table; write [[{key}]]")
        return tables

    def rest(self) -> dict[str, Any]:
        """Everything that was not taken."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Note the keys that nobody knows, with the nearest known one."""
        for key in self.rest():
            near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"valid are {', '.join(self._known)}"
            self.problem(f"unknown key '{key}'; {hint}")


def read(directory: Path, *, name: str, version: str, problems: list[str]) -> ModelConfig | None:
    """The configuration of the model in `directory`, or None with everything that is wrong added to `problems`."""
    wrong_before = len(problems)
    platform = _platform(directory, problems)
    try:
        values = tomllib.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{directory}: has no {FILE}; it declares the model's inputs and outputs")
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        problems.append(f"{directory / FILE}: cannot be read as TOML: {e}")
        return None
    root = _Table(values, str(directory / FILE), problems)
    config = _config(root, directory, name, version, platform)
    root.finish()
    return config if len(problems) == wrong_before else None


def _platform(directory: Path, problems: list[str]) -> str:
    present = [file for file in PLATFORM_OF if (directory / file).is_file()]
    if len(present) != 1:
        found = f"holds {' and '.join(present)}" if present else "holds no model"
        problems.append(f"{directory}: {found}; it must hold exactly one of {', '.join(PLATFORM_OF)}")
        return ""
    return PLATFORM_OF[present[0]]


def _config(root: _Table, directory: Path, name: str, version: str, platform: str) -> ModelConfig:
    max_batch_size = root.count("max_batch_size")
    task = root.take("task", str, "")
    warm_up_rows = root.count("warm_up_rows", 8)
    finite = root.take("finite", bool, False)
    inputs, outputs = _tensors(root, "inputs"), _tensors(root, "outputs")
    if platform in ("pytorch_torchscript", "pytorch_export"):
        for tensor in (*inputs, *outputs):
            if tensor.datatype == "BYTES":
                root.problem(f"tensor '{tensor.name}' is BYTES, which only a model.py can handle")

    batching = root.table("batching")
    cost_max = batching.count("cost_max")
    linger_us = batching.count("max_queue_delay_microseconds")
    preferred = batching.take("preferred_batch_size", list, [])
    patience_ms = batching.count("patience_ms", 100)
    pads = batching.take("pads", bool, False)
    for size in preferred:
        if type(size) is not int or not 1 <= size <= max_batch_size:
            batching.problem(
                f"preferred_batch_size holds {size!r}; each must be 1 to max_batch_size = {max_batch_size}"
            )
    batching.finish()

    cuda = root.table("cuda")
    graph_rows = cuda.take("graph_rows", list, [])
    for size in graph_rows:
        if type(size) is not int or not 1 <= size <= max_batch_size:
            cuda.problem(f"graph_rows holds {size!r}; each must be 1 to max_batch_size = {max_batch_size}")
    if graph_rows and any(-1 in tensor.shape or tensor.datatype == "BYTES" for tensor in inputs):
        cuda.problem("graph_rows needs inputs without variable dimensions, and no BYTES")
    cuda.finish()

    return ModelConfig(
        name=name,
        version=version,
        platform=platform,
        inputs=inputs,
        outputs=outputs,
        path=directory,
        max_batch_size=max_batch_size,
        task=task,
        cost_max=cost_max,
        linger_us=linger_us,
        patience_ms=patience_ms,
        pads=pads,
        preferred_batch_sizes=tuple(preferred),
        finite=finite,
        warm_up_rows=warm_up_rows,
        graph_rows=tuple(graph_rows),
        parameters=_parameters(root.table("parameters")),
    )


def _tensors(root: _Table, key: str) -> tuple[ModelTensor, ...]:
    tensors: list[ModelTensor] = []
    for table in root.tables(key):
        name, datatype = table.take("name", str, ""), table.take("datatype", str, "")
        shape = table.take("shape", list, [])
        if not name:
            table.problem("needs a name")
        elif name in (t.name for t in tensors):
            table.problem(f"name '{name}' is declared twice")
        if datatype not in DATATYPES:
            table.problem(f"unknown datatype '{datatype}'; {_datatype_hint(datatype)}")
        for size in shape:
            if type(size) is not int or (size < 1 and size != -1):
                table.problem(f"shape holds {size!r}; each dimension must be a positive integer, or -1 if it varies")
        table.finish()
        tensors.append(ModelTensor(name, datatype, shape))
    return tuple(tensors)


def _datatype_hint(datatype: str) -> str:
    plain = datatype.upper().removeprefix("TYPE_")
    plain = _OTHER_NAMES.get(plain, plain.replace("FLOAT", "FP"))
    near = difflib.get_close_matches(plain, sorted(DATATYPES), n=1)
    return f"did you mean '{near[0]}'?" if near else f"valid are {', '.join(sorted(DATATYPES))}"


def _parameters(table: _Table) -> dict[str, Scalar]:
    parameters = table.rest()
    for key, value in parameters.items():
        if not isinstance(value, str | int | float | bool):
            table.problem(f"{key} = {value!r} must be a string, a number or true/false")
    return parameters

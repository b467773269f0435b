"""What the server says of itself and of its models, in the shapes tritonclient and perf_analyzer read.

Pure builders of dicts that are ready for JSON.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shared.wire import ModelDescriptor, ModelTensor

Json = dict[str, Any]

EXTENSIONS = (
    "classification",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "model_repository",
)
"""Only what is implemented; no client checks the list, people do."""

_OUTCOMES = {
    "cancelled_before_compute": "cancel_saved_count",
    "expired_before_compute": "expire_saved_count",
    "dead": "dead_count",
    "orphaned": "orphan_count",
}
_BATCH_COUNTER = re.compile(r"b([1-9][0-9]*)_count")


def server_metadata(version: str) -> Json:
    """`GET v2`."""
    return {"name": "tailrace", "version": version, "extensions": list(EXTENSIONS)}


def newest(descriptors: Sequence[ModelDescriptor]) -> ModelDescriptor:
    """The version served when a request names none: the highest number, or the last name when none is a number."""
    return max(descriptors, key=_by_version)


def model_metadata(descriptors: Sequence[ModelDescriptor], version: str | None = None) -> Json:
    """`GET v2/models/{M}[/versions/{V}]`, from all versions of one model; None stands for the newest."""
    ordered = sorted(descriptors, key=_by_version)
    model = next((one for one in ordered if one.version == version), ordered[-1])
    return {
        "name": model.name,
        "versions": [one.version for one in ordered],
        "platform": model.platform,
        "inputs": [_tensor_metadata(spec, model) for spec in model.inputs],
        "outputs": [_tensor_metadata(spec, model) for spec in model.outputs],
    }


def model_config(model: ModelDescriptor) -> Json:
    """`GET v2/models/{M}[/versions/{V}]/config`: Triton's ModelConfig as JSON; dimensions without the batch."""
    config: Json = {
        "name": model.name,
        "platform": model.platform,
        "backend": "pytorch",
        "runtime": "",
        "version_policy": {"all": {}},
        "max_batch_size": model.max_batch_size,
        "input": [
            {**_tensor_config(spec), "format": "FORMAT_NONE", "optional": False, "allow_ragged_batch": False}
            for spec in model.inputs
        ],
        "output": [{**_tensor_config(spec), "label_filename": ""} for spec in model.outputs],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "parameters": {key: {"string_value": str(value)} for key, value in model.parameters.items()},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }
    if model.max_batch_size > 0:
        config["dynamic_batching"] = {}
    return config


def statistics(name: str, version: str, counters: Mapping[str, int]) -> Json:
    """One entry of `model_stats`. `counters` are cumulative; a missing one is 0.

    They are `<PART>_count` and `<PART>_ns` with PART one of success, fail, queue, compute_input, compute_infer and
    compute_output; `inference_count` (rows), `execution_count`, `last_inference_ms`; and for every batch size in rows
    `b<SIZE>_count`, `b<SIZE>_input_ns`, `b<SIZE>_infer_ns`, `b<SIZE>_output_ns`.
    """
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    sizes = sorted(int(match[1]) for match in map(_BATCH_COUNTER.fullmatch, counters) if match)
    return {
        "name": name,
        "version": version,
        "last_inference": counters.get("last_inference_ms", 0),
        "inference_count": counters.get("inference_count", 0),
        "execution_count": counters.get("execution_count", 0),
        "inference_stats": {part: _duration(counters, f"{part}_count", f"{part}_ns") for part in parts},
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": size,
                **{
                    f"compute_{part}": _duration(counters, f"b{size}_count", f"b{size}_{part}_ns")
                    for part in ("input", "infer", "output")
                },
            }
            for size in sizes
        ],
        "memory_usage": [],
        # Ours: what cost no pass since it was withdrawn or late before one, and what was given up or had no gateway.
        "tailrace": {name: counters.get(counter, 0) for name, counter in _OUTCOMES.items()},
    }


def repository_index(descriptors: Sequence[ModelDescriptor]) -> list[Json]:
    """`POST v2/repository/index`. A worker announces a model once it is loaded and warm, so all are ready."""
    ordered = sorted(descriptors, key=lambda model: (model.name, _by_version(model)))
    return [{"name": model.name, "version": model.version, "state": "READY"} for model in ordered]


def _by_version(model: ModelDescriptor) -> tuple[int, str]:
    """Numbers by their value, after any names."""
    version = model.version
    return (int(version) if version.isascii() and version.isdigit() else -1, version)


def _tensor_metadata(spec: ModelTensor, model: ModelDescriptor) -> Json:
    batch = [-1] if model.max_batch_size > 0 else []
    return {"name": spec.name, "datatype": spec.datatype, "shape": batch + spec.shape}


def _tensor_config(spec: ModelTensor) -> Json:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": spec.shape, "is_shape_tensor": False}


def _duration(counters: Mapping[str, int], count: str, ns: str) -> dict[str, int]:
    return {"count": counters.get(count, 0), "ns": counters.get(ns, 0)}

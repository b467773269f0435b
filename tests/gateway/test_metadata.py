"""What the server says of itself is what it does, in the shapes Triton's tools read."""

import json

from gateway.metadata import model_config, model_metadata, newest, repository_index, server_metadata, statistics
from shared.wire import ModelDescriptor, ModelTensor


def model(version: str, *, name: str = "m", max_batch_size: int = 8) -> ModelDescriptor:
    return ModelDescriptor(
        name,
        version,
        "pytorch",
        max_batch_size,
        [ModelTensor("t", "BYTES", [1])],
        [ModelTensor("y", "FP32", [-1, int(version) if version.isdigit() else 0])],
        parameters={"dimensions": 384},
    )


def test_the_server_lists_only_what_is_implemented() -> None:
    """Shared memory, trace, logging and sequences are not claimed."""
    tree = server_metadata("0.1.0")
    assert (tree["name"], tree["version"]) == ("tailrace", "0.1.0")
    assert "binary_tensor_data" in tree["extensions"]
    assert not {"system_shared_memory", "cuda_shared_memory", "trace", "logging", "sequence"} & set(tree["extensions"])


def test_metadata_lists_all_versions_and_describes_the_asked_one() -> None:
    """Versions are ordered as numbers, 10 after 9; without a version the newest is described."""
    versions = [model("10"), model("9"), model("canary")]
    tree = model_metadata(versions)
    assert tree["versions"] == ["canary", "9", "10"]
    assert tree["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, -1, 10]}]
    assert model_metadata(versions, "9")["outputs"][0]["shape"] == [-1, -1, 9]
    assert newest(versions).version == "10"


def test_a_model_without_a_batch_has_no_leading_wildcard() -> None:
    """The -1 in front stands for the batch only."""
    assert model_metadata([model("1", max_batch_size=0)])["inputs"] == [
        {"name": "t", "datatype": "BYTES", "shape": [1]}
    ]


def test_the_configuration_has_what_perf_analyzer_reads() -> None:
    """Data types with Triton's names, dimensions without the batch, batching only where there is a batch."""
    tree = model_config(model("1"))
    assert (tree["name"], tree["backend"], tree["platform"], tree["max_batch_size"]) == ("m", "pytorch", "pytorch", 8)
    assert (tree["input"][0]["data_type"], tree["input"][0]["dims"]) == ("TYPE_STRING", [1])
    assert (tree["output"][0]["data_type"], tree["output"][0]["dims"]) == ("TYPE_FP32", [-1, 1])
    assert (tree["input"][0]["optional"], tree["input"][0]["is_shape_tensor"]) == (False, False)
    assert tree["model_transaction_policy"] == {"decoupled": False}
    assert tree["response_cache"] == {"enable": False}
    assert tree["dynamic_batching"] == {}
    assert tree["parameters"] == {"dimensions": {"string_value": "384"}}
    assert "dynamic_batching" not in model_config(model("1", max_batch_size=0))
    json.dumps(tree)


def test_statistics_put_every_counter_in_its_place() -> None:
    """Cumulative counters become Triton's tree; batch sizes are ordered as numbers."""
    counters = {
        "success_count": 3,
        "success_ns": 300,
        "queue_count": 3,
        "queue_ns": 30,
        "compute_infer_count": 3,
        "compute_infer_ns": 90,
        "inference_count": 12,
        "execution_count": 2,
        "last_inference_ms": 1700,
        "b10_count": 1,
        "b10_infer_ns": 60,
        "b2_count": 1,
        "b2_input_ns": 5,
        "b2_infer_ns": 30,
        "b2_output_ns": 7,
    }
    tree = statistics("m", "1", counters)
    assert (tree["name"], tree["version"], tree["last_inference"]) == ("m", "1", 1700)
    assert (tree["inference_count"], tree["execution_count"]) == (12, 2)
    assert tree["inference_stats"]["success"] == {"count": 3, "ns": 300}
    assert tree["inference_stats"]["queue"] == {"count": 3, "ns": 30}
    assert tree["inference_stats"]["compute_infer"] == {"count": 3, "ns": 90}
    assert tree["inference_stats"]["fail"] == {"count": 0, "ns": 0}
    assert tree["batch_stats"] == [
        {
            "batch_size": 2,
            "compute_input": {"count": 1, "ns": 5},
            "compute_infer": {"count": 1, "ns": 30},
            "compute_output": {"count": 1, "ns": 7},
        },
        {
            "batch_size": 10,
            "compute_input": {"count": 1, "ns": 0},
            "compute_infer": {"count": 1, "ns": 60},
            "compute_output": {"count": 1, "ns": 0},
        },
    ]
    assert (tree["memory_usage"], tree["response_stats"]) == ([], {})
    assert tree["tailrace"] == {"cancelled_before_compute": 0, "expired_before_compute": 0, "dead": 0, "orphaned": 0}


def test_statistics_of_a_model_never_asked_are_zero() -> None:
    """Every part is there, so that a client can subtract two readings."""
    tree = statistics("m", "1", {})
    assert set(tree["inference_stats"]) == {
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    }
    assert tree["batch_stats"] == []


def test_the_index_lists_every_version_as_ready() -> None:
    """A model is announced once it is warm."""
    assert repository_index([model("2"), model("1"), model("1", name="a")]) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "m", "version": "1", "state": "READY"},
        {"name": "m", "version": "2", "state": "READY"},
    ]

"""The device answers every request of a batch, blames only the request at fault, and accounts for its time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import clock, tensors, wire
from shared.errors import BadRequest, SettingsError
from shared.wire import ModelTensor
from worker.device import CudaDevice, Device, DeviceLost, Executed, open_device
from worker.models.interface import LoadContext, Model, ModelConfig, ModelInputError, ModelReply, ModelRequest

DATATYPES = sorted(tensors.DATATYPES)
VALUES = {
    "BOOL": [True, False, True],
    "FP16": [1.5, -0.25, 65504],
    "BF16": [0x3F80, 0xFF80, 0x7FC0],  # 1.0, -inf, nan as bit patterns
    "BYTES": [b"", b"\x00\xff", "zwölf".encode()],
}


def config_of(inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor], max_batch_size: int = 64) -> ModelConfig:
    return ModelConfig("net", "1", "pytorch_python", tuple(inputs), tuple(outputs), Path("/"), max_batch_size)


X = ModelTensor("x", "FP32", [2])
Y = ModelTensor("y", "FP32", [2])
DOUBLE = config_of([X], [Y])


def ready(model: Model, config: ModelConfig, device: str = "cpu") -> Model:
    model.context = LoadContext(config, config.path, device)
    return model


def x_request(value: float, rows: int = 1) -> ModelRequest:
    return ModelRequest({"x": np.full((rows, 2), value, np.float32)}, rows=rows)


@pytest.fixture
def device() -> Device:
    device = open_device("cpu", threads=1)
    device.prepare_thread()
    return device


def execute(
    device: Device, model: Model, requests: Sequence[ModelRequest], wanted: Sequence[str] = (), config: Any = DOUBLE
) -> Executed:
    return device.execute(ready(model, config, device.name), config, requests, [wanted] * len(requests))


def body_of(executed: Executed, i: int) -> wire.ReplyBody:
    return wire.decode_reply(wire.encode_reply(STAMPS, executed.results[i].body)).body


STAMPS = wire.WorkerStamps(*range(9), "w", "c", 1, 0, "b", 1, 1, "full", 0, 0)


class Doubler(Model):
    """Doubles; chokes on 13, and blames the client for 7. Counts its passes."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.passes.append(len(batch["x"]))
        if (batch["x"] == 13).any():
            raise RuntimeError("thirteen is more than I can bear")
        if (batch["x"] == 7).any():
            raise ModelInputError("input 'x' must not be seven")
        return batch["x"] * 2


def test_a_batch_of_unequal_requests_comes_back_request_by_request(device: Device) -> None:
    """Requests of several rows share one pass, and each gets its own rows."""
    model = Doubler()
    executed = execute(device, model, [x_request(1), x_request(2, rows=3), x_request(4)])
    assert model.passes == [5] and executed.splits == 0
    for i, (value, rows) in enumerate([(2.0, 1), (4.0, 3), (8.0, 1)]):
        [output] = body_of(executed, i).outputs
        assert (output.name, output.datatype, output.shape) == ("y", "FP32", [rows, 2])
        assert np.all(np.frombuffer(output.data, np.float32) == value)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([1.0, 2.0, 7.0, 13.0]), min_size=1, max_size=17))
def test_exactly_the_requests_at_fault_fail(values: list[float]) -> None:
    """Whatever the mix: every bad request gets its own error, every good one its answer, in order."""
    device = open_device("cpu", threads=1)
    device.prepare_thread()
    executed = execute(device, Doubler(), [x_request(value) for value in values])
    for i, (value, result) in enumerate(zip(values, executed.results, strict=True)):
        body = body_of(executed, i)
        assert (body.error_code, body.error) == (result.error_code, result.error)
        if value == 13:
            assert (result.failed, result.error_code) == (True, "model_error")
            assert result.error == "RuntimeError: thirteen is more than I can bear"
            assert "Traceback" in result.traceback and b"Traceback" not in result.body
        elif value == 7:
            assert (result.failed, result.error_code) == (True, "bad_request")
            assert result.error == "input 'x' must not be seven"
        else:
            assert not result.failed
            assert np.frombuffer(body.outputs[0].data, np.float32).tolist() == [2 * value] * 2
    assert (executed.splits > 0) == (len(values) > 1 and bool({7.0, 13.0} & set(values)))


def test_one_culprit_costs_few_extra_passes(device: Device) -> None:
    """In a batch of 32 the search halves: about two passes a level, not one a request."""
    model = Doubler()
    executed = execute(device, model, [x_request(13 if i == 20 else 1) for i in range(32)])
    assert [i for i, result in enumerate(executed.results) if result.failed] == [20]
    assert executed.splits == 5 and len(model.passes) == 1 + 2 * 5


def test_the_broker_side_errors_of_ours_keep_their_kind(device: Device) -> None:
    """A model may raise BadRequest as well."""

    class Picky(Doubler):
        def collate(self, requests: Sequence[ModelRequest]) -> Any:
            raise BadRequest("send something else")

    executed = execute(device, Picky(), [x_request(1)])
    assert (executed.results[0].error_code, executed.results[0].error) == ("bad_request", "send something else")


def test_only_the_wanted_outputs_are_sent(device: Device) -> None:
    """In the order they were asked for; an output that does not exist is the client's fault, and only its."""
    config = config_of([X], [Y, ModelTensor("z", "FP32", [2])])

    class Two(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return batch["x"] + 1, batch["x"] - 1

    wanted = [[], ["z"], ["z", "y"], ["q"]]
    executed = device.execute(ready(Two(), config), config, [x_request(1)] * 4, wanted)
    assert [[o.name for o in body_of(executed, i).outputs] for i in range(4)] == [["y", "z"], ["z"], ["z", "y"], []]
    assert executed.results[3].error_code == "bad_request"
    assert executed.results[3].error == "unexpected inference output 'q' for model 'net'; it has ['y', 'z']"


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        (lambda x: x.double(), "output 'y' is float64; model.toml declares FP32, which is float32 in numpy"),
        (lambda x: x[:, :1], "output 'y' has shape [1, 1] for 1 rows; model.toml makes it [1, 2]"),
        (lambda x: x.sum(), "ValueError: output 'y' has shape [] for a batch of"),
        (lambda x: x[:-1], "its first dimension must be the batch dimension"),
        (lambda x: (x, x), "ValueError: forward returned 2 outputs; model.toml declares 1: ['y']"),
        (lambda x: {"why": x}, "ValueError: forward returned no output 'y'; it returned ['why']"),
        (lambda x: None, "output 'y'"),
    ],
)
def test_an_answer_unlike_the_declaration_is_the_models_error(device: Device, outputs: Any, complaint: str) -> None:
    """Nothing is cast or guessed: the text says what was declared and what came."""

    class Liar(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            return outputs(batch["x"])

    executed = execute(device, Liar(), [x_request(1), x_request(2)])
    for result in executed.results:
        assert result.failed and result.error_code == "model_error"
        assert complaint in result.error


def test_too_few_replies_is_the_models_error(device: Device) -> None:
    """A split that loses requests is caught, even where only a larger batch shows it."""

    class Forgetful(Doubler):
        def split(self, outputs: Any, requests: Sequence[ModelRequest], batch: Any) -> Sequence[ModelReply]:
            return []

    executed = execute(device, Forgetful(), [x_request(1)] * 2)
    assert executed.results[0].error == "split returned 0 replies for 1 requests; return one for each"
    assert {result.error_code for result in executed.results} == {"model_error"}


def test_parameters_that_cannot_travel_are_the_models_error(device: Device) -> None:
    """A numpy number in the parameters fails that reply with a text, not the worker."""

    class Chatty(Doubler):
        def split(self, outputs: Any, requests: Sequence[ModelRequest], batch: Any) -> Sequence[ModelReply]:
            replies = super().split(outputs, requests, batch)
            replies[0].parameters["score"] = np.float32(1)  # type: ignore[assignment]
            replies[1].parameters["score"] = 1.0
            return replies

    executed = execute(device, Chatty(), [x_request(1)] * 2)
    assert [result.error_code for result in executed.results] == ["model_error", ""]
    assert body_of(executed, 1).parameters == {"score": 1.0}


def test_a_long_error_text_is_cut(device: Device) -> None:
    """An exception that prints a whole tensor does not travel whole."""

    class Verbose(Model):
        def forward(self, batch: Any) -> Any:
            raise RuntimeError("x" * 1_000_000)

    [result] = execute(device, Verbose(), [x_request(1)]).results
    assert len(result.error) == 2_000 and len(result.body) < 3_000


@pytest.mark.parametrize("max_batch_size", [0, 8])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_goes_through_unchanged(device: Device, datatype: str, max_batch_size: int) -> None:
    """Bytes of the message -> array -> tensor -> array -> bytes: equal, with and without a batch dimension."""
    config = config_of([ModelTensor("x", datatype, [3])], [ModelTensor("y", datatype, [3])], max_batch_size)
    values = VALUES.get(datatype, [0, 1, 127])
    dtype = object if datatype == "BYTES" else tensors.DTYPES[datatype]
    sent = bytes(tensors.to_bytes(np.array(values, dtype=dtype), datatype))
    shape = [1, 3] if max_batch_size else [3]
    request = ModelRequest({"x": tensors.from_bytes(sent, datatype, shape, name="x")})
    seen = []

    class Echo(Model):
        def forward(self, batch: dict[str, Any]) -> Any:
            seen.append(batch["x"])
            return {"y": batch["x"]}

    requests = [request] * (2 if max_batch_size else 1)
    executed = execute(device, Echo(), requests, config=config)
    for i, result in enumerate(executed.results):
        assert not result.failed, result.error
        [output] = body_of(executed, i).outputs
        assert (output.datatype, output.shape, bytes(output.data)) == (datatype, shape, sent)
    if datatype == "BF16":
        assert seen[0].dtype == torch.bfloat16
    if datatype == "BOOL":
        assert seen[0].dtype == torch.bool


def test_a_model_may_write_into_its_inputs(device: Device) -> None:
    """The message is read-only, the batch is a copy: an in-place model works and leaves the request alone."""

    class InPlace(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return batch["x"].add_(1)

    sent = np.zeros((1, 2), np.float32).tobytes()
    request = ModelRequest({"x": tensors.from_bytes(sent, "FP32", [1, 2], name="x")})
    executed = execute(device, InPlace(), [request])
    assert not executed.results[0].failed
    assert sent == bytes(8)


def test_inputs_that_disagree_about_the_rows_never_mix_with_a_neighbours(device: Device) -> None:
    """Two requests whose inputs are 1+2 and 2+1 rows concatenate to equal lengths; both are refused all the same."""
    config = config_of([X, ModelTensor("z", "FP32", [2])], [Y])

    class Sum(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return batch["x"] + batch["z"]

    def crooked(rows_x: int, rows_z: int) -> ModelRequest:
        inputs = {"x": np.zeros((rows_x, 2), np.float32), "z": np.zeros((rows_z, 2), np.float32)}
        return ModelRequest(inputs, rows=rows_x)

    executed = execute(device, Sum(), [crooked(1, 2), crooked(2, 1), crooked(2, 2)], config=config)
    assert [result.error_code for result in executed.results] == ["bad_request", "bad_request", ""]
    assert executed.results[0].error == "input 'z' has shape [2, 2]; all inputs need one first dimension, 1"


def test_text_outputs_may_be_str(device: Device) -> None:
    """A model that answers with Python strings gets them encoded; anything else in BYTES is its error."""
    config = config_of([X], [ModelTensor("y", "BYTES", [1])])

    class Speaker(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            return {"y": np.array([["grün"], [5]], dtype=object)}

    executed = execute(device, Speaker(), [x_request(1)] * 2, config=config)
    assert bytes(body_of(executed, 0).outputs[0].data) == tensors.encode_bytes_elements(["grün".encode()])
    assert executed.results[1].error == "element 0 of BYTES output 'y' is a int; it must be bytes or str"


@pytest.mark.parametrize("values", [[1, 2, 3], [1, 13, 3], [13]])
def test_stamps_are_in_order_and_nothing_is_negative(device: Device, values: list[float]) -> None:
    """entered <= collated <= done <= each encoded, through success, bisection and failure alike."""
    before_ns = clock.now_ns()
    executed = execute(device, Doubler(), [x_request(value) for value in values])
    stamps = [before_ns, executed.entered_ns, executed.collated_ns, executed.done_ns, *executed.encoded_ns]
    assert stamps == sorted([*stamps, clock.now_ns()])[:-1]
    assert len(executed.encoded_ns) == len(executed.results) == len(values)
    assert executed.compute_ns == executed.done_ns - executed.collated_ns
    assert (executed.h2d_ns, executed.d2h_ns) == (0, 0)
    used = (executed.runq_ns, executed.minflt, executed.majflt, executed.nvcsw, executed.nivcsw)
    assert min(used) >= 0
    assert executed.cpu_ns > 0


def test_a_batch_that_never_reaches_the_device_still_has_its_stamps(device: Device) -> None:
    """When no request can be collated, forward took no time, and everything is answered."""

    class Closed(Doubler):
        def collate(self, requests: Sequence[ModelRequest]) -> Any:
            raise ValueError("closed")

    executed = execute(device, Closed(), [x_request(1)] * 3)
    assert executed.entered_ns <= executed.collated_ns <= executed.done_ns <= executed.encoded_ns[0]
    assert [result.error for result in executed.results] == ["ValueError: closed"] * 3
    assert executed.cpu_ns == 0


def test_padding_is_accounted_as_the_model_says(device: Device) -> None:
    """`tokens` of the model; rows by default; the passes of a bisection that succeeded are summed."""

    class Padded(Doubler):
        def tokens(self, requests: Sequence[ModelRequest], batch: Any) -> tuple[int, int]:
            return len(requests), 10

    assert execute(device, Doubler(), [x_request(1, rows=3)]).tokens_padded == 3
    executed = execute(device, Padded(), [x_request(1), x_request(13)])
    assert (executed.tokens_useful, executed.tokens_padded, executed.splits) == (1, 10, 1)


def test_graphs_compiled_in_a_pass_are_counted(device: Device) -> None:
    """A pass that waits for torch.compile says so; the next one of that shape does not."""

    class Compiled(Model):
        def load(self, context: LoadContext) -> None:
            self.double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)

        def forward(self, batch: Any) -> Any:
            return self.double(batch["x"])

    model = Compiled()
    model.load(LoadContext(DOUBLE, DOUBLE.path, "cpu"))
    graphs = [execute(device, model, [x_request(1.0, rows)]).compiles for rows in (1, 1, 2, 2)]
    assert graphs == [1, 0, 1, 0]


def test_models_run_under_inference_mode_with_the_configured_threads() -> None:
    """No graph is recorded, and torch uses the threads of the device."""
    seen = []

    class Witness(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            seen.append((torch.is_inference_mode_enabled(), torch.get_num_threads()))
            return batch["x"]

    before = torch.get_num_threads()
    try:
        device = open_device("cpu", threads=2)
        device.prepare_thread()
        execute(device, Witness(), [x_request(1)])
    finally:
        torch.set_num_threads(before)
    assert seen == [(True, 2)]


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="torch before 2.8 has no type for it")
def test_a_lost_device_is_not_blamed_on_a_request(device: Device) -> None:
    """After a sticky error no half of the batch can be computed: the worker must hear of it at once."""

    class Dead(Doubler):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            self.passes.append(1)
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    model = Dead()
    with pytest.raises(DeviceLost, match="device cpu is lost"):
        execute(device, model, [x_request(1)] * 4)
    assert model.passes == [1]


def test_devices_are_named_and_refused_clearly() -> None:
    """A wrong name says which are right; a CUDA device that is not there says what torch sees."""
    assert (open_device("cpu", threads=3).name, open_device("cpu", threads=3).slots) == ("cpu", 1)
    with pytest.raises(SettingsError, match="unknown device 'tpu'; valid are cpu, cuda"):
        open_device("tpu", threads=1)
    with pytest.raises(SettingsError, match="device 'cuda:99' is not there"):
        open_device("cuda:99", threads=1)
    with pytest.raises(SettingsError, match="at least one"):
        open_device("cpu", threads=0)


class FakeCuda:
    """Stands in for torch.cuda: writes down who did what on which stream, and computes nothing."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "none"
        self.streams = 0

    def stream_class(self) -> Any:
        fake = self

        class Stream:
            def __init__(self, device: torch.device) -> None:
                self.name = ("compute", "copy_in", "copy_out")[fake.streams]
                fake.streams += 1

            def wait_event(self, event: Any) -> None:
                fake.log.append(f"{self.name} waits for {event.name}")

        return Stream

    def event_class(self) -> Any:
        fake = self

        class Event:
            name = ""

            def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
                assert enable_timing and blocking

            def record(self) -> None:
                self.name = f"event {sum('records' in line for line in fake.log)}"
                fake.log.append(f"{fake.current} records {self.name}")

            def synchronize(self) -> None:
                fake.log.append(f"the host waits for {self.name}")

            def elapsed_time(self, end: Any) -> float:
                return float(int(end.name[6:]) - int(self.name[6:]))

        return Event

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> tuple[CudaDevice, FakeCuda]:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Stream", fake.stream_class())
    monkeypatch.setattr(torch.cuda, "Event", fake.event_class())
    monkeypatch.setattr(torch.cuda, "stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: fake.log.append("the host waits for everything"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    device = CudaDevice("cuda:0", threads=1)
    monkeypatch.setattr(device, "_device", torch.device("cpu"))
    device.prepare_thread()
    return device, fake


def test_the_streams_of_cuda_wait_for_each_other_and_the_host_waits_once(
    fake_cuda: tuple[CudaDevice, FakeCuda],
) -> None:
    """Copies in, then compute, then copies out, each timed by its own pair of events; one wait at the edge."""
    device, fake = fake_cuda

    class Witness(Model):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            fake.log.append(f"forward on {fake.current}")
            return batch["x"]

    executed = execute(device, Witness(), [x_request(1), x_request(2)])
    assert not any(result.failed for result in executed.results)
    assert fake.log == [
        "copy_in records event 0",
        "copy_in records event 1",
        "compute waits for event 1",
        "compute records event 2",
        "forward on compute",
        "compute records event 3",
        "copy_out waits for event 3",
        "copy_out records event 4",
        "copy_out records event 5",
        "the host waits for event 5",
    ]
    assert (executed.h2d_ns, executed.compute_ns, executed.d2h_ns) == (1_000_000,) * 3


def test_a_failed_pass_on_cuda_waits_before_its_memory_is_reused(fake_cuda: tuple[CudaDevice, FakeCuda]) -> None:
    """The staged inputs are freed by the exception, so nothing may still be reading them; then the halves are tried."""
    device, fake = fake_cuda
    executed = execute(device, Doubler(), [x_request(13), x_request(2)])
    assert [result.error_code for result in executed.results] == ["model_error", ""]
    assert fake.log.count("the host waits for everything") == 2
    assert fake.log[-1].startswith("the host waits for event")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_answers_of_the_cpu_and_times_its_stages() -> None:
    """The same batch on both devices: equal results, device times that are there and fit into the host's."""
    device = open_device("cuda", threads=1)
    device.prepare_thread()
    assert (device.name, device.slots) == ("cuda:0", 2)
    requests = [x_request(value) for value in (1, 13, 3, 7)]
    for _ in range(3):
        executed = execute(device, Doubler(), requests)
        assert [result.error_code for result in executed.results] == ["", "model_error", "", "bad_request"]
        assert np.frombuffer(body_of(executed, 2).outputs[0].data, np.float32).tolist() == [6, 6]
        assert min(executed.h2d_ns, executed.compute_ns, executed.d2h_ns) > 0
        total_ns = executed.h2d_ns + executed.compute_ns + executed.d2h_ns
        assert total_ns <= executed.done_ns - executed.collated_ns


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_pass_answers_as_a_plain_one() -> None:
    """Whether it is used is a matter of its time; what it answers is not."""

    class Layers(Model):
        def load(self, context: LoadContext) -> None:
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(20)]).to("cuda").eval()

        def forward(self, batch: Any) -> torch.Tensor:
            return self.net(batch["x"])

    config = replace(DOUBLE, graph_rows=(1, 4, 8))
    device = open_device("cuda", threads=1)
    device.prepare_thread()
    plain, captured = (ready(Layers(), config, device.name) for _ in range(2))
    for model in (plain, captured):
        model.load(model.context)
    device.prepare_model(captured, config)
    requests = [x_request(value) for value in (1, 5, 7)]
    answers = [[body_of(device.execute(m, config, requests, [[]] * 3), i) for i in range(3)] for m in (plain, captured)]
    for one, other in zip(*answers, strict=True):
        np.testing.assert_allclose(
            np.frombuffer(one.outputs[0].data, np.float32), np.frombuffer(other.outputs[0].data, np.float32), rtol=1e-3
        )

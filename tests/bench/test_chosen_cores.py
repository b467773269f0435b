"""`--workers auto`: what is measured is kept for as long as it is true, and memory bounds it."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from bench.bare import Crew
from bench.bare_cells import ONE, Cell, Sample, Way
from bench.bare_protocol import Loaded
from tailrace import cores
from tailrace.cli import cli
from tailrace.cores import Measured, Rate

GOOD = Measured({"m/1": [Rate(1, 1, 60.0), Rate(1, 2, 80.0), Rate(2, 1, 120.0)]}, 1000)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one model, as far as its files matter."""
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.toml").write_text("max_batch_size = 8")
    return tmp_path / "models"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each measurement, which takes no time; there are two cores and memory for 32 workers."""
    times: list[int] = []

    async def measure(*args: object, **more: object) -> Measured:
        times.append(1)
        return GOOD

    monkeypatch.setattr(cores, "_measure", measure)
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(cores, "most_workers", lambda rss_bytes: 32)
    return times


def find(repository: Path, data_dir: Path, *, models: tuple[str, ...] = (), threads: int = 0) -> cores.Found:
    return asyncio.run(cores.find(str(repository), models, threads=threads, data_dir=data_dir))


def test_the_next_start_remembers(repository: Path, tmp_path: Path, measured: list[int]) -> None:
    """Measured once, then known at once."""
    first, second = find(repository, tmp_path), find(repository, tmp_path)
    assert first.choice.way == second.choice.way == Way(2, 1)
    assert (first.remembered, second.remembered) == (False, True)
    assert len(measured) == 1
    assert cores.why(second) == "m/1 120 requests/s (1 x 1: 60)"


def test_a_changed_model_is_measured_again(repository: Path, tmp_path: Path, measured: list[int]) -> None:
    """A file that has another size, another time, or is new; but not what Python caches beside it."""
    find(repository, tmp_path)
    toml = repository / "m" / "1" / "model.toml"
    for change in (
        lambda: toml.write_text("max_batch_size = 16"),
        lambda: os.utime(toml, ns=(1, 1)),
        lambda: (toml.parent / "weights.bin").write_bytes(b"w"),
    ):
        change()
        assert not find(repository, tmp_path).remembered
    (toml.parent / "__pycache__").mkdir()
    (toml.parent / "__pycache__" / "model.pyc").write_bytes(b"x")
    assert find(repository, tmp_path).remembered
    assert len(measured) == 4


def test_all_that_the_figures_depend_on_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models, threads, cores, processor, versions."""
    files = [("m/1/model.py", 10, 99)]
    key = cores.key_of(files, (), threads=0, cores=2, cpu="A")
    assert key == cores.key_of(files, (), threads=0, cores=2, cpu="A")
    others = [
        cores.key_of(files, ("m",), threads=0, cores=2, cpu="A"),
        cores.key_of(files, (), threads=1, cores=2, cpu="A"),
        cores.key_of(files, (), threads=0, cores=4, cpu="A"),
        cores.key_of(files, (), threads=0, cores=2, cpu="B"),
    ]
    monkeypatch.setattr(cores.metadata, "version", lambda name: "0")
    others.append(cores.key_of(files, (), threads=0, cores=2, cpu="A"))
    assert len({key, *others}) == 6


def test_memory_is_asked_for_at_each_start(
    repository: Path, tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was the best yesterday may not fit today."""
    assert find(repository, tmp_path).choice.way == Way(2, 1)
    monkeypatch.setattr(cores, "most_workers", lambda rss_bytes: 900 // rss_bytes + 1)
    found = find(repository, tmp_path)
    assert found.remembered
    assert found.choice.way == Way(1, 2)
    assert cores.why(found).endswith("there is memory for 1")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": {"rates": 5}}'])
def test_a_damaged_file_is_measured_anew(content: bytes, repository: Path, tmp_path: Path, measured: list[int]) -> None:
    """It is a memory, nothing more."""
    (tmp_path / cores.FILE).write_bytes(content)
    assert not find(repository, tmp_path).remembered
    assert find(repository, tmp_path).remembered


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """The file does not grow with every change of a model."""
    file = tmp_path / cores.FILE
    for i in range(cores.KEPT_MAX + 3):
        cores.write_kept(file, {**cores.read_kept(file), str(i): GOOD})
    kept = cores.read_kept(file)
    assert list(kept) == [str(i) for i in range(3, cores.KEPT_MAX + 3)]
    assert kept["5"] == GOOD
    assert msgspec.json.decode(file.read_bytes())["5"]["rss_bytes"] == 1000


def test_a_directory_that_cannot_be_written_to_does_no_harm(
    repository: Path, tmp_path: Path, measured: list[int]
) -> None:
    """It is measured again at the next start."""
    (tmp_path / "cores.new").mkdir()
    assert find(repository, tmp_path).choice.way == Way(2, 1)
    assert not find(repository, tmp_path).remembered


def test_where_there_is_nothing_to_choose_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core, or when the threads given leave room for one worker only."""
    assert cores.candidates(1, threads=0) == [ONE]
    assert cores.candidates(2, threads=2) == [Way(1, 2)]
    assert cores.candidates(2, threads=3) == []
    assert cores.candidates(2, threads=1) == [Way(1, 1), Way(2, 1)]
    assert cores.decide(Measured({}, 0), threads=3, workers_max=9).way == Way(1, 3)
    assert cores.decide(Measured({}, 0), threads=0, workers_max=9).way == ONE


class PretendedCrew(Crew):
    """Knows how quick a model is without running it."""

    def __init__(self, per_s: float, pass_ns: int) -> None:
        self._sample = Sample(per_s, (pass_ns,), 1.0, 1, 1)
        self.asked: list[tuple[Way, int, float]] = []

    async def grow(self, count: int) -> None:
        pass

    async def sample(self, model: str, way: Way, batch: int, *, length_s: float, begin: float = 0.0) -> Sample:
        self.asked.append((way, batch, length_s))
        return self._sample


def cells(crew: PretendedCrew) -> list[Cell]:
    return asyncio.run(cores._measure_model(crew, Loaded("m/1", 32, ""), cores.candidates(2, threads=0)))


def test_a_model_faster_than_a_gateway_has_no_say() -> None:
    """In its larger batches; it is not measured further."""
    crew = PretendedCrew(cores.GATEWAY_PER_S, 1000)
    assert cells(crew) == []
    assert crew.asked == [(ONE, 1, cores.PROBE_S), (ONE, 32, cores.PROBE_S)]


def test_a_model_is_measured_within_its_budget() -> None:
    """All ways and sizes in each round; all of it together takes what is planned."""
    crew = PretendedCrew(50.0, 20_000_000)
    assert len(cells(crew)) == 6
    assert sum(length_s for _, _, length_s in crew.asked) == pytest.approx(cores.BUDGET_S)


def test_a_slow_model_is_measured_with_single_requests_only() -> None:
    """Larger batches would take minutes."""
    assert {cell.batch for cell in cells(PretendedCrew(1.0, 10**10))} == {1}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--workers", "many"], "write a number up to 256, or auto"),
        (["--workers", "-1"], "write a number up to 256, or auto"),
        (["--workers", "257"], "write a number up to 256, or auto"),
        (["--workers", "auto", "--device", "cuda"], "with --device, write a number"),
    ],
)
def test_wrong_numbers_of_workers_are_refused(args: list[str], told: str) -> None:
    """Before anything starts."""
    result = CliRunner().invoke(cli, ["up", *args])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", "").split())

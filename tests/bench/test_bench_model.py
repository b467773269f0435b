"""`tailrace bench model`: real processes with tiny models, and what is refused."""

import json
import re
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from bench import bare, bare_memory
from bench.bare_cells import ONE, Way
from bench.bare_protocol import Setup
from bench.errors import CannotMeasure
from shared.vitals import usable_cores
from tailrace.bench_command import bench_command

OWN_MODELS = Path(__file__).parents[1] / "e2e" / "models"
QUICK = ("--seconds", "0.02", "--batches", "1,8")


def run(*args: str) -> Result:
    """`tailrace bench model ...`, with all processes of it gone at the end."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    result = CliRunner().invoke(bench_command, ["model", *args])
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert left == []
    return result


def test_a_model_is_measured_and_the_best_way_named(tmp_path: Path) -> None:
    """The whole command: table, verdict, JSON."""
    file = tmp_path / "mlp.json"
    result = run("mlp", "--seconds", "0.2", "--batches", "1,8", "--workers", "1", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert re.search(r"mlp/1 on \d+ cores, torch \S+; a process takes \d+ MiB", result.output)
    assert re.search(r"^1 x 1 +1 +[\d,]+ ", result.output, re.MULTILINE)
    assert re.search(r"Best: --workers 1 --threads \d+: [\d,]+ requests/s in batches of 8", result.output)
    told = json.loads(file.read_text())
    cells = told["results"]["cells"]
    assert {(c["workers"], c["batch"]) for c in cells} == {(1, 1), (1, 8)}
    assert all(len(c["per_s_rounds"]) == 3 and 0 < c["pass_ms_p50"] <= c["pass_ms_p99"] for c in cells)
    assert told["about"]["cpu"] and told["settings"]["seconds"] == 0.2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["mlp", "--threads", "0"], "whole numbers from 1 on"),
        (["mlp", "--workers", "one"], "whole numbers from 1 on"),
        (["mlp", "--workers", "1,"], "whole numbers from 1 on"),
        (["mlp", "--threads", "1000"], "whose product is not more"),
        (["mlp", "--seconds", "0"], "--seconds"),
        (["mlp", "--order", "random"], "--order"),
        (["mlp", "--json", "no/such/folder/x.json"], "there is no folder"),
        ([], "MODEL"),
    ],
)
def test_wrong_numbers_end_with_status_2_before_anything_is_loaded(args: list[str], told: str) -> None:
    """And say what would be right."""
    result = run(*args)
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert told in result.output


def test_an_unknown_model_is_told_with_the_known_ones() -> None:
    """One line, no traceback."""
    result = run("nope", *QUICK)
    assert result.exit_code == 2
    assert re.search(r"Error: there is no model 'nope' in \S+; it holds: minilm/1, mlp/1\n$", result.output)


def test_a_repository_that_is_not_there_is_told() -> None:
    """As the worker tells it."""
    result = run("mlp", "--model-repository", "no/such")
    assert result.exit_code == 2
    assert re.search(r"Error: the model repository \S+/no/such is not a directory\n$", result.output)


def test_the_url_command_is_still_there() -> None:
    """`model` is the only word that is no URL."""
    assert "Usage: bench [OPTIONS] URL" in CliRunner().invoke(bench_command, ["--help"]).output
    assert "Usage: bench model [OPTIONS] MODEL" in CliRunner().invoke(bench_command, ["model", "--help"]).output


@pytest.mark.asyncio
async def test_processes_measure_the_same_time_together() -> None:
    """Two processes that sleep a tenth of a second a pass do twice what one does, whatever the cores."""
    async with bare.Crew(Setup(repository=str(OWN_MODELS), models=("slow",)), cores=usable_cores()) as crew:
        [model] = crew.models
        assert (model.label, model.rows_max) == ("slow/1", 8)
        cells = await bare.measure(crew, "slow/1", [ONE, Way(2, 1)], [1, 8], rounds=1, length_s=0.15)
    assert crew.rss_bytes > 50 << 20
    per_s = {(cell.way, cell.batch): cell.per_s for cell in cells}
    # A pass may take longer on a busy machine, never shorter.
    assert per_s[ONE, 1] <= 10 and per_s[Way(2, 1), 1] <= 20
    assert per_s[Way(2, 1), 8] > per_s[ONE, 1]
    assert all(len(s.durations_ns) >= cell.way.workers for cell in cells for s in cell.samples)


@pytest.mark.asyncio
async def test_a_model_that_fails_is_no_figure(tmp_path: Path) -> None:
    """Its own error is told, and the other processes end."""
    directory = tmp_path / "bad" / "1"
    directory.mkdir(parents=True)
    (directory / "model.toml").write_text(
        "max_batch_size = 4\nwarm_up_rows = 0\n"
        + "".join(f'[[{kind}]]\nname = "n"\ndatatype = "INT64"\nshape = [1]\n' for kind in ("inputs", "outputs"))
    )
    (directory / "model.py").write_text(
        "from worker.models.interface import Model\n"
        "class Bad(Model):\n"
        "    def forward(self, batch):\n"
        "        print('to whom it may concern')\n"
        "        raise ValueError('not today')\n"
    )
    async with bare.Crew(Setup(repository=str(tmp_path)), cores=2) as crew:
        with pytest.raises(CannotMeasure, match=r"model bad/1 does not answer .*ValueError: not today"):
            await crew.sample("bad/1", Way(2, 1), 1, length_s=0.01)


def test_no_more_processes_than_memory_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways that do not fit are left out."""
    monkeypatch.setattr(bare_memory, "available_bytes", lambda: 0)
    result = run("mlp", *QUICK, "--threads", "1", "--rounds", "1")
    assert result.exit_code == 0, result.output
    assert "2 x 1" not in result.output

"""Which runs a side of a comparison has, from the paths that name it, and the figures of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path

from forensics.files import is_log, log_files
from forensics.quality import Severity, check
from forensics.run_figures import Run, Window, bounds_us, read_run, slices
from forensics.store import LogError, Store, open_store

RUNS_MAX = 500
SLICES_MAX, SLICES_MIN = 8, 4
BEYOND_MIN = 10
"""Slices are made long enough for so many requests beyond the quantile, down to SLICES_MIN slices."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The logs of one run: files, or folders of them."""

    name: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to read of each run: its requests of a `model`, but those of the first `skip_s` seconds; `quantiles` are
    those whose parts are told."""

    quantiles: Sequence[float]
    model: str = ""
    skip_s: float = 0.0

    def after_warm_up(self, first_us: int) -> Window:
        """The window that begins when what is skipped is over."""
        return Window(since_us=first_us + round(self.skip_s * 1e6), model=self.model)


@dataclass(frozen=True, slots=True)
class VersionRuns:
    """Two versions of a model, and the slices of each."""

    model: str
    a_version: str
    b_version: str
    a: Sequence[Run]
    b: Sequence[Run]


def runs_in(texts: Sequence[str]) -> list[Folder]:
    """The runs that these paths name: a folder of logs (or of folders of logs), a folder of such folders, a file, or a
    pattern of these such as 'runs/new-*'. Raises LogError."""
    found: dict[Path, Folder] = {}
    for text in texts:
        found_by_pattern = sorted(glob(text))  # noqa: PTH207  # Path.glob takes no absolute pattern
        paths = [Path(text)] if Path(text).exists() else list(map(Path, found_by_pattern))
        if not paths:
            raise LogError(f"there is no {text}; name a folder with the logs of a run, or a folder of such folders")
        for path in paths:
            runs = list(_runs(path))
            if not runs:
                raise LogError(f"no log (*.jsonl, *.jsonl.zst or an archive of `tailrace logs compact`) lies in {path}")
            found.update((path.resolve(), Folder(str(path), logs)) for path, logs in runs)
    if len(found) > RUNS_MAX:
        raise LogError(f"{len(found)} runs are more than the {RUNS_MAX} that are compared at once")
    return list(found.values())


def _runs(path: Path) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """The runs at a path, each with the places of its logs."""
    if not path.is_dir() or log_files([path]):
        yield path, (path,)
        return
    for child in sorted(path.iterdir()):
        if not child.is_dir():
            continue
        if log_files([child]):
            yield child, (child,)
        elif inside := tuple(sorted(p for p in child.iterdir() if p.is_dir() and any(map(is_log, p.iterdir())))):
            # A run of several machines, a folder each.
            yield child, inside


def read_folder(folder: Folder, asked: Asked) -> Run:
    """The figures of a whole run. Raises LogError, and ValueError when nothing in it succeeded."""
    with open_store(folder.paths) as store:
        bounds = bounds_us(store, Window(model=asked.model))
        window = asked.after_warm_up(bounds[0] if bounds else 0)
        return read_run(store, folder.name, window, asked.quantiles, doubts=_doubts(store, folder.name))


def read_slices(folder: Folder, asked: Asked, count: int | None) -> list[Run]:
    """One run cut into slices of time; without a `count`, into as many as have enough requests, 4 to 8.

    Raises LogError, and ValueError when a slice has no request that succeeded.
    """
    with open_store(folder.paths) as store:
        bounds = _whole(store, folder.name, asked)
        window = asked.after_warm_up(bounds[0])
        doubts = _doubts(store, folder.name)
        return _sliced(store, folder.name, window, (window.since_us, bounds[1]), asked, count, doubts)


def read_versions(
    folder: Folder, choose: Callable[[Sequence[tuple[str, str]]], tuple[str, str, str]], asked: Asked, count: int | None
) -> VersionRuns:
    """The slices of two versions of a model within one set of logs. Where both were served at the same time, their
    slices are of the same times.

    `choose` gets each (model, version), by when it was asked for first, and returns the model and the two versions.
    Raises LogError and ValueError, and what `choose` raises.
    """
    with open_store(folder.paths) as store:
        model, *versions = choose(_known(store, asked.model))
        asked = replace(asked, model=model)
        window = asked.after_warm_up(_whole(store, folder.name, asked)[0])
        windows = [replace(window, version=version) for version in versions]
        spans = []
        for one in windows:
            if (bounds := bounds_us(store, one)) is None:
                raise ValueError(f"no request of version {one.version} is in {folder.name}")
            spans.append(bounds)
        first, last = max(span[0] for span in spans), min(span[1] for span in spans)
        shorter = min(b - a for a, b in spans)
        if last - first > shorter / 2:
            spans = [(first, last), (first, last)]
        doubts = _doubts(store, folder.name)
        sides = [
            _sliced(store, f"version {one.version}", one, span, asked, count, doubts)
            for one, span in zip(windows, spans, strict=True)
        ]
        return VersionRuns(model, versions[0], versions[1], *sides)


def _known(store: Store, model: str) -> list[tuple[str, str]]:
    rows = store.rows(
        "SELECT model, version FROM requests WHERE model <> '' AND version <> '' AND (? = '' OR model = ?) "
        "GROUP BY model, version ORDER BY min(started_at), model, version",
        [model, model],
    )
    return [(str(m), str(v)) for m, v in rows]


def _whole(store: Store, name: str, asked: Asked) -> tuple[int, int]:
    bounds = bounds_us(store, Window(model=asked.model))
    if bounds is None:
        raise ValueError(f"{name} has no request" + (f" of {asked.model}" if asked.model else ""))
    return bounds


def _sliced(
    store: Store,
    name: str,
    window: Window,
    span: tuple[int, int],
    asked: Asked,
    count: int | None,
    doubts: Sequence[str],
) -> list[Run]:
    if count is None:
        whole = read_run(store, name, replace(window, since_us=span[0], until_us=span[1] + 1), ())
        beyond = len(whole.e2e_ns) * (1 - max(asked.quantiles))
        count = min(max(int(beyond / BEYOND_MIN), SLICES_MIN), SLICES_MAX)
    cut = [replace(window, since_us=s.since_us, until_us=s.until_us) for s in slices(*span, count)]
    named = ((f"{name}, slice {i} of {count}", part) for i, part in enumerate(cut, 1))
    return [read_run(store, slice_name, part, asked.quantiles, doubts=doubts) for slice_name, part in named]


def _doubts(store: Store, name: str) -> list[str]:
    """What stands against these logs so much that figures from them may be wrong."""
    found = check(store, now_us=0)
    return [f"{name}: {f.what}; so the logs cannot say {f.cannot}" for f in found if f.severity is Severity.REFUSE]

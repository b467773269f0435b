"""The demo: search the documentation of the user's own Python by meaning, and see where the time went."""

import asyncio
import importlib
import inspect
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from forensics.explain import explain
from forensics.load import Logs
from forensics.report import print_to, render_explanation, segment_table
from forensics.requests import rows
from shared import humanlog
from shared.broker.embedded import NoRedis
from tailrace.supervise import GaveUp
from tailrace.up import Stack, UpOptions, greeting, running, told_to_stop

QUESTIONS = ("remove a directory tree", "compress bytes with gzip")
ANSWERS = 4
SIGNATURE = re.compile(r"[\w.]+\(")
CLIENTS = 64
MODULES = [
    "argparse",
    "array",
    "ast",
    "asyncio",
    "base64",
    "bisect",
    "bz2",
    "calendar",
    "cmath",
    "collections",
    "concurrent.futures",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "email.message",
    "fileinput",
    "fnmatch",
    "fractions",
    "functools",
    "getpass",
    "glob",
    "gzip",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "http.client",
    "http.server",
    "imaplib",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "linecache",
    "locale",
    "logging",
    "lzma",
    "mailbox",
    "math",
    "mimetypes",
    "multiprocessing",
    "netrc",
    "operator",
    "os",
    "os.path",
    "pathlib",
    "pickle",
    "platform",
    "plistlib",
    "pprint",
    "queue",
    "random",
    "re",
    "sched",
    "secrets",
    "shelve",
    "shlex",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "sqlite3",
    "ssl",
    "stat",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "timeit",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "urllib.parse",
    "urllib.request",
    "uuid",
    "wave",
    "weakref",
    "xml.etree.ElementTree",
    "zipfile",
    "zlib",
]


@dataclass(frozen=True, slots=True)
class Doc:
    """A documented name of the standard library."""

    name: str
    text: str

    @property
    def summary(self) -> str:
        """Its first line that is not a mere signature."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return next((line for line in lines if not SIGNATURE.match(line)), lines[0])


def docstrings(limit: int) -> list[Doc]:
    """Docstrings of this Python's library, whole: functions and classes, then methods, well-known modules first."""
    found: dict[str, Doc] = {}
    rest = [m.name for m in pkgutil.iter_modules() if m.name in sys.stdlib_module_names and not m.name.startswith("_")]
    members: list[tuple[str, Any]] = []
    for module_name in dict.fromkeys([*MODULES, *rest]):
        if module_name in ("antigravity", "this", "idlelib", "test", "turtledemo"):
            continue  # these act when they are imported
        try:
            with warnings.catch_warnings(action="ignore"):
                module = importlib.import_module(module_name)
        except Exception:
            continue  # not built into this Python
        own = [(n, v) for n, v in sorted(vars(module).items()) if not n.startswith("_") and callable(v)]
        for name, value in own:
            _add(found, f"{module_name}.{name}", value)
            if inspect.isclass(value):
                members += [(f"{module_name}.{name}.{n}", v) for n, v in vars(value).items() if not n.startswith("_")]
        if len(found) >= limit:
            break
    for name, value in members:
        if len(found) >= limit:
            break
        _add(found, name, value)
    return list(found.values())[:limit]


def _add(found: dict[str, Doc], name: str, value: Any) -> None:
    text = inspect.getdoc(value)
    if text and len(text) > 20 and text not in found:
        found[text] = Doc(name, text)


def main(*, texts: int, port: int, workers: int, data_dir: Path) -> int:
    """Run the demo; returns the exit status."""
    humanlog.configure("demo", level="warning")
    try:
        asyncio.run(_main(texts, port, workers, data_dir))
    except (GaveUp, NoRedis) as e:
        humanlog.get().error("the demo cannot run", reason=str(e))
        return 1
    return 0


async def _main(texts: int, port: int, workers: int, data_dir: Path) -> None:
    console = Console(highlight=False)
    told = told_to_stop()
    options = UpOptions(
        port=port,
        workers=workers,
        data_dir=data_dir,
        log_dir=data_dir / f"logs-{os.getpid()}",
        log_level="warning",
    )
    console.print("Starting an embedded Redis, a gateway and a worker (it loads torch) ...", soft_wrap=True)
    async with running(options) as stack:
        showing = asyncio.create_task(_show(console, stack, texts))
        await asyncio.wait([showing, told], return_when=asyncio.FIRST_COMPLETED)
        if not showing.done():
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            return
        await showing
        if not sys.stdout.isatty():
            print(greeting(stack, "Standard output is no terminal, so it stops here; `make up` serves on."), flush=True)
        else:
            print(greeting(stack), flush=True)
            await asyncio.wait([told, stack.failed], return_when=asyncio.FIRST_COMPLETED)


async def _show(console: Console, stack: Stack, texts: int) -> None:
    docs = await asyncio.to_thread(docstrings, texts)
    lengths = sorted(len(d.text.split()) for d in docs)
    p50, p99 = lengths[len(lengths) // 2], lengths[len(lengths) * 99 // 100]
    console.print(f"Embedding {len(docs)} docstrings of Python {sys.version.split()[0]} (words: p50 {p50}, p99 {p99})")
    async with Client(stack.url) as client:
        vectors, slowest = await _embed_all(console, client, docs)
        for question in QUESTIONS:
            answer, _ = await client.embed(question)
            scores = vectors @ answer
            console.print(Text(f'\n"{question}"', style="bold"))
            for i in np.argsort(-scores)[:ANSWERS]:
                found = Text(f"  {scores[i]:.2f}  {docs[i].name}: {docs[i].summary}")
                console.print(found, overflow="ellipsis", no_wrap=True)
    await asyncio.sleep(0.2)  # the writers flush every 50 ms
    logs = Logs.load([stack.log_dir])
    console.print("\nWhere the time went, all requests:")
    print_to(console, segment_table(rows(logs)))
    console.print(f"\nThe slowest of them ({CLIENTS} clients send at once, so most of it is waiting for the others):")
    for explanation in explain(logs, slowest):
        print_to(console, render_explanation(explanation))


async def _embed_all(console: Console, client: "Client", docs: Sequence[Doc]) -> tuple[np.ndarray[Any, Any], str]:
    vectors: list[Any] = [None] * len(docs)
    slowest = (0.0, "")
    todo = iter(range(len(docs)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        bar = progress.add_task("embedding", total=len(docs))

        async def one_client() -> None:
            nonlocal slowest
            for i in todo:
                vectors[i], (took_ms, request_id) = await client.embed(docs[i].text)
                slowest = max(slowest, (took_ms, request_id))
                progress.advance(bar)

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(one_client())
    return np.stack(vectors), slowest[1]


class Client:
    """A plain HTTP client of the demo's model."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v2/models/minilm/infer"
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120))

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def embed(self, text: str) -> tuple[np.ndarray[Any, Any], tuple[float, str]]:
        """The text's vector, float32 [384], and (total ms by the server's own account, request id)."""
        body = {"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}
        async with self._session.post(self._url, json=body) as response:
            if response.status != 200:
                raise GaveUp(f"the gateway answered {response.status}: {await response.text()}")
            answer = await response.json()
            total_ms = float(response.headers["Server-Timing"].rpartition("dur=")[2])
            vector = np.asarray(answer["outputs"][0]["data"], dtype=np.float32)
            return vector, (total_ms, response.headers["x-tailrace-request-id"])

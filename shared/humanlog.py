"""Logs for people, on standard error: structlog, with the trace id and the request id bound where there are any."""

import logging
import sys
from contextvars import ContextVar
from typing import Any

import structlog
from structlog.typing import Processor

about: ContextVar[tuple[str, str] | None] = ContextVar("about", default=None)
"""(request id, trace id) of the request that this context works for. Setting it costs next to nothing."""


def configure(process: str, *, level: str = "info") -> None:
    """Set structlog up for this process, and route the logs of libraries through it."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _bind_request,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
    ]
    coloured = sys.stderr.isatty()
    renderer: Processor = (
        structlog.dev.ConsoleRenderer()
        if coloured
        else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "process", "event"])
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info if not coloured else _keep,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.contextvars.bind_contextvars(process=process)


def _bind_request(_logger: Any, _method: str, event: Any) -> Any:
    if ids := about.get():
        event.setdefault("request_id", ids[0])
        event.setdefault("trace_id", ids[1])
    return event


def _keep(_logger: Any, _method: str, event: Any) -> Any:
    return event


def get() -> Any:
    """The logger for people."""
    return structlog.get_logger()

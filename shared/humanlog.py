"""Logs for people, on standard error: structlog, with the trace id and the request id bound where there are any."""

import logging
import sys
from typing import Any

import structlog
from structlog.typing import Processor


def configure(process: str, *, level: str = "info") -> None:
    """Set structlog up for this process, and route the logs of libraries through it."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
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


def _keep(_logger: Any, _method: str, event: Any) -> Any:
    return event


def get() -> Any:
    """The logger for people."""
    return structlog.get_logger()

"""The guard around every hook: an exception is a denial of whatever the hook was about.

mitmproxy logs an exception in a hook and lets the flow go on, so none may leave one.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from mitmproxy import http

from impyard.addon.notes import stop

logger = logging.getLogger(__name__)


def fail_closed[**P](hook: Callable[P, Any]) -> Callable[P, Any]:
    """Turn every exception of a hook into a denial of whatever the hook was about."""

    @functools.wraps(hook)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            result = hook(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001  an exception is a denial
            _deny_after(exc, args)
            return None
        return _awaited(result, args) if asyncio.iscoroutine(result) else result

    async def _awaited(running: Coroutine[Any, Any, Any], args: tuple[Any, ...]) -> None:
        try:
            await running
        except Exception as exc:  # noqa: BLE001  an exception is a denial
            _deny_after(exc, args)

    return guarded


def _deny_after(exc: Exception, args: tuple[Any, ...]) -> None:
    judge_addon, data = args
    logger.error("the judge failed", exc_info=exc)
    try:
        judge_addon.deny_after_error(data)
    except Exception:
        if isinstance(data, http.HTTPFlow):
            stop(data)
        raise  # ends the connection

"""The shapes of pi's models.json: its documented keys, each with the values that are known to be no secret. Pure.

From pi's docs/models-configuration.md. A shape takes a value and gives what of it a box may have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from impyard.runner.keys.plainvalues import is_model, is_title

_LEVELS = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_-]{0,47}")
# Fields of a request's body that hold a word, and no user's text.
_BODY_WORDS = frozenset(
    {"effort", "mode", "reasoning_effort", "service_tier", "stop", "summary", "truncation", "ttl", "type", "verbosity"}
)
_DEEPEST = 4


class Wrong(Exception):
    """A value that is not of its key's shape. It holds nothing of it."""


Shape = Callable[[Any], Any]  # raises Wrong


def as_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong
    return value


def _when(is_right: Callable[[Any], bool]) -> Shape:
    def shape(value: Any) -> Any:
        if not is_right(value):
            raise Wrong
        return value

    return shape


def _one_of(*values: str) -> Shape:
    return _when(lambda value: isinstance(value, str) and value in values)


def _either(*shapes: Shape) -> Shape:
    def shape(value: Any) -> Any:
        for each in shapes:
            try:
                return each(value)
            except Wrong:
                continue
        raise Wrong

    return shape


def _list(item: Shape) -> Shape:
    def shape(value: Any) -> Any:
        if not isinstance(value, list):
            raise Wrong
        return [item(each) for each in value]

    return shape


def _record(shapes: Mapping[str, Shape], *required: str) -> Shape:
    """An object of these keys; others are left out, and those with a wrong value."""

    def shape(value: Any) -> Any:
        kept = {}
        for key, each in as_object(value).items():
            if key in shapes:
                try:
                    kept[key] = shapes[key](each)
                except Wrong:
                    continue
        if not kept.keys() >= set(required):
            raise Wrong
        return kept

    return shape


def _body(value: Any, depth: int = 0, is_word: bool = False) -> Any:
    """Fields of a request's body, of names that nobody can list: numbers, switches, and words where they are known."""
    if value is None or isinstance(value, bool) or _is_number(value):
        return value
    if isinstance(value, str) and is_word and is_title(value):
        return value
    if depth >= _DEEPEST:
        raise Wrong
    if isinstance(value, list):
        return [_body(each, depth + 1, is_word) for each in value]
    kept = {}
    for key, each in as_object(value).items():
        if _KEY.fullmatch(key) and is_model(key.lstrip("$_") or key):
            try:
                kept[key] = _body(each, depth + 1, key in _BODY_WORDS)
            except Wrong:
                continue
    return kept


def _template_value(value: Any) -> Any:
    """A value of `chatTemplateKwargs`: one of the body's, or a name of pi's own."""
    if isinstance(value, dict):
        return _record({"$var": _one_of(*(f"thinking.{name}" for name in ("enabled", "effort", "budget")))}, "$var")(
            value
        ) | _record({"omitWhenOff": _SWITCH})(value)
    return _body(value, _DEEPEST)


def _template(value: Any) -> Any:
    kept = {}
    for key, each in as_object(value).items():
        if _KEY.fullmatch(key) and is_model(key.lstrip("$_") or key):
            try:
                kept[key] = _template_value(each)
            except Wrong:
                continue
    return kept


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


_SWITCH = _when(lambda value: isinstance(value, bool))
_NUMBER = _when(_is_number)
_POSITIVE = _when(lambda value: _is_number(value) and value > 0)
_NAME = _when(is_title)
_ID = _when(is_model)
_SAMPLING: Shape = lambda value: _body(as_object(value))  # noqa: E731
_RATES = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), _NUMBER)
_TIER = _record(_RATES | {"inputTokensAbove": _NUMBER}, "inputTokensAbove", *_RATES)
_COST = _RATES | {"tiers": _list(_TIER)}
_PERCENTILES = _record(dict.fromkeys(("p50", "p75", "p90", "p99"), _NUMBER))
_PRICE = _either(
    _NUMBER, _when(lambda value: isinstance(value, str) and re.fullmatch(r"[0-9.]{1,12}", value) is not None)
)
_SIZES = dict.fromkeys(("maxWidth", "maxHeight", "maxBytes", "jpegQuality"), _POSITIVE)
_ROUTING = {
    **dict.fromkeys(("allow_fallbacks", "require_parameters", "zdr", "enforce_distillable_text"), _SWITCH),
    **{name: _list(_ID) for name in ("order", "only", "ignore", "quantizations")},
    "data_collection": _one_of("deny", "allow"),
    "sort": _either(_ID, _record({"by": _ID, "partition": _either(_ID, _when(lambda value: value is None))})),
    "max_price": _record(dict.fromkeys(("prompt", "completion", "image", "audio", "request"), _PRICE)),
    "preferred_min_throughput": _either(_NUMBER, _PERCENTILES),
    "preferred_max_latency": _either(_NUMBER, _PERCENTILES),
}
_COMPAT_SWITCHES = (
    *("supportsStore", "supportsDeveloperRole", "supportsReasoningEffort", "supportsUsageInStreaming"),
    *("supportsFinishReason", "requiresToolResultName", "requiresAssistantAfterToolResult"),
    *("requiresNonNullAssistantContent", "requiresToolsWithToolHistory", "requiresThinkingAsText"),
    *("requiresReasoningContentOnAssistantMessages", "zaiToolStream", "supportsThinkingTokenBudget"),
    *("supportsOpenAIGrammarTools", "supportsMidConvoSystemMessages", "supportsMidConvoToolAdditions"),
    *("supportsStrictMode", "sendSessionAffinityHeaders", "supportsLongCacheRetention", "supportsAdditionalTools"),
    *("supportsToolSearch", "supportsExplicitPromptCacheMode", "supportsMidConvoEffort", "supportsMaxOutputTokens"),
    *("supportsEagerToolInputStreaming", "supportsCacheControlOnTools", "supportsTemperature"),
    *("forceAdaptiveThinking", "allowEmptySignature", "supportsStrictTools", "supportsMidConvoToolChanges"),
    *("supportsMessageThreads", "sendImageOptInHeader"),
)
_FALLBACK = _record({"provider": _ID, "model": _ID, "cost": _record(_COST, *_RATES)}, "provider", "model", "cost")
_COMPAT = {
    **dict.fromkeys(_COMPAT_SWITCHES, _SWITCH),
    "maxTokensField": _one_of("max_completion_tokens", "max_tokens"),
    "thinkingFormat": _ID,
    "thinkingTokenBudgetField": _one_of("thinking_token_budget", "thinking_budget", "thinking_budget_tokens"),
    "chatTemplateKwargs": _template,
    "chatTemplateArgs": _template,
    "openRouterRouting": _record(_ROUTING),
    "vercelGatewayRouting": _record({"only": _list(_ID), "order": _list(_ID)}),
    "cacheControlFormat": _one_of("anthropic"),
    "sessionAffinityFormat": _one_of("openai", "openai-nosession", "openrouter"),
    "promptCacheKeyMode": _one_of("auto", "enabled", "disabled"),
    "vllmPriority": _NUMBER,
    "allowedFallbackModels": _list(_FALLBACK),
    "imageInput": _one_of("assets", "images", "state-image-urls"),
}
_IMAGES = {"resize": _record(_SIZES), "maxPerMessage": _POSITIVE, "maxPerRequest": _POSITIVE}
OVERRIDE: dict[str, Shape] = {
    "name": _NAME,
    "reasoning": _SWITCH,
    "thinkingLevelMap": _record({level: _either(_ID, _when(lambda value: value is None)) for level in _LEVELS}),
    "input": _list(_one_of("text", "image")),
    "inputLimits": _record({"maxRequestBytes": _POSITIVE, "images": _record(_IMAGES)}),
    "cost": _record(_COST),
    "promptCache": _record({"short": _POSITIVE, "long": _POSITIVE}),
    "contextWindow": _POSITIVE,
    "maxTokens": _POSITIVE,
    "samplingParams": _SAMPLING,
    "samplingParamsByThinkingLevel": _record(dict.fromkeys(_LEVELS, _SAMPLING)),
    "compat": _record(_COMPAT),
}
MODEL: dict[str, Shape] = OVERRIDE | {"id": _ID, "api": _ID, "baseUrl": _ID, "cost": _record(_COST, *_RATES)}
PROVIDER: dict[str, Shape] = {
    "name": _NAME,
    "baseUrl": _ID,
    "api": _ID,
    "oauth": _one_of("radius"),
    "authHeader": _SWITCH,
    "compat": _record(_COMPAT),
}

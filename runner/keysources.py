"""Where the user's credentials come from: pi's own files and the environment.

Nothing here stores anything; `follow` and `available` say what the vault could have.
"""

from __future__ import annotations

from impyard.runner.pifiles import agent_folder, literal, read_object, resolve_template

__all__ = ["KEY_VARIABLES", "agent_folder", "literal", "read_object", "resolve_template"]

# Provider to the variables that pi reads its key from, in pi's order.
KEY_VARIABLES: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_OAUTH_TOKEN", "ANTHROPIC_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "github-copilot": ("COPILOT_GITHUB_TOKEN",),
    "xai": ("XAI_API_KEY",),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "huggingface": ("HF_TOKEN",),
    "nvidia": ("NVIDIA_API_KEY",),
    "moonshotai": ("MOONSHOT_API_KEY",),
    "zai": ("ZAI_API_KEY",),
    "kimi-coding": ("KIMI_API_KEY",),
    "minimax": ("MINIMAX_API_KEY",),
    "vercel-ai-gateway": ("AI_GATEWAY_API_KEY",),
}

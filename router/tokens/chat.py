"""A chat as routing sees it: what the engine will feed its chat template, whichever API it came through.

Pure data. `/v1/chat/completions` gives it as it is; `/v1/responses` and `/v1/messages` are converted (`convert.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(slots=True)
class Chat:
    """Messages in the form of chat completions, and what goes with them.

    `client_template` is a template the caller sent: it is never rendered here. `local` is False where the prompt
    depends on something this router does not do the way an engine does it, `remote` where even the engine's
    `/tokenize` cannot know it (a conversation the engine stores). `merge_system`: system messages after the first are
    merged into it when the template wants the system message first. `calls_as_given`: the engine does not put the
    fields of tool calls into its own order.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    client_template: str | None = None
    merge_system: bool = False
    calls_as_given: bool = False
    local: bool = True
    remote: bool = True

    def extra_variables(self) -> dict[str, Any]:
        """What the template sees beside messages, tools and the two switches."""
        extra = dict(self.template_kwargs)
        if self.reasoning_effort is not None:
            extra.setdefault("enable_thinking", self.reasoning_effort != "none")
            extra["reasoning_effort"] = self.reasoning_effort
        if self.documents is not None:
            extra["documents"] = self.documents
        return extra

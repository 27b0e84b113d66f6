"""The releases that a simulated worker can imitate, and what differs between their logs and metrics.

Facts only, read in the published wheels of LMCache and vLLM. No I/O, no state.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 256
"""Tokens a chunk: LMCache's default, and what its controller always assumes."""

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """One release.

    `lmcache_build` is the version as LMCache prints it, with the commit. `prefixes_all`: this vLLM puts
    `(process pid=…)` before every line of a child process, whoever wrote it; later ones only before their own.
    `aws`: the lines that only the HyperPod image writes.
    """

    name: str
    lmcache: Version
    lmcache_build: str
    vllm: Version
    core: str
    prefixes_all: bool
    aws: bool = False

    @property
    def vllm_text(self) -> str:
        return ".".join(map(str, self.vllm))

    @property
    def names_request_in_store(self) -> bool:
        """`[req_id=…]` before Stored and Retrieved; with it came the line of a failed put."""
        return self.lmcache >= (0, 3, 15)

    @property
    def health_monitor_names_role(self) -> bool:
        return self.lmcache < (0, 4, 3)

    @property
    def failure_is_traceback(self) -> bool:
        """The reason of a failed initialisation is a traceback; before, the text of the exception alone."""
        return self.lmcache >= (0, 4, 3)

    @property
    def failure_is_missing_device(self) -> bool:
        """The worker role stops for want of a GPU; before, for an incomplete controller configuration."""
        return self.lmcache >= (0, 4, 4)

    @property
    def counts_failed_puts(self) -> bool:
        return self.lmcache >= (0, 4, 3)

    @property
    def counts_computed_prompt(self) -> bool:
        """The prompt throughput in vLLM's periodic line leaves out cached tokens."""
        return self.vllm >= (0, 32)

    @property
    def prompt_tokens_by_source(self) -> bool:
        return self.vllm >= (0, 19)


STYLES: dict[str, Style] = {
    style.name: style
    for style in (
        Style("lmcache-0.3.14", (0, 3, 14), "0.3.14-gf7b040e8a", (0, 14, 1), "EngineCore_DP0", True),
        Style("lmcache-0.4.3", (0, 4, 3), "0.4.3-g7f326118a", (0, 19, 1), "EngineCore_DP0", True),
        Style("lmcache-0.5.6", (0, 5, 6), "0.5.6-g3e11e108", (0, 32, 0), "EngineCore", False),
        Style("hyperpod", (0, 4, 3), "0.4.3-g7f326118a", (0, 19, 1), "EngineCore_DP0", True, aws=True),
    )
}


def style_named(name: str) -> Style:
    """The style of that name.

    Raises:
        ValueError: there is none; the message lists what there is.
    """
    style = STYLES.get(name)
    if style is None:
        raise ValueError(f"no log style '{name}'; there are {', '.join(STYLES)}")
    return style

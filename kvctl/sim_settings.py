"""From the options of `kvctl sim` to the settings of `bench.sim`: timing, and what the engines imitate. No I/O."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.errors import Problem

if TYPE_CHECKING:
    from typing import Literal

    from bench.sim.tiers import TierConfig
    from bench.sim.timing import Timing
    from bench.sim.worker import Imitation
    from router.redis_url import RedisUrl


class TimingName(StrEnum):
    POLYNOMIAL = "polynomial"
    FIXED = "fixed"
    BATCH = "batch"


def imitation_of(
    style: str | None, faults: list[str], count: int, folder: Path | None, timestamps: bool, heartbeat: float
) -> Imitation | None:
    """What the engines imitate, None without a style.

    Raises:
        Problem: an unknown style or fault, or an option that needs a style.
    """
    from bench.sim.faults import faults_of
    from bench.sim.styles import STYLES, style_named
    from bench.sim.worker import Imitation

    if style is None:
        wanting = {"--fault": bool(faults), "--log-file": folder is not None, "--log-timestamps": timestamps}
        for name, given in wanting.items():
            if given:
                raise Problem(f"{name} needs --log-style: {', '.join(STYLES)}")
        return None
    try:
        chosen = style_named(style)
    except ValueError as error:
        raise Problem(f"--log-style: {error}") from None
    try:
        return Imitation(chosen, faults_of(faults, count), folder, timestamps, heartbeat)
    except ValueError as error:
        raise Problem(f"--fault: {error}") from None


def timing_of(
    name: TimingName, prefill_ms: float, decode_ms: float, params: list[str], speedup: float, slow: float
) -> Timing:
    """The timing of the engines' steps.

    Raises:
        Problem: a coefficient that is no number, or that this kind of timing does not have.
    """
    from bench.sim.timing import BatchTiming, FixedTiming, PolynomialTiming, Timing, TimingModel

    values: dict[str, float] = {}
    for text in params:
        key, _, value = text.partition("=")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise Problem(f"--timing-param {text}: expected NAME=NUMBER") from None
    if name is TimingName.FIXED:
        values = {"prefill_ms": prefill_ms, "decode_ms": decode_ms} | values
    kinds: dict[TimingName, type[PolynomialTiming | FixedTiming | BatchTiming]] = {
        TimingName.POLYNOMIAL: PolynomialTiming,
        TimingName.FIXED: FixedTiming,
        TimingName.BATCH: BatchTiming,
    }
    kind = kinds[name]
    unknown = values.keys() - kind.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(kind.__dataclass_fields__)
        raise Problem(f"--timing-param: {name} has no {', '.join(sorted(unknown))}; it has {known}")
    model: TimingModel = kind(**values)
    return Timing(model, speedup, slow)


def l2_of(text: str | None) -> RedisUrl | Literal["memory"] | None:
    """The store that the engines share.

    Raises:
        Problem: neither `memory` nor a Redis address, or redis-py is not installed.
    """
    from router.redis_url import REDIS_MISSING, RedisUrl, redis_installed

    if text is None:
        return None
    if text == "memory":
        return "memory"
    try:
        url = RedisUrl(text)
    except ValueError as error:
        raise Problem(f"--l2: {error}; or memory, for one that the engines of this process share") from None
    if not redis_installed():
        raise Problem(f"--l2: {REDIS_MISSING}")
    return url


def tiers_of(
    host_blocks: int, disk_blocks: int, host_load_us: float, disk_load_us: float, l2_load_us: float, *, l2: bool
) -> TierConfig | None:
    """Sizes and times of the tiers behind an engine's own cache, None where there are none."""
    from bench.sim.tiers import TierConfig

    if not (host_blocks or disk_blocks or l2):
        return None
    return TierConfig(host_blocks, disk_blocks, host_load_us, disk_load_us, l2_load_us)

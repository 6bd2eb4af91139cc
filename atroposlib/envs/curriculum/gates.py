"""Gates: which scored groups are sent."""

from __future__ import annotations

from atroposlib.envs.curriculum.interface import GroupGate, ObservedGroup
from atroposlib.errors import ConfigError


class SuccessBand(GroupGate):
    """Groups whose success lies in a band.

    Args:
        low: least success that is sent.
        high: greatest success that is sent.
    """

    def __init__(self, *, low: float = 0.2, high: float = 0.8) -> None:
        if not 0 <= low <= high <= 1:
            raise ConfigError(
                f"curriculum, band: low {low:g} and high {high:g} have to be 0 to 1, in order"
            )
        self._low, self._high = low, high
        self.reason = f"success outside of {low:g} to {high:g}"

    def admit(self, group: ObservedGroup) -> bool:
        return group.success is not None and self._low <= group.success <= self._high

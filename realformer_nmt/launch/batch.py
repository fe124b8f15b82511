"""Gradient accumulation that keeps the published batch on any number of devices."""

from dataclasses import dataclass

from . import LaunchError


@dataclass(frozen=True)
class Accumulation:
    """``devices * max_tokens * update_freq`` tokens an update, against the ``wanted`` number."""

    devices: int
    max_tokens: int
    update_freq: int
    wanted: int

    @property
    def tokens(self) -> int:
        """Tokens an update, all devices together."""
        return self.devices * self.max_tokens * self.update_freq

    @property
    def deviation(self) -> float:
        """Relative difference from the wanted batch: 0.05 is 5 % too large."""
        return self.tokens / self.wanted - 1

    def __str__(self) -> str:
        text = (
            f"{self.devices} device(s) x {self.max_tokens} tokens x update-freq {self.update_freq}"
            f" = {self.tokens:,} tokens an update"
        )
        if self.tokens == self.wanted:
            return text + " (as published)"
        return text + f" (published: {self.wanted:,}, {self.deviation:+.1%})"


def accumulate(devices: int, max_tokens: int, wanted: int) -> Accumulation:
    """The ``--update-freq`` whose global batch is nearest to *wanted* tokens.

    Raises:
        LaunchError: a number that is not positive, or one update of all devices is more than a quarter above *wanted*,
            so that no update-freq can keep the recipe's batch.
    """
    for name, value in (("devices", devices), ("--max-tokens", max_tokens), ("--global-batch", wanted)):
        if value < 1:
            raise LaunchError(f"{name} must be at least 1, got {value}")
    once = devices * max_tokens
    update_freq = max(1, int(wanted / once + 0.5))
    result = Accumulation(devices, max_tokens, update_freq, wanted)
    if result.deviation > 0.25:
        raise LaunchError(
            f"{devices} devices x {max_tokens} tokens = {once:,} tokens an update, more than the recipe's {wanted:,}:"
            f" use --max-tokens {wanted // devices} or fewer, or set --global-batch"
        )
    return result

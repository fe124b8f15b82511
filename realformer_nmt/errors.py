"""The one exception type whose message is meant to be shown alone, as a single line."""


class RealFormerError(ValueError):
    """Bad input or an unsupported combination of flags; the message says what, where and what to do, in one line."""

"""Progress lines on standard error: how many, how fast, how long still."""
import sys
import time


def duration(seconds):
    """Seconds as ``1:02:03`` or ``2:03``."""
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return "%d:%02d:%02d" % (hours, minutes, seconds) if hours else "%d:%02d" % (minutes, seconds)


class Progress:
    """Counts `unit`s done and, from the share of `total_bytes` read, says when it will be over.

    total_bytes: size of the input, or None where unknown (no ETA then). every: seconds between two lines.
    """

    def __init__(self, label, unit="lines", total_bytes=None, every=5.0, stream=None):
        self.label, self.unit, self.total_bytes, self.every = label, unit, total_bytes, every
        self.stream = stream or sys.stderr
        self.count = self.bytes = 0
        self.start = self.last = time.monotonic()

    def add(self, count, num_bytes=0):
        """`count` more units are done, `num_bytes` more of the input read."""
        self.count += count
        self.bytes += num_bytes
        now = time.monotonic()
        if now - self.last >= self.every:
            self.last = now
            self._print(now)

    def done(self):
        """The last line."""
        self._print(time.monotonic(), over=True)

    def _print(self, now, over=False):
        elapsed = max(now - self.start, 1e-9)
        text = "%s: %s %s" % (self.label, format(self.count, ","), self.unit)
        text += ", %s %s/s" % (format(int(self.count / elapsed), ","), self.unit)
        if over:
            text += ", took %s" % duration(elapsed)
        elif self.total_bytes and self.bytes:
            share = min(self.bytes / self.total_bytes, 1.0)
            text += ", %d%%, %s left" % (100 * share, duration(elapsed * (1 - share) / share))
        print(text, file=self.stream, flush=True)

"""The one exception that a user sees as a line of text."""


class DataPrepError(Exception):
    """Something the user can act on; the message is one line saying what, where and what to do."""

"""Which pairs Moses' clean-corpus-n.perl keeps.

Source: github.com/moses-smt/mosesdecoder scripts/training/clean-corpus-n.perl
"""
#: A token longer than this many characters drops its pair (the script's default).
MAX_TOKEN_CHARS = 1000


def keeps(source_tokens, target_tokens, shortest, longest, ratio):
    """True where both numbers of tokens are in shortest..longest and neither is over `ratio` times the other."""
    return (shortest <= source_tokens <= longest and shortest <= target_tokens <= longest
            and source_tokens and target_tokens
            and source_tokens / target_tokens <= ratio and target_tokens / source_tokens <= ratio)


def has_giant_token(line):
    """True where a token of `line` (a string) is longer than MAX_TOKEN_CHARS."""
    return len(line) > MAX_TOKEN_CHARS and any(len(token) > MAX_TOKEN_CHARS for token in line.split(" "))

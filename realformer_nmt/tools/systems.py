"""The systems that ``scripts/compare.sh`` trains: names and the flags that make them differ."""

# All are the plug-in's architecture, so that nothing but these flags changes from one to the next.
_NONE = ["--residual-attention", "none"]
_SUM = ["--residual-attention", "sum"]
_MEAN = ["--residual-attention", "mean"]
_PLAIN = ["--admin-init", "none"]
_ADMIN = ["--admin-init", "profile"]
_PRELN = ["--encoder-normalize-before", "--decoder-normalize-before"]

SYSTEMS = {
    "postln": _NONE + _PLAIN,
    "preln": _NONE + _PLAIN + _PRELN,
    "admin": _NONE + _ADMIN,
    "realformer_postln": _SUM + _PLAIN,
    "realformer_postln_mean": _MEAN + _PLAIN,
    "realformer_preln": _SUM + _PLAIN + _PRELN,
    "realformer_admin": _SUM + _ADMIN,
    "realformer_admin_mean": _MEAN + _ADMIN,
}

DEFAULT_SYSTEMS = [
    "postln",
    "preln",
    "admin",
    "realformer_postln",
    "realformer_admin",
    "realformer_postln_mean",
    "realformer_admin_mean",
]

"""manifest.json: what a data-bin was made from, with what, and the checksums of what came out.

It holds no time, path or number of workers: the same input and flags give the same manifest.
"""
import importlib.metadata
import os
import platform

from data_prep.download import sha256_of
from data_prep.stages import files_under, write_json

_PACKAGES = ("sacremoses", "subword-nmt", "regex", "numpy")


def versions():
    """{name: version} of Python and of the packages that the output depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def checksums(root, names):
    """{path under root: {size, sha256}} of the files at or under root/name for each of `names`."""
    result = {}
    for name in names:
        for path in files_under(os.path.join(root, name)):
            result[os.path.relpath(path, root)] = {"size": os.path.getsize(path), "sha256": sha256_of(path)}
    return result


def write(path, corpus, flags, inputs, stamps, outputs):
    """Writes the manifest; stamps: the stages' stamps in order, outputs: what `checksums` gives."""
    write_json(path, {
        "corpus": corpus, "flags": flags, "inputs": inputs, "versions": versions(), "outputs": outputs,
        "stages": [{"stage": stamp["stage"], "params": stamp["params"], "counts": stamp["counts"]}
                   for stamp in stamps]})

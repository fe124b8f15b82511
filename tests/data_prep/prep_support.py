"""A local HTTP server that can misbehave, small corpora under the real names, and a way to run the entry points."""
import gzip
import hashlib
import http.server
import io
import logging
import os
import pathlib
import random
import subprocess
import tarfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("REALFORMER_SHARED", ROOT.parent / "shared"))

_WORDS = {
    "en": "the a house , Mr. Smith 's well-known ( garden ) isn't 3,000 % of \u201cEurope\u201d \u2013 e.g. No. 5 & big "
          "tree sees walks green old man woman runs over under with 12.5 euros ... today ; why ?".split(),
    "fr": "la une maison , M. Dupont l' jardin bien-aim\xe9 ( vert ) n'est 3\xa0000 % de \xab\xa0Europe\xa0\xbb \u2013 p. ex. "
          "no 5 & grand arbre voit marche vieux homme femme court sur sous avec 12,5 euros ... aujourd'hui ; "
          "pourquoi ?".split(),
    "de": "das ein Haus , Hr. Schmidt wohl-bekannte ( Garten ) ist 3.000 % von \u201eEuropa\u201c \u2013 z.B. Nr. 5 & gro\xdf "
          "Baum sieht geht gr\xfcn alt Mann Frau l\xe4uft \xfcber unter mit 12,5 Euro ... heute ; warum ?".split(),
}


def sentences(lang, number, seed=1):
    """`number` made-up lines; the same seed gives lines of the same lengths in every language."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(_WORDS[lang]) for _ in range(length)) + "."
            for length in [rng.randint(3, 12) for _ in range(number)]]


def text(lang, number, seed=1):
    return "".join(line + "\n" for line in sentences(lang, number, seed)).encode("utf-8")


def sgm(lang, number, seed=2):
    lines = ["<srcset setid=\"x\">", "<doc docid=\"1\">"]
    lines += ["<seg id=\"%d\"> %s </seg>" % (index, line)
              for index, line in enumerate(sentences(lang, number, seed), 1)]
    return ("\n".join(lines + ["</doc>", "</srcset>"]) + "\n").encode("utf-8")


def tar_bytes(members, mode="w:gz", extra=()):
    """A tar archive of {name: bytes}; extra: more TarInfo entries to put in front."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for info in extra:
            tar.addfile(info, io.BytesIO(b"x" * info.size) if info.isreg() else None)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def published(number=150):
    """{archive name: bytes}: every archive of the four corpora, under its real name, with real member names."""
    evil = tarfile.TarInfo("../../evil.txt")
    evil.size = 3
    link = tarfile.TarInfo("training/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    europarl = {"training/europarl-v7.%s-en.%s" % (other, lang): text(lang, number, 3)
                for other in ("fr", "de") for lang in ("en", other)}
    files = {
        "training-parallel-europarl-v7.tgz": tar_bytes(europarl, extra=[evil, link]),
        "training-parallel-commoncrawl.tgz": tar_bytes({
            "commoncrawl.%s-en.%s" % (other, lang): text(lang, number, 4) for other in ("fr", "de")
            for lang in ("en", other)}),
        "training-parallel-un.tgz": tar_bytes({"un/undoc.2000.fr-en." + lang: text(lang, number, 5)
                                               for lang in ("en", "fr")}),
        "training-parallel-nc-v9.tgz": tar_bytes({"training/news-commentary-v9.fr-en." + lang: text(lang, number, 6)
                                                  for lang in ("en", "fr")}),
        "training-parallel-nc-v12.tgz": tar_bytes({"training/news-commentary-v12.de-en." + lang: text(lang, number, 6)
                                                   for lang in ("en", "de")}),
        "training-giga-fren.tar": tar_bytes({
            "giga-fren.release2.fixed.%s.gz" % lang: gzip.compress(text(lang, 8 * number, 7), mtime=0)
            for lang in ("en", "fr")}, mode="w"),
        "test-full.tgz": tar_bytes({
            "test-full/newstest2014-%s-%s.%s.sgm" % (pair, kind, lang): sgm(lang, 20)
            for pair, other in (("fren", "fr"), ("deen", "de")) for kind in ("src", "ref") for lang in ("en", other)}),
    }
    talks = {"de-en/train.tags.de-en." + lang: b"<url>http://x</url>\n<title>A talk</title>\n" + text(lang, number, 8)
             for lang in ("de", "en")}
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
        for lang in ("de", "en"):
            talks["de-en/IWSLT14.%s.de-en.%s.xml" % (name, lang)] = sgm(lang, 5)
    files["de-en.tgz"] = tar_bytes(talks)
    for name, count in (("train", number), ("val", 20), ("test_2016_flickr", 15)):
        for lang in ("en", "fr"):
            files["%s.%s.gz" % (name, lang)] = gzip.compress(text(lang, count, 9), mtime=0)
    return files


class Server:
    """Serves `files` ({name: bytes}) with ranges. log: (name, Range header or None, status) of every request.

    cut: {name: [bytes to send before the connection is dropped, one entry a request]}. swap: {name: [bytes to
    serve instead, one entry a request]}. no_validator: send neither ETag nor Last-Modified.
    """

    def __init__(self, files):
        self.files, self.cut, self.swap, self.log, self.no_validator = files, {}, {}, [], False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                outer.answer(self)

            def log_message(self, *args):  # pylint: disable=arguments-differ
                pass

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.httpd.server_address[1]
        threading.Thread(target=self.httpd.serve_forever, daemon=True).start()

    def answer(self, request):
        name = request.path.lstrip("/")
        if name not in self.files:
            self.log.append((name, None, 404))
            request.send_error(404)
            return
        data = self.swap[name].pop(0) if self.swap.get(name) else self.files[name]
        etag = '"%s"' % hashlib.md5(data).hexdigest()
        wanted, start, status = request.headers.get("Range"), 0, 200
        if wanted and request.headers.get("If-Range") == etag:
            start, status = int(wanted.split("=")[1].rstrip("-")), 206
            if start >= len(data):
                status = 416
        self.log.append((name, wanted, status))
        if status == 416:
            request.send_response(416)
            request.send_header("Content-Range", "bytes */%d" % len(data))
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        request.send_response(status)
        if not self.no_validator:
            request.send_header("ETag", etag)
        request.send_header("Content-Length", str(len(data) - start))
        if status == 206:
            request.send_header("Content-Range", "bytes %d-%d/%d" % (start, len(data) - 1, len(data)))
        request.end_headers()
        data = data[start:]
        if self.cut.get(name):
            data = data[:self.cut[name].pop(0)]
        request.wfile.write(data)

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()


def run_script(name, *args, env=None, cwd=None, check=True):
    """Runs data_prep/NAME.sh; returns the finished process with its output as text."""
    result = subprocess.run([str(ROOT / "data_prep" / (name + ".sh")), *map(str, args)], env=env, cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=170, check=False)
    if check:
        assert result.returncode == 0, result.stderr
    return result


def stock_databin(prefixes, langs, output, workers=1, *flags):
    """What fairseq-preprocess --joined-dictionary makes of {split: prefix}, as `tree` gives it, less its log.

    In this process: the command takes five seconds to start. output: a pathlib.Path.
    """
    from fairseq import options
    from fairseq_cli import preprocess
    args = ["--source-lang", langs[0], "--target-lang", langs[1], "--joined-dictionary", "--destdir", str(output),
            "--workers", str(workers), *flags]
    for split, prefix in prefixes.items():
        args += ["--%spref" % split, prefix]
    logging.disable(logging.INFO)
    before = list(preprocess.logger.handlers)
    try:
        preprocess.main(options.get_preprocessing_parser().parse_args(args))
    finally:
        logging.disable(logging.NOTSET)
        preprocess.logger.handlers[:] = before
    (output / "preprocess.log").unlink()
    return tree(output, ["."])


def tree(folder, names=("data-bin", "bpe.codes", "text", "manifest.json")):
    """{relative path: bytes} of what a run leaves."""
    found = {}
    for name in names:
        path = pathlib.Path(folder) / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            found[str(file.relative_to(folder))] = file.read_bytes()
    return found

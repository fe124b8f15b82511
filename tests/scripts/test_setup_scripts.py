"""The set-up, test and quickstart scripts, as far as they go without installing anything. Budget: 60 seconds."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
OWN = ["setup.sh", "test.sh", "install_apex.sh", "quickstart.sh"]


def run(*command, **environment):
    """The completed process of a command run in another folder than the repository, without standard input."""
    env = {name: value for name, value in os.environ.items()
           if name not in ("PYTHON", "TORCH_SPEC", "REALFORMER_VENV", "VIRTUAL_ENV", "TEST_PROCESSES")}
    env.update({name: str(value) for name, value in environment.items()})
    return subprocess.run([str(part) for part in command], env=env, cwd="/", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=300)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def one_line(done):
    """The error of a failed command, which must be one line."""
    assert done.returncode != 0, done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("script", OWN)
def test_help_says_how_and_does_nothing(script, tmp_path):
    done = run(SCRIPTS / script, "--help", REALFORMER_VENV=tmp_path / "venv")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("Usage: scripts/" + script)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("script", ["setup.sh", "install_apex.sh", "quickstart.sh"])
@pytest.mark.parametrize("arguments, message", [(["--nonsense"], "unknown argument '--nonsense'"),
                                                (["VALUELESS"], "needs a value")])
def test_wrong_arguments_stop_with_one_line(script, arguments, message, tmp_path):
    last = {"setup.sh": "--python", "install_apex.sh": "--source", "quickstart.sh": "--out"}[script]
    done = run(SCRIPTS / script, *(last if a == "VALUELESS" else a for a in arguments),
               REALFORMER_VENV=tmp_path / "venv")
    assert message in one_line(done) and done.returncode == 2


def test_scripts_pass_shellcheck():
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    done = run(shellcheck, "-x", *(SCRIPTS / name for name in OWN), SCRIPTS / "lib" / "common.sh",
               ROOT / ".ci" / "run")
    assert done.returncode == 0, done.stdout


def test_ci_entry_point_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert all(os.access(SCRIPTS / name, os.X_OK) for name in OWN)


def test_requirements_keep_apex_out_and_torch_in_range():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    names = {line.split("=")[0].split("<")[0].split(">")[0].strip() for line in lines if line}
    assert "apex" not in names and {"fairseq", "fairseq-fixed", "torch"} <= names
    assert "torch>=2.6,<2.14" in lines


# --- setup.sh ---------------------------------------------------------------------------------------------------

def test_setup_refuses_a_python_that_does_not_fit(tmp_path):
    old = program(tmp_path / "oldpython",
                  'case "$2" in *platform*) echo "Python 3.6.15";; esac; case "$2" in *3,?9*|*exit*) exit 1;; esac\n')
    error = one_line(run(SCRIPTS / "setup.sh", "--python", old, REALFORMER_VENV=tmp_path / "venv"))
    assert "Python 3.6.15" in error and "3.9 to 3.13" in error
    error = one_line(run(SCRIPTS / "setup.sh", "--python", "no-such-python", REALFORMER_VENV=tmp_path / "venv"))
    assert "'no-such-python' is not a program" in error
    assert not (tmp_path / "venv").exists()


def test_setup_leaves_a_folder_alone_that_is_no_environment(tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "thesis.txt").write_text("mine")
    error = one_line(run(SCRIPTS / "setup.sh", "--python", sys.executable, REALFORMER_VENV=tmp_path / "venv"))
    assert "not a virtual environment" in error
    assert os.listdir(tmp_path / "venv") == ["thesis.txt"]


def test_setup_without_network_says_so_and_leaves_no_stamp(tmp_path):
    venv = tmp_path / "venv"
    done = run(SCRIPTS / "setup.sh", "--python", sys.executable, REALFORMER_VENV=venv, PIP_CONFIG_FILE=os.devnull,
               PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="", PIP_RETRIES="0",
               PIP_TIMEOUT="2", http_proxy="", https_proxy="", HTTP_PROXY="", HTTPS_PROXY="")
    assert "the package index can't be reached" in one_line(done)
    assert (venv / "pyvenv.cfg").exists() and not (venv / ".realformer-setup").exists()


# --- install_apex.sh --------------------------------------------------------------------------------------------

@pytest.fixture
def venv(tmp_path):
    """An environment whose python is this one, with tmp_path/site first on its path."""
    (tmp_path / "site").mkdir()
    program(tmp_path / "venv" / "bin" / "python",
            'PYTHONPATH="%s" exec "%s" "$@"\n' % (tmp_path / "site", sys.executable))
    return tmp_path / "venv"


def fake_torch(site, cuda, gpu, cuda_home=None):
    (site / "torch" / "utils").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(
        "class version:\n    cuda = %r\nclass cuda:\n    is_available = staticmethod(lambda: %r)\n" % (cuda, gpu))
    (site / "torch" / "utils" / "__init__.py").write_text("")
    (site / "torch" / "utils" / "cpp_extension.py").write_text("CUDA_HOME = %r\n" % cuda_home)


def test_apex_recognises_the_pyramid_toolkit_without_importing_it(tmp_path, venv):
    (tmp_path / "site" / "apex").mkdir()
    (tmp_path / "site" / "apex" / "__init__.py").write_text("open(%r, 'w')" % str(tmp_path / "imported"))
    error = one_line(run(SCRIPTS / "install_apex.sh", REALFORMER_VENV=venv))
    assert "Pyramid" in error and "uninstall apex" in error
    assert not (tmp_path / "imported").exists()


def test_apex_already_there(tmp_path, venv):
    for part in ("normalization", "multi_tensor_apply"):
        (tmp_path / "site" / "apex" / part).mkdir(parents=True)
    (tmp_path / "site" / "apex" / "__init__.py").write_text("")
    done = run(SCRIPTS / "install_apex.sh", REALFORMER_VENV=venv)
    assert done.returncode == 0 and "installed in" in done.stdout


@pytest.mark.parametrize("cuda, gpu, nvcc, message", [
    (None, False, None, "CPU build"),
    ("12.4", False, None, "no CUDA GPU"),
    ("12.4", True, None, "nvcc"),
    ("12.4", True, "11.8", "CUDA 11.8 and torch was built for CUDA 12.4"),
])
def test_apex_says_why_it_stops(tmp_path, venv, cuda, gpu, nvcc, message):
    home = None
    if nvcc:
        home = str(tmp_path / "cuda")
        program(tmp_path / "cuda" / "bin" / "nvcc", 'echo "Cuda compilation tools, release %s, V1"\n' % nvcc)
    fake_torch(tmp_path / "site", cuda, gpu, home)
    assert message in one_line(run(SCRIPTS / "install_apex.sh", REALFORMER_VENV=venv))


def test_apex_check_and_wrong_source(tmp_path, venv):
    program(tmp_path / "cuda" / "bin" / "nvcc", 'echo "Cuda compilation tools, release 12.6, V1"\n')
    fake_torch(tmp_path / "site", "12.4", True, str(tmp_path / "cuda"))
    done = run(SCRIPTS / "install_apex.sh", "--check", REALFORMER_VENV=venv)
    assert done.returncode == 0 and "could be built here" in done.stdout
    assert "is not apex's source" in one_line(run(SCRIPTS / "install_apex.sh", "--source", tmp_path,
                                                  REALFORMER_VENV=venv))
    assert "neither a folder nor a git URL" in one_line(run(SCRIPTS / "install_apex.sh", "--source", "/no/such",
                                                            REALFORMER_VENV=venv))


def test_scripts_that_need_the_environment_say_so(tmp_path):
    error = one_line(run(SCRIPTS / "install_apex.sh", REALFORMER_VENV=tmp_path / "none"))
    assert "run scripts/setup.sh first" in error


@pytest.mark.parametrize("script", ["compare.sh", "evaluate.sh", "train_wmt14_en_fr.sh", "analyse_attention.py",
                                    "plot_training.py", "average_checkpoints.py"])
def test_a_python_without_the_requirements_is_one_line(tmp_path, script):
    bare = program(tmp_path / "bare", 'exec "%s" -S -E "$@"\n' % sys.executable)  # -S: without site-packages
    command = [bare, SCRIPTS / script] if script.endswith(".py") else [SCRIPTS / script]
    error = one_line(run(*command, "--help", PYTHON=bare))
    assert "run scripts/setup.sh" in error and ("fairseq" in error or "No module named" in error)


# --- quickstart.sh ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments, message", [
    (["--updates", "0"], "--updates needs a whole number above 0, got '0'"),
    (["--seed", "x"], "--seed needs a whole number above 0, got 'x'"),
    (["--lr", "fast"], "--lr needs a number, got 'fast'"),
])
def test_quickstart_checks_its_numbers(tmp_path, arguments, message):
    done = run(SCRIPTS / "quickstart.sh", "--out", tmp_path / "q", *arguments, REALFORMER_VENV=tmp_path / "venv")
    assert message in one_line(done)
    assert not (tmp_path / "q").exists()


def test_quickstart_does_not_mix_two_settings(tmp_path):
    out = tmp_path / "q"
    out.mkdir()
    (out / "settings").write_text("arch=transformer updates=5\n")
    done = run(SCRIPTS / "quickstart.sh", "--out", out, REALFORMER_VENV=tmp_path / "venv")
    assert "holds a run with other settings (arch=transformer updates=5)" in one_line(done)
    assert (out / "settings").read_text() == "arch=transformer updates=5\n"
    assert not (tmp_path / "venv").exists()


@pytest.fixture
def generated(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "test.en").write_text("The red house is old .\nThis is the blue house here .\n")
    (corpus / "test.fr").write_text("La maison rouge est vieille .\nVoici la maison bleue ici .\n")
    (corpus / "corpus.json").write_text(json.dumps({"counts": {"train": 10, "valid": 2, "test": 2}}))
    return corpus, tmp_path / "generate.txt"


def report(corpus, path, out):
    return run(sys.executable, SCRIPTS / "lib" / "quickstart_report.py", "--corpus", corpus, "--generated", path,
               "--out", out)


def test_report_puts_sentences_in_order_and_scores_them(tmp_path, generated):
    corpus, path = generated
    path.write_text("S-1\tx\nH-1\t-0.1\ttokens\nD-1\t-0.1\tVoici la maison bleue ici .\nD-1\t-0.9\tsecond best\n"
                    "D-0\t-0.2\tLa maison rouge est vieille .\nGenerate test with beam=5\n")
    done = report(corpus, path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trained model:      100.0" in done.stdout and "copying the source: 100" not in done.stdout
    assert "nrefs:1|case:mixed|" in done.stdout and "training pairs: 10" in done.stdout
    assert (tmp_path / "test.hyp.fr").read_text() == (corpus / "test.fr").read_text()
    assert (tmp_path / "report.txt").read_text() == done.stdout


def test_report_refuses_an_incomplete_translation(tmp_path, generated):
    corpus, path = generated
    path.write_text("D-1\t-0.1\tVoici .\n")
    assert "translations of 1 sentences, expected 2" in one_line(report(corpus, path, tmp_path))
    assert not (tmp_path / "report.txt").exists()

"""``python -m data_prep CORPUS [flags]``, what the shell entry points run."""
import sys

try:
    from data_prep.cli import main
except ModuleNotFoundError as error:
    print("data_prep: error: %s has no package %s; run pip install -r requirements.txt, or set PYTHON to a Python "
          "that has it" % (sys.executable, error.name), file=sys.stderr)
    sys.exit(1)

if __name__ == "__main__":
    sys.exit(main())

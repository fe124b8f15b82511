"""Code behind the programs in ``scripts/``: averaging, evaluation, analysis, plots and comparisons."""

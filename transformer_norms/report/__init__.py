"""The report of run folders: a page, figures and tables. It reads folders and nothing else."""

"""What run folders say: figures and tables. Reads folders and nothing else."""

"""Run folders and reports in W&B: the same steps whether live, late, or after a kill."""

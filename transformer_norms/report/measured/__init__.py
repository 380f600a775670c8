"""What the runs of a study measured apart from their losses."""

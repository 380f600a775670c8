"""A sweep: many runs from one question. drive.py is read first."""

"""The files that a paper takes from a report: each panel as a figure, and tables for LaTeX."""

"""What a paper takes from a report: each panel alone as a figure, and tables for LaTeX."""

"""Gradients and streams of models before they are trained, and how they change with depth."""

"""The commands of `transformer-norms`: dispatch.py lists them, and each file here is one."""

"""What losses of several seeds allow to be said. verdict.py is read first."""

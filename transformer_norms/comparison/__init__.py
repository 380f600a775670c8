"""Compares losses of several seeds, and says what they allow. Read verdict.py first."""

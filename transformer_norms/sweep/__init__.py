"""Many runs from one question: planned, checked, run, recorded."""

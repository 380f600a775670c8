"""Every chart of a study: a page holds them, and files for a paper are the same drawings."""

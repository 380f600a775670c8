"""Files that are whole after a kill, locks, sealed folders, and the one reader of files."""

"""What a run or a sweep takes, before anything is bought: memory, time and money."""

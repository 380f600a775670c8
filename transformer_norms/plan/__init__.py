"""What a run or a sweep takes, before it starts: parameters, FLOPs and memory."""

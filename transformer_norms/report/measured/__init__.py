"""Compares what runs measured besides their losses: time, memory and spikes."""

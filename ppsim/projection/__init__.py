"""Whole answers: from a profile and a plan to step time, throughput, bubbles and memory."""

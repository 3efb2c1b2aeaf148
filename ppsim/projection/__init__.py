"""One plan and its projection: step time, throughput, memory, interval, advice. Plain data."""

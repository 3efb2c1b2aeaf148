"""One plan and the whole answer to it: step time, throughput, bubbles, memory, and what to change."""

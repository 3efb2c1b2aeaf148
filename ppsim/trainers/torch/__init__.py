"""torch: schedule tables of torch.distributed.pipelining, and traces of torch.profiler."""

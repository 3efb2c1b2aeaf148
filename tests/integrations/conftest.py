collect_ignore = ["megatron_trained.py"]  # a program that test_megatron_trained.py runs

"""What a rank of a divided layer holds."""

from ppsim.model.shapes import LayerShape


def test_tensor_parallel_ranks_divide_heads_and_columns_those_of_a_shared_expert_too() -> None:
    whole = LayerShape(
        kind="moe", hidden_size=64, num_heads=8, num_kv_heads=4, head_size=8, ffn_size=96, num_experts=16,
        experts_per_token=2, shared_ffn_size=48,
    )  # fmt: skip
    part = whole.shard(tp=4, ep=8)
    assert (part.num_heads, part.num_kv_heads, part.ffn_size, part.shared_ffn_size) == (2, 1, 24, 12)
    assert part.local_experts == 2

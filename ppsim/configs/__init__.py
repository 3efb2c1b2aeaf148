"""Training configurations of other trainers, read as the words of `ppsim project`, and what was left unread.

One file a trainer; `read` tells them apart by content. Megatron-LM's names are the common tongue: its own files,
Primus', Megatron-Bridge's and NeMo's are all brought to its arguments first (`arguments`), of which one place makes
a model (`megatron_model`) and one the words (`megatron`).
"""

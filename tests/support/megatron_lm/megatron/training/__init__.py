"""Stands for Megatron-LM's package of training functions, which is not in the wheel of megatron.core."""

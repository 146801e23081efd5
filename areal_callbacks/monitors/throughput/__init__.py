"""Tokens, training seconds, estimated FLOPs and optimizer steps."""

"""The batches of other RL stacks as :class:`~areal_callbacks.ppo.batch.PolicyBatch`."""

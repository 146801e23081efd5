"""An external plugin of ms-swift, as docs/your_stack.md has it."""

import areal_callbacks.integrations.swift  # noqa: F401

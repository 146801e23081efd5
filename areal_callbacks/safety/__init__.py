"""Between host and observer: wraps, hooks, messages, exit handlers. Knows no metric."""

"""Where exports go: one backend a file, all behind MetricWriter."""

"""Routed assignments per layer and expert."""

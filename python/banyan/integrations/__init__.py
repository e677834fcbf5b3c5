"""Banyan inside other systems: one package each, imported by its users alone."""

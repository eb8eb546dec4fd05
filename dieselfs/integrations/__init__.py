"""Integrations with training frameworks.

Only the `torch_` modules import torch; the others are what any framework would need.
"""

"""Policies: each decides, in a module of its own, which jobs run and what they get."""

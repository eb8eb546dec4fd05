"""How a process that reads keeps to what is allocated to its job.

docs/decisions/0032 says why processes do this themselves.
"""

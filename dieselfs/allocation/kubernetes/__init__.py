"""Kubernetes: jobs that pods declare by annotations, and what they get, as annotations.

`docs/kubernetes.md` describes it for people, docs/decisions/0033 says why it is so.
"""

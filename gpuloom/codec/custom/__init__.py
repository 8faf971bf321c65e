"""Custom resources: Kubernetes JSON to the model, and status back to JSON.

Open `reading.py` first: it is how a field is read, bounded and refused with its path. Then one module for
each group of kinds. Absent fields get the defaults of `deploy/crds`, unknown fields are ignored. What takes
two fields to see is the API server's to refuse, by the rules of the definition.

JSON that is written has null for what is absent: a merge patch removes it, and the API server drops it.
"""

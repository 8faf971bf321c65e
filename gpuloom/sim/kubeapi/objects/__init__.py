"""What an object must look like: its types, defaults and validation, and how patches and managers change it.

Open `objects.py` first. `pods.py` and `workloads.py` fill in their kinds, `shapes.py`, `validation.py` and
`pod_validation.py` refuse, `patches.py` patches, `ownership.py` and `fields.py` know who owns which field.
Pure: values in, values out.
"""

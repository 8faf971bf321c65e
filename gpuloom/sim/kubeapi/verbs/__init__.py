"""What can be done with stored objects: create, get, list, update, patch, apply, delete, bind, evict, scale.

Open `store.py` first. `apply.py` is server-side apply, `deletion.py` has finalizers and dependents,
`subresources.py` bindings, evictions and scales, `disruption.py` the budgets that an eviction must respect.
Knows nothing of HTTP.
"""

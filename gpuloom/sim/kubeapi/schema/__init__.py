"""What a custom resource's schema does to its objects: it prunes, fills in defaults and refuses.

Open `custom.py` first. `structural.py` prunes and fills in, `values.py` checks each value by itself,
`rules.py` evaluates CEL rules. Pure. Not done here: transition rules (those that say `oldSelf`), ratcheting,
and a schema of its own for each version.
"""

from gpuloom.sim.kubeapi.schema.custom import CustomSchema, SchemaError

__all__ = ["CustomSchema", "SchemaError"]

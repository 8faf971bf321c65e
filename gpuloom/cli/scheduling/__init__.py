"""Where pods go and why: `gpuloom explain`, `whatif`, `holds`, `gangs`, `reserve` and `scheduler-config`.

Each command is in the module of its name, `gangs` and `reserve` in `plans.py`. `judgement_text.py` words what
nodes say about a pod; `manifests.py` reads the pod that `whatif` asks about.
"""

"""Processes of the operating system: started in stages, probed, restarted, and ended all together.

Open `supervisor.py` first. `child_process.py` is one process with its log, `process_guard.py` ends orphans,
`probes.py` asks whether a process can do its work, `ports.py` finds free ports.
"""

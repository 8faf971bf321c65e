"""One run of the mesh: its processes, its directory and files, what is set up in it, and the faults it gets.

Open `plan.py` first. `run_directory.py` and `files.py` are what it has on disk; `admission.py` and
`autoscaling.py` set up the webhook and a policy once the API answers; `fault_plan.py` decides on faults and
`fault_player.py` plays them. Starting and watching processes is the business of `processes/`.
"""

"""From a request to its answer: paths and queries are read, a verb is called, objects are shown. No I/O.

Open `verbs.py` first. `requests.py` reads what is asked for, `representation.py` and `tables.py` show
objects, `watch.py` says who hears of which change, `discovery.py` and `openapi.py` tell what is served.
"""

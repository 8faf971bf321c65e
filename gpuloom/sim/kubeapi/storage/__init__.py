"""What the server keeps: all objects under one resourceVersion, their history, and the file of their changes.

Open `database.py` first. `collection.py` holds one resource's objects and changes, `paging.py` lists them,
`journal.py` is the file. Nothing here validates objects or fills in defaults.
"""

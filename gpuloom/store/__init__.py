"""SQL for services that must remember: one engine, migrations, and sessions that run off the event loop.

Open `database.py` first. SQLite is the default, PostgreSQL is for production; one contract suite holds both.
Nothing here knows a table: each service brings its own models and migrations.
"""

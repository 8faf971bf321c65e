"""Questions of people: explain and what-if (`inquiries.py`), and the newest decisions (`decisions.py`)."""

"""Which replica serves. Open `leadership.py` first, the state machine; then `takeover.py`, its first step."""

"""What a change touches: driver, MPS daemons, device files, the journal's file."""

"""The decisions: values in, values out. No I/O, no logging, no clock."""

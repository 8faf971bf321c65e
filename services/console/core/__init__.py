"""What is shown: values in, JSON values out. Pure."""

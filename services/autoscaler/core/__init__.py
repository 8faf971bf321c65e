"""What the autoscaler decides. Pure: values and the time in, values out."""

"""The nouns of the product as frozen dataclasses: values only, no I/O, no clock, no Kubernetes."""

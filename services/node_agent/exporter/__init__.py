"""The node's GPUs as Prometheus metrics, under the names of NVIDIA's dcgm-exporter."""

"""Stubs of the kubelet's own gRPC APIs, generated from protos/gpuloom/kubelet; never edited."""

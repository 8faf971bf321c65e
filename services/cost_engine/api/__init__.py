"""How others ask: gRPC, the HTTP shape of OpenCost, exports."""

"""How many replicas inference services have: AIInferenceAutoscalerPolicy."""

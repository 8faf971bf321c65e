{{/* gpuloom/roster.py, as `make manifests` writes it: change it there. */}}
{{- define "common.roster" -}}
services:
  node-agent:
    identity: node_agent
    kind: daemon
    address: GPULOOM_AGENT_ADDRESS
    outside: [cloud-metadata, dcgm-exporter, kubernetes-api]
    ports:
      grpc:
        number: 50052
        setting: GPULOOM_GRPC_PORT
        callers: [cli, cost-engine, discovery, mig-controller, optimizer]
      exporter:
        number: 9400
        setting: GPULOOM_AGENT_EXPORTER_PORT
        callers: [prometheus]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  discovery:
    identity: discovery
    kind: replicas
    address: GPULOOM_DISCOVERY_ADDRESS
    outside: [kubernetes-api]
    ports:
      grpc:
        number: 50053
        setting: GPULOOM_GRPC_PORT
        callers: [autoscaler, cli, console, cost-engine, mig-controller, optimizer, scheduler-extender, webhook]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  cost-engine:
    identity: cost_engine
    kind: leader
    address: GPULOOM_COST_ADDRESS
    outside: [cloud-api, cloud-metadata, kubernetes-api, postgresql, smtp, webhooks]
    ports:
      grpc:
        number: 50055
        setting: GPULOOM_GRPC_PORT
        callers: [autoscaler, cli, console, mig-controller, optimizer, scheduler-extender]
      opencost:
        number: 9003
        setting: GPULOOM_COST_API_PORT
        callers: [opencost]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  optimizer:
    identity: optimizer
    kind: single
    address: GPULOOM_OPTIMIZER_ADDRESS
    outside: [kubernetes-api, postgresql]
    ports:
      grpc:
        number: 50051
        setting: GPULOOM_GRPC_PORT
        callers: [cli, console, controller, scheduler-extender, webhook]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  scheduler-extender:
    identity: scheduler_extender
    kind: leader
    address: GPULOOM_EXTENDER_ADDRESS
    outside: [kubernetes-api]
    ports:
      grpc:
        number: 50058
        setting: GPULOOM_GRPC_PORT
        callers: [autoscaler, cli, console, mig-controller]
      https:
        number: 8443
        setting: GPULOOM_EXTENDER_PORT
        callers: [kube-scheduler]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  autoscaler:
    identity: autoscaler
    kind: leader
    address: GPULOOM_AUTOSCALER_ADDRESS
    outside: [cloud-api, cloud-metadata, kubernetes-api, postgresql, prometheus]
    ports:
      grpc:
        number: 50056
        setting: GPULOOM_GRPC_PORT
        callers: [cli, console]
      keda:
        number: 50059
        setting: GPULOOM_AUTOSCALER_KEDA_PORT
        callers: [keda]
      metrics-api:
        number: 6443
        setting: GPULOOM_AUTOSCALER_METRICS_API_PORT
        callers: [kube-apiserver]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  mig-controller:
    identity: mig_controller
    kind: leader
    address: GPULOOM_MIG_ADDRESS
    outside: [kubernetes-api]
    ports:
      grpc:
        number: 50054
        setting: GPULOOM_GRPC_PORT
        callers: [cli, console]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  controller:
    identity: controller
    kind: leader
    address: GPULOOM_CONTROLLER_ADDRESS
    outside: [kubernetes-api, prometheus]
    ports:
      grpc:
        number: 50057
        setting: GPULOOM_GRPC_PORT
        callers: [cli, console]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  webhook:
    identity: webhook
    kind: replicas
    address: GPULOOM_WEBHOOK_ADDRESS
    outside: [kubernetes-api]
    ports:
      https:
        number: 9443
        setting: GPULOOM_WEBHOOK_PORT
        callers: [kube-apiserver]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
  console:
    identity: console
    kind: replicas
    address: GPULOOM_CONSOLE_ADDRESS
    outside: [kubernetes-api, prometheus]
    ports:
      https:
        number: 8088
        setting: GPULOOM_CONSOLE_PORT
        callers: [browser, oidc-proxy]
      http:
        number: 8080
        setting: GPULOOM_HTTP_PORT
        callers: [prometheus]
clients: [cli, client, oidc_proxy, kube_scheduler, keda]
{{- end -}}

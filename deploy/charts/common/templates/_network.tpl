{{/*
Who may come in and what may go out, exactly as the roster says it. Probes of the kubelet come from the pod's own node,
which every implementation of NetworkPolicies lets in; so does kubectl port-forward.
*/}}
{{- define "common.network" -}}
{{- $ := .context -}}
{{- $policy := ($.Values.global | default dict).networkPolicy | default dict -}}
{{- if ne ($policy.enabled | toString) "false" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "common.selectorLabels" $ | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
  {{- range $name, $port := .row.ports }}
  {{- $from := list }}
  {{- range $port.callers }}
  {{- $from = concat $from (include "common.peer" (dict "context" $ "caller" .) | fromYamlArray) }}
  {{- end }}
  {{- if $from }}
  - from:
    {{- toYaml $from | nindent 4 }}
    ports:
    - {port: {{ $name }}, protocol: TCP}
  {{- end }}
  {{- end }}
  {{- with $.Values.networkPolicy.extraIngress }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  egress:
  {{- include "common.dns" $ | nindent 2 }}
  {{- range .row.calls }}
  - to:
    {{- include "common.peer" (dict "context" $ "caller" .service) | nindent 4 }}
    ports:
    - {port: {{ .port }}, protocol: TCP}
  {{- end }}
  {{- range .row.outside }}
  {{- include "common.outside" (dict "context" $ "outside" .) | nindent 2 }}
  {{- end }}
  {{- with $.Values.networkPolicy.extraEgress }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Names are asked of pods anywhere, and of NodeLocal DNSCache, which is on the network of its node and no pod to a selector. */}}
{{- define "common.dns" -}}
{{- $changed := ((.Values.global | default dict).networkPolicy | default dict).outside | default dict -}}
{{- $changed = $changed.dns | default dict -}}
- to:
  - namespaceSelector: {}
  {{- range $changed.cidrs | default (list "169.254.20.10/32") }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  ports:
  {{- range $changed.ports | default (list 53) }}
  - {port: {{ . }}, protocol: UDP}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- end -}}

{{/* Pods of a caller: a service of this release, or a client, which global.networkPolicy.clients describes. */}}
{{- define "common.peer" -}}
{{- $ := .context -}}
{{- $clients := (($.Values.global | default dict).networkPolicy | default dict).clients | default dict -}}
{{- $roster := include "common.roster" $ | fromYaml -}}
{{- if hasKey $clients .caller -}}
{{- tpl (toYaml (get $clients .caller)) $ -}}
{{- else if hasKey $roster.services .caller -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ .caller }}
      app.kubernetes.io/part-of: gpuloom
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ if eq .caller "node-agent" }}{{ include "common.agentNamespace" $ }}{{ else }}{{ $.Release.Namespace }}{{ end }}
{{- else if eq .caller "prometheus" -}}
- namespaceSelector: {}
  podSelector:
    matchLabels:
      app.kubernetes.io/name: prometheus
{{- else if eq .caller "kube-apiserver" -}}
{{- /* It is no pod, and where it is differs; what it calls checks nothing but what it is sent. */ -}}
- ipBlock:
    cidr: 0.0.0.0/0
- ipBlock:
    cidr: ::/0
{{- else if eq .caller "kube-scheduler" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: scheduler
      app.kubernetes.io/part-of: gpuloom
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/*
What is no service of ours. Addresses and ports are those of global.networkPolicy.outside. `pods`: it may be one of the
cluster, which Cilium does not count to any block of addresses.
*/}}
{{- define "common.outside" -}}
{{- $known := dict
  "kubernetes-api" (dict "cidrs" (list "0.0.0.0/0" "::/0") "ports" (list 443 6443))
  "cloud-metadata" (dict "cidrs" (list "169.254.169.254/32" "169.254.169.252/32" "169.254.170.23/32") "ports" (list 80 988))
  "cloud-api" (dict "cidrs" (list "0.0.0.0/0" "::/0") "ports" (list 443))
  "postgresql" (dict "pods" true "cidrs" (list "0.0.0.0/0" "::/0") "ports" (list 5432))
  "smtp" (dict "pods" true "cidrs" (list "0.0.0.0/0" "::/0") "ports" (list 25 465 587))
  "webhooks" (dict "pods" true "cidrs" (list "0.0.0.0/0" "::/0") "ports" (list 443 80 9093))
-}}
{{- $pods := dict
  "dcgm-exporter" (dict "labels" (list "nvidia-dcgm-exporter" "dcgm-exporter") "ports" (list 9400))
  "prometheus" (dict "labels" (list "prometheus") "ports" (list 9090))
-}}
{{- $changed := ((.context.Values.global | default dict).networkPolicy | default dict).outside | default dict -}}
{{- $changed = get $changed .outside | default dict -}}
{{- if and (not (hasKey $known .outside)) (not (hasKey $pods .outside)) -}}
{{- fail (printf "common: say in _network.tpl what a NetworkPolicy lets out to %s" .outside) -}}
{{- end -}}
{{- $usual := get $known .outside | default (get $pods .outside) -}}
# {{ .outside }}
- to:
{{- if or (hasKey $known .outside) $changed.cidrs }}
  {{- range $changed.cidrs | default $usual.cidrs }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  {{- if and $usual.pods (not $changed.cidrs) }}
  - namespaceSelector: {}
  {{- end }}
{{- else }}
  {{- range $usual.labels }}
  - namespaceSelector: {}
    podSelector: {matchLabels: {app.kubernetes.io/name: {{ . }}}}
  {{- end }}
{{- end }}
  ports:
  {{- range $changed.ports | default $usual.ports }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- end -}}

{{/* Labels of a part: (dict "context" $ "part" "prometheus"). */}}
{{- define "monitoring.selector" -}}
app.kubernetes.io/name: {{ .part }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/part-of: gpuloom
{{- end -}}

{{- define "monitoring.metadata" -}}
name: {{ include "common.joined" (dict "release" .context.Release.Name "name" .part) }}
namespace: {{ .namespace | default .context.Release.Namespace }}
labels:
  {{- include "monitoring.selector" . | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .context.Release.Service }}
  helm.sh/chart: {{ .context.Chart.Name }}-{{ .context.Chart.Version }}
{{- end -}}

{{/* Labels and annotations of a pod; `annotations` are its own. */}}
{{- define "monitoring.podMetadata" -}}
labels:
  {{- include "monitoring.selector" . | nindent 2 }}
  {{- with .context.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) .annotations .context.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "monitoring.image" -}}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end -}}
{{- end -}}

{{/* Every port that the roster lets Prometheus call, found by its name. */}}
{{- define "monitoring.scrapedPorts" -}}
{{- $ports := list -}}
{{- range (include "common.roster" . | fromYaml).services -}}
{{- range $name, $port := .ports -}}
{{- if has "prometheus" $port.callers -}}{{- $ports = append $ports $name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | sortAlpha | join "|" -}}
{{- end -}}

{{- define "monitoring.configuration" -}}
global: {scrape_interval: 10s, scrape_timeout: 8s, evaluation_interval: 15s}
rule_files: [/etc/prometheus/rules/*.yaml]
{{- with .Values.prometheus.alertmanagers }}
alerting:
  alertmanagers:
  - static_configs: [{targets: {{ toJson . }}}]
{{- end }}
scrape_configs:
- job_name: prometheus
  static_configs: [{targets: ["localhost:9090"]}]
- job_name: gpuloom
  honor_labels: true
  kubernetes_sd_configs:
  - role: pod
    namespaces: {names: {{ list .Release.Namespace (include "common.agentNamespace" .) | uniq | toJson }}}
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_part_of], regex: gpuloom, action: keep}
  - {source_labels: [__meta_kubernetes_pod_container_port_name], regex: {{ include "monitoring.scrapedPorts" . | quote }}, action: keep}
  - {source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_name], target_label: job}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  - {source_labels: [__meta_kubernetes_pod_node_name], target_label: node}
{{- end -}}

{{/* Everything that a service of the roster needs. A chart's only template is {{ include "common.service" . }}. */}}
{{- define "common.service" -}}
{{- $row := include "common.row" . | fromYaml -}}
{{- range $part := list "rbac" "quota" "workload" "endpoint" "budget" "network" "monitor" "certificate" "claim" }}
{{- with include (printf "common.%s" $part) (dict "context" $ "row" $row) | trim }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The roster with the port numbers of global.ports: {service: {port: number}}. */}}
{{- define "common.portedRoster" -}}
{{- $roster := include "common.roster" . | fromYaml -}}
{{- range $service, $ports := ((.Values.global | default dict).ports | default dict) -}}
{{- if not (hasKey $roster.services $service) -}}
{{- fail (printf "global.ports.%s: there is no such service" $service) -}}
{{- end -}}
{{- $row := get $roster.services $service -}}
{{- range $name, $number := $ports -}}
{{- if not (hasKey $row.ports $name) -}}
{{- fail (printf "global.ports.%s.%s: there is no such port; there are %s" $service $name (keys $row.ports | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $_ := set (get $row.ports $name) "moved" true -}}
{{- $_ := set (get $row.ports $name) "number" (int $number) -}}
{{- end -}}
{{- end -}}
{{- toYaml $roster -}}
{{- end -}}

{{/* This service's row, and as `calls` where those are that it calls. */}}
{{- define "common.row" -}}
{{- $services := (include "common.portedRoster" . | fromYaml).services -}}
{{- if not (hasKey $services .Chart.Name) -}}
{{- fail (printf "%s is no service of the roster" .Chart.Name) -}}
{{- end -}}
{{- $row := get $services .Chart.Name -}}
{{- $calls := list -}}
{{- range $name, $other := $services -}}
{{- range $port := $other.ports -}}
{{- if has $.Chart.Name $port.callers -}}
{{- $calls = append $calls (dict "service" $name "port" $port.number "address" (ternary "" $other.address (or (eq $other.kind "daemon") (ne $port.setting "GPULOOM_GRPC_PORT")))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (set $row "calls" $calls) -}}
{{- end -}}

{{- define "common.metadata" -}}
{{- $ := .context -}}
name: {{ .name | default (include "common.fullname" $) }}
namespace: {{ .namespace | default (include "common.namespace" $) }}
labels:
  {{- include "common.labels" $ | nindent 2 }}
{{- end -}}

{{- define "common.endpoint" -}}
{{- $ := .context -}}
{{- if ne .row.kind "daemon" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "common.metadata" . | nindent 2 }}
  {{- with $.Values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $.Values.service.type }}
  {{- if and (eq .row.kind "replicas") (eq $.Values.service.type "ClusterIP") .row.ports.grpc }}
  # Readers choose among all replicas themselves.
  clusterIP: None
  {{- end }}
  selector:
    {{- include "common.selectorLabels" $ | nindent 4 }}
    {{- if $.Values.service.leaderOnly }}
    gpuloom.dev/leader: "true"
    {{- end }}
  ports:
  {{- range $name, $port := .row.ports }}
  - name: {{ $name }}
    port: {{ $port.number }}
    targetPort: {{ $name }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "common.budget" -}}
{{- $ := .context -}}
{{- if and (ne .row.kind "daemon") $.Values.podDisruptionBudget.enabled (gt (int $.Values.replicas) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ $.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "common.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- end -}}

{{/*
GKE lets pods of Kubernetes' own priority classes into a namespace only where a quota counts them. It limits nothing.
*/}}
{{- define "common.quota" -}}
{{- $global := .context.Values.global | default dict -}}
{{- $class := .context.Values.priorityClassName | default $global.priorityClassName | default "" -}}
{{- if and $global.systemPriorityQuotas (hasPrefix "system-" $class) -}}
apiVersion: v1
kind: ResourceQuota
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  hard: {pods: 1G}
  scopeSelector:
    matchExpressions:
    - {scopeName: PriorityClass, operator: In, values: [{{ $class }}]}
{{- end }}
{{- end -}}

{{/* global.monitoring.podMonitors: auto asks whether the cluster knows them. */}}
{{- define "common.monitor" -}}
{{- $ := .context -}}
{{- $wanted := (($.Values.global | default dict).monitoring | default dict).podMonitors | default "auto" | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor")) -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  {{- include "common.metadata" . | nindent 2 }}
    {{- with $.Values.podMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $.Values.podMonitor.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "common.selectorLabels" $ | nindent 6 }}
  podMetricsEndpoints:
  {{- range $name, $port := .row.ports }}
  {{- if has "prometheus" $port.callers }}
  - port: {{ $name }}
    path: /metrics
    interval: {{ $.Values.podMonitor.interval }}
    scrapeTimeout: {{ $.Values.podMonitor.scrapeTimeout }}
    honorLabels: true
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* By cert-manager; where the authority is our own, the chart certificates makes the Secret. */}}
{{- define "common.certificate" -}}
{{- $ := .context -}}
{{- $certificates := ($.Values.global | default dict).certificates | default dict -}}
{{- if and (eq ($certificates.mode | default "self-managed") "cert-manager") (not $.Values.tls.secretName) -}}
{{ include "common.certManagerCertificate" (dict "context" $ "identity" .row.identity "name" (include "common.tlsSecret" $) "namespace" (include "common.namespace" $)) }}
{{- end }}
{{- end -}}

{{- define "common.certManagerCertificate" -}}
{{- $certificates := .context.Values.global.certificates -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  secretName: {{ .name }}
  commonName: {{ .identity }}
  uris: ["spiffe://gpuloom/{{ .identity }}"]
  dnsNames:
  - {{ .identity | replace "_" "-" }}.gpuloom
  - {{ trimSuffix "-tls" .name }}.{{ .namespace }}.svc
  usages: [digital signature, server auth, client auth]
  privateKey: {algorithm: ECDSA, size: 256, encoding: PKCS8, rotationPolicy: Always}
  duration: {{ mul 24 (int ($certificates.days | default 90)) }}h
  renewBefore: {{ mul 8 (int ($certificates.days | default 90)) }}h
  issuerRef:
    {{- $issuer := $certificates.issuerRef | default dict }}
    group: cert-manager.io
    kind: {{ $issuer.kind | default "ClusterIssuer" }}
    name: {{ $issuer.name | default (printf "%s-ca" .context.Release.Name) }}
{{- end -}}

{{- define "common.claim" -}}
{{- $ := .context -}}
{{- with $.Values.persistence }}
{{- if and .enabled (not .existingClaim) -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "common.metadata" (dict "context" $) | nindent 2 }}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .size }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "common.workload" -}}
{{- $ := .context -}}
{{- $daemon := eq .row.kind "daemon" -}}
{{- include "common.checkReplicas" . -}}
apiVersion: apps/v1
kind: {{ if $daemon }}DaemonSet{{ else }}Deployment{{ end }}
metadata:
  {{- include "common.metadata" . | nindent 2 }}
  {{- with $.Values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not $daemon }}
  replicas: {{ $.Values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      {{- include "common.selectorLabels" $ | nindent 6 }}
  {{ if $daemon }}updateStrategy{{ else }}strategy{{ end }}:
    {{- include "common.updateStrategy" . | nindent 4 }}
  template:
    metadata:
      labels:
        {{- include "common.labels" $ | nindent 8 }}
        {{- with $.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ $.Chart.Name }}
        {{- with $.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "common.pod" . | nindent 6 }}
{{- end -}}

{{/* A store in a file is one pod's, and a service that there is only one of stays so: said here, not by a pod that waits. */}}
{{- define "common.checkReplicas" -}}
{{- $values := .context.Values -}}
{{- if and (ne .row.kind "daemon") (gt (int $values.replicas) 1) -}}
{{- $what := printf "%s.replicas is %d" .context.Chart.Name (int $values.replicas) -}}
{{- if eq .row.kind "single" -}}
{{- fail (printf "%s, but two of it would read everything twice: leave it at 1" $what) -}}
{{- end -}}
{{- if or $values.persistence.enabled (hasPrefix "sqlite:" (toString $values.settings.GPULOOM_DATABASE_URL)) -}}
{{- fail (printf "%s, but its store is a file, which one pod can use: give it PostgreSQL by extraEnvFrom, empty settings.GPULOOM_DATABASE_URL, and set persistence.enabled to false" $what) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "common.updateStrategy" -}}
{{- if .context.Values.updateStrategy -}}
{{ toYaml .context.Values.updateStrategy }}
{{- else if eq .row.kind "daemon" -}}
type: RollingUpdate
rollingUpdate: {maxUnavailable: 10%}
{{- else if or .context.Values.persistence.enabled (eq .row.kind "single") -}}
# A disk is one pod's at a time, and so is the work of a service that there is only one of.
type: Recreate
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end -}}
{{- end -}}

{{- define "common.pod" -}}
{{- $ := .context -}}
{{- $global := $.Values.global | default dict -}}
serviceAccountName: {{ include "common.serviceAccountName" $ }}
automountServiceAccountToken: true
# Variables that Kubernetes makes of Services could be taken for settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $.Values.terminationGracePeriodSeconds }}
{{- with concat ($global.imagePullSecrets | default list) $.Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- with $.Values.priorityClassName | default $global.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $.Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $.Values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- if $.Values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- if $.Values.hostPID }}
hostPID: true
{{- end }}
{{- with $.Values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" $.Values.hostNetwork) }}
dnsPolicy: {{ . }}
{{- end }}
{{- with $.Values.hostAliases }}
hostAliases:
{{ toYaml . }}
{{- end }}
{{- with concat ($global.tolerations | default list) $.Values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- with $.Values.nodeSelector | default (ternary dict ($global.nodeSelector | default dict) (eq .row.kind "daemon")) }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.affinity }}
affinity:
  {{- tpl (toYaml .) $ | nindent 2 }}
{{- end }}
{{- if ne .row.kind "daemon" }}
{{ include "common.spread" $ }}
{{- end }}
securityContext:
  {{- toYaml $.Values.podSecurityContext | nindent 2 }}
{{- with $.Values.initContainers }}
initContainers:
{{ tpl (toYaml .) $ }}
{{- end }}
containers:
- name: {{ $.Chart.Name }}
  {{- include "common.container" . | nindent 2 }}
{{- with $.Values.extraContainers }}
{{ tpl (toYaml .) $ }}
{{- end }}
volumes:
- name: tls
  secret: {secretName: {{ include "common.tlsSecret" $ }}, defaultMode: 0440}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if $.Values.persistence.enabled }}
- name: data
  persistentVolumeClaim: {claimName: {{ $.Values.persistence.existingClaim | default (include "common.fullname" $) }}}
{{- else if $.Values.persistence.ephemeral }}
- {name: data, emptyDir: {}}
{{- end }}
{{- with concat $.Values.volumes $.Values.extraVolumes }}
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a pod that is no service's. */}}
{{- define "common.podMetadata" -}}
labels:
  {{- include "common.labels" . | nindent 2 }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where such a pod may run, before whom, and by which secrets its images are pulled. */}}
{{- define "common.placement" -}}
{{- $global := .Values.global | default dict -}}
{{- with concat ($global.imagePullSecrets | default list) .Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- with .Values.priorityClassName | default $global.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with concat ($global.tolerations | default list) .Values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- with .Values.nodeSelector | default $global.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- tpl (toYaml .) $ | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "common.spread" -}}
topologySpreadConstraints:
{{- with .Values.topologySpreadConstraints }}
{{ tpl (toYaml .) $ }}
{{- else }}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "common.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "common.container" -}}
{{- $ := .context -}}
image: {{ include "common.image" (dict "context" $ "image" $.Values.image "name" $.Chart.Name) }}
imagePullPolicy: {{ include "common.pullPolicy" (dict "context" $ "image" $.Values.image) }}
{{- with $.Values.command }}
command: {{ toJson . }}
{{- end }}
{{- with $.Values.extraArgs }}
args: {{ tpl (toJson .) $ }}
{{- end }}
env:
{{ include "common.environment" . }}
{{- with concat ($.Values.envFrom | default list) $.Values.extraEnvFrom }}
envFrom:
{{ tpl (toYaml .) $ }}
{{- end }}
ports:
{{- range $name, $port := .row.ports }}
- {name: {{ $name }}, containerPort: {{ $port.number }}, protocol: TCP}
{{- end }}
startupProbe:
  httpGet: {path: /healthz, port: http}
  {{- toYaml $.Values.startupProbe | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  {{- toYaml $.Values.livenessProbe | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  {{- toYaml $.Values.readinessProbe | nindent 2 }}
{{- with $.Values.lifecycle }}
lifecycle:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- toYaml $.Values.resources | nindent 2 }}
securityContext:
  {{- toYaml $.Values.securityContext | nindent 2 }}
volumeMounts:
- {name: tls, mountPath: /etc/gpuloom/tls, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if or $.Values.persistence.enabled $.Values.persistence.ephemeral }}
- {name: data, mountPath: {{ $.Values.persistence.mountPath }}}
{{- end }}
{{- with concat $.Values.volumeMounts $.Values.extraVolumeMounts }}
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}

{{/* Numbers of a values file are floats, which would become 5e+06. */}}
{{- define "common.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}

{{/* The roster's addresses and ports, certificates, who this pod is; then the chart's and the user's settings. */}}
{{- define "common.environment" -}}
{{- $ := .context -}}
{{- $settings := dict
  "GPULOOM_TLS_CERT_FILE" "/etc/gpuloom/tls/tls.crt"
  "GPULOOM_TLS_KEY_FILE" "/etc/gpuloom/tls/tls.key"
  "GPULOOM_TLS_CA_FILE" "/etc/gpuloom/tls/ca.crt"
  "GPULOOM_DRAIN_TIMEOUT" (printf "%ds" (max 1 (sub (int $.Values.terminationGracePeriodSeconds) 2)))
-}}
{{- range .row.calls -}}
{{- if .address -}}
{{- $own := printf "%s.%s.svc:%d" (include "common.nameOf" (dict "context" $ "service" .service)) $.Release.Namespace (int .port) -}}
{{- $_ := set $settings .address (get $.Values.addresses .service | default $own) -}}
{{- end -}}
{{- end -}}
{{- if contains "common.leaseRules" ($.Files.Get "rbac.yaml") -}}
{{- $_ := set $settings (.row.address | replace "_ADDRESS" "_LEASE_NAME") (include "common.fullname" $) -}}
{{- end -}}
{{- range .row.ports -}}
{{- if .moved -}}{{- $_ := set $settings .setting (toString .number) -}}{{- end -}}
{{- end -}}
{{- range $name, $value := (($.Values.global | default dict).settings | default dict) -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- range $name, $value := $.Values.settings -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- /* What is said twice is told once, as it was said last: a server-side apply refuses a list that names one twice. */ -}}
{{- $variables := tpl (concat $.Values.env $.Values.extraEnv | toYaml) $ | fromYamlArray -}}
{{- $said := dict -}}
{{- range $index, $one := $variables -}}{{- $_ := set $said $one.name $index -}}{{- end -}}
- name: GPULOOM_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: GPULOOM_POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: GPULOOM_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- range $name := keys $settings | sortAlpha }}
{{- $value := tpl (include "common.text" (get $settings $name)) $ }}
{{- if and $value (not (hasKey $said $name)) }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- range $index, $one := $variables }}
{{- if eq (get $said $one.name) $index }}
- {{- toYaml $one | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

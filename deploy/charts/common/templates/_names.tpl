{{/* What a service is called: by its own name, or by the one that the product documents print. */}}
{{- define "common.printedName" -}}
{{- $printed := dict "autoscaler" "controller" "controller" "workloads" -}}
{{- if hasPrefix "gpu-autoscaler/" .context.Template.BasePath -}}
{{- get $printed .service | default .service -}}
{{- else -}}
{{- .service -}}
{{- end -}}
{{- end -}}

{{- define "common.name" -}}
{{- .Values.nameOverride | default (include "common.printedName" (dict "context" . "service" .Chart.Name)) -}}
{{- end -}}

{{/*
<release>-<name> in the 52 characters that a CronJob may have. What does not fit is cut off the release's name, which a hash
then stands for: two services of a release never share a name.
*/}}
{{- define "common.joined" -}}
{{- $room := int (sub 51 (len .name)) -}}
{{- if le (len .release) $room -}}
{{- printf "%s-%s" .release .name -}}
{{- else -}}
{{- printf "%s-%s-%s" (.release | trunc (int (sub $room 6)) | trimSuffix "-") (sha256sum .release | trunc 5) .name -}}
{{- end -}}
{{- end -}}

{{/* The name of a service, which is the release's own if that is called like it. */}}
{{- define "common.named" -}}
{{- if eq .release .name -}}{{- .name -}}{{- else -}}{{- include "common.joined" . -}}{{- end -}}
{{- end -}}

{{/* Where another service of this release is. */}}
{{- define "common.nameOf" -}}
{{- include "common.named" (dict "release" .context.Release.Name "name" (include "common.printedName" .)) -}}
{{- end -}}

{{- define "common.fullname" -}}
{{- .Values.fullnameOverride | default (include "common.named" (dict "release" .Release.Name "name" (include "common.name" .))) -}}
{{- end -}}

{{/* Of objects without a namespace: <release>:<service>. */}}
{{- define "common.clusterName" -}}
{{- printf "%s:%s" .Release.Name (include "common.name" .) -}}
{{- end -}}

{{- define "common.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "common.fullname" .) -}}
{{- end -}}

{{/* Agents need more of their host than a restricted namespace allows, so they have one of their own. In a whole without agents
     nobody makes it, so nothing is made in it. */}}
{{- define "common.agentNamespace" -}}
{{- $global := .Values.global | default dict -}}
{{- if or .Chart.IsRoot $global.agents -}}
{{- tpl ($global.agentNamespace | default .Release.Namespace) . -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{- define "common.namespace" -}}
{{- if eq .Chart.Name "node-agent" -}}{{ include "common.agentNamespace" . }}{{- else -}}{{ .Release.Namespace }}{{- end -}}
{{- end -}}

{{- define "common.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: gpuloom
{{- end -}}

{{/* The scheduler for GPU pods that name none; empty where the cluster's own asks GPULoom. */}}
{{- define "common.secondScheduler" -}}
{{- $scheduler := (.Values.global | default dict).scheduler | default dict -}}
{{- if $scheduler.second -}}{{- $scheduler.name -}}{{- end -}}
{{- end -}}

{{- define "common.labels" -}}
{{ include "common.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | default .Chart.Version | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image of a program of ours: (dict "context" $ "image" .Values.image "name" "discovery"). */}}
{{- define "common.image" -}}
{{- $shared := (.context.Values.global | default dict).image | default dict -}}
{{- $registry := .image.registry | default $shared.registry -}}
{{- $repository := .image.repository | default (printf "gpuloom/%s" .name) -}}
{{- $tag := .image.tag | default $shared.tag | default .context.Chart.AppVersion -}}
{{- with $registry }}{{ . }}/{{ end -}}
{{- $repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end -}}

{{- define "common.pullPolicy" -}}
{{- $shared := (.context.Values.global | default dict).image | default dict -}}
{{- .image.pullPolicy | default $shared.pullPolicy | default "IfNotPresent" -}}
{{- end -}}

{{- define "common.tlsSecret" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "common.nameOf" (dict "context" . "service" .Chart.Name))) -}}
{{- end -}}

{{/* Names of the admission policies that are installed, or the word none. */}}
{{- define "extender.policies" -}}
{{- $wanted := .Values.options.admissionPolicies.enabled | toString -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version)) -}}
{{ .Release.Name }}-allocation-annotations,{{ .Release.Name }}-runtime-classes
{{- else -}}
none
{{- end -}}
{{- end -}}

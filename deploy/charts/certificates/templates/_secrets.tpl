{{- define "certificates.selfManaged" -}}
{{- $mode := ((.Values.global).certificates).mode | default "self-managed" -}}
{{- if not (has $mode (list "self-managed" "cert-manager" "external")) -}}
{{- fail (printf "global.certificates.mode must be self-managed, cert-manager or external, not %s" $mode) -}}
{{- end -}}
{{- eq $mode "self-managed" -}}
{{- end -}}

{{/* Who gets a certificate, in which Secret: {identity: namespace/name}. */}}
{{- define "certificates.secrets" -}}
{{- range $service, $row := (include "common.roster" . | fromYaml).services }}
{{ $row.identity }}: {{ ternary (include "common.agentNamespace" $) $.Release.Namespace (eq $service "node-agent") }}/{{ include "common.nameOf" (dict "context" $ "service" $service) }}-tls
{{- end }}
{{- range (include "common.roster" . | fromYaml).clients }}
{{ . }}: {{ $.Release.Namespace }}/{{ include "certificates.secretOfClient" (dict "context" $ "client" .) }}
{{- end }}
{{- end -}}

{{- define "certificates.secretOfClient" -}}
{{- if eq .client "kube_scheduler" -}}
{{ include "common.nameOf" (dict "context" .context "service" "scheduler") }}-tls
{{- else -}}
{{ include "common.joined" (dict "release" .context.Release.Name "name" (.client | replace "_" "-")) }}-tls
{{- end -}}
{{- end -}}

{{- define "certificates.authority" -}}
{{ .Release.Namespace }}/{{ .Release.Name }}-ca
{{- end -}}

{{/* Names of the Secrets in a namespace. */}}
{{- define "certificates.names" -}}
{{- $names := list -}}
{{- range append (include "certificates.secrets" .context | fromYaml | values) (include "certificates.authority" .context) -}}
{{- if hasPrefix (printf "%s/" $.namespace) . -}}
{{- $names = append $names (trimPrefix (printf "%s/" $.namespace) .) -}}
{{- end -}}
{{- end -}}
{{- $names | sortAlpha | join ", " -}}
{{- end -}}

{{- define "certificates.template" -}}
metadata:
  {{- include "common.podMetadata" . | nindent 2 }}
spec:
  {{- include "certificates.pod" . | nindent 2 }}
{{- end -}}

{{- define "certificates.pod" -}}
serviceAccountName: {{ include "common.serviceAccountName" . }}
automountServiceAccountToken: true
enableServiceLinks: false
restartPolicy: OnFailure
{{- with include "common.placement" . | trim }}
{{ . }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
containers:
- name: certificates
  image: {{ include "common.image" (dict "context" . "image" .Values.image "name" "cli") }}
  imagePullPolicy: {{ include "common.pullPolicy" (dict "context" . "image" .Values.image) }}
  command: [python, -m, gpuloom.setup, certificates]
  args:
  - --authority={{ include "certificates.authority" . }}
  - --days={{ ((.Values.global).certificates).days | default 90 }}
  {{- range $identity, $secret := include "certificates.secrets" . | fromYaml }}
  - --secret={{ $identity }}={{ $secret }}
  {{- end }}
  {{- with .Values.extraArgs }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  {{- with .Values.extraEnv }}
  env:
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
{{- end -}}

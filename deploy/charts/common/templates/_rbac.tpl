{{/*
An account and its rights, which the chart's rbac.yaml says and nothing else:
  cluster: rules in all namespaces;  own: rules in the release's namespace;  others: {namespace: rules}
*/}}
{{- define "common.rbac" -}}
{{- $ := .context -}}
{{- if $.Values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "common.metadata" (dict "context" $ "name" (include "common.serviceAccountName" $)) | nindent 2 }}
  {{- with $.Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- if $.Values.rbac.create }}
{{- $rights := tpl ($.Files.Get "rbac.yaml") $ | fromYaml }}
{{- if hasKey $rights "Error" }}{{ fail (printf "rbac.yaml of %s: %s" $.Chart.Name $rights.Error) }}{{ end }}
{{- with concat ($rights.cluster | default list) $.Values.rbac.extraRules }}
{{ include "common.role" (dict "context" $ "kind" "ClusterRole" "name" (include "common.clusterName" $) "rules" .) }}
{{- end }}
{{- with $rights.own }}
{{ include "common.role" (dict "context" $ "kind" "Role" "name" (include "common.fullname" $) "namespace" (include "common.namespace" $) "rules" .) }}
{{- end }}
{{- range $namespace, $rules := $rights.others }}
{{ include "common.role" (dict "context" $ "kind" "Role" "name" (include "common.clusterName" $) "namespace" $namespace "rules" $rules) }}
{{- end }}
{{- range $name, $binding := $rights.bindings }}
{{ include "common.binding" (dict "context" $ "name" (printf "%s-%s" (include "common.clusterName" $) $name) "namespace" $binding.namespace "role" $binding.role "kind" $binding.kind) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* For the rbac.yaml of a service whose replicas choose a leader: one Lease, with the service's name. */}}
{{- define "common.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "common.fullname" . }}]
  verbs: [get, update]
{{- end -}}

{{- define "common.role" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "common.labels" .context | nindent 4 }}
rules:
{{ toYaml .rules }}
{{ include "common.binding" (dict "context" .context "name" .name "namespace" .namespace "role" .name "kind" .kind) }}
{{- end -}}

{{/* Of the chart's account to a role; without a namespace it holds in all of them. */}}
{{- define "common.binding" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if .namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "common.labels" .context | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
- kind: ServiceAccount
  name: {{ include "common.serviceAccountName" .context }}
  namespace: {{ include "common.namespace" .context }}
{{- end -}}

{{/* What pods name, and the name of its lease. */}}
{{- define "scheduler.name" -}}
{{- ((.Values.global).scheduler).name | default "gpuloom-scheduler" -}}
{{- end -}}

{{/* What `gpuloom scheduler-config` prints, with the names of this release. */}}
{{- define "scheduler.configuration" -}}
{{- $configuration := .Files.Get "files/kube-scheduler-config.yaml" | fromYaml -}}
{{- $lease := dict "resourceName" (include "scheduler.name" .) "resourceNamespace" .Release.Namespace -}}
{{- $_ := set $configuration "leaderElection" (merge $lease $configuration.leaderElection) -}}
{{- $_ := set $configuration "profiles" (list (dict "schedulerName" (include "scheduler.name" .))) -}}
{{- $extender := first $configuration.extenders -}}
{{- $row := get (include "common.portedRoster" . | fromYaml).services "scheduler-extender" -}}
{{- $service := include "common.nameOf" (dict "context" . "service" "scheduler-extender") -}}
{{- $own := printf "https://%s.%s.svc:%d" $service .Release.Namespace (int $row.ports.https.number) -}}
{{- $_ := set $extender "urlPrefix" (.Values.extenderUrl | default $own) -}}
{{- $_ := set $extender "weight" (int .Values.weight) -}}
{{- toYaml (mergeOverwrite $configuration .Values.configuration) -}}
{{- end -}}

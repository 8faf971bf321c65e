{{/* Seconds of "90s", "3m" or "1h"; a bare number is seconds. */}}
{{- define "gpuloom.seconds" -}}
{{- $text := toString . -}}
{{- $units := dict "s" 1 "m" 60 "h" 3600 -}}
{{- $unit := regexFind "[smh]$" $text -}}
{{- mul (trimSuffix $unit $text | float64 | int) (get $units $unit | default 1) -}}
{{- end -}}

{{- define "gpuloom.checkAutoscaling" -}}
{{- with .Values.autoscaling -}}
{{- if not .provider -}}
{{- fail "autoscaling.provider must be aws, gcp, azure or simulated when autoscaling.enabled is true" -}}
{{- end -}}
{{- if gt (int .limits.minNodes) (int .limits.maxNodes) -}}
{{- fail (printf "autoscaling.limits.minNodes (%d) is above maxNodes (%d)" (int .limits.minNodes) (int .limits.maxNodes)) -}}
{{- end -}}
{{- if ge (float64 .scaleDown.threshold) (float64 .scaleUp.threshold) -}}
{{- fail "autoscaling.scaleDown.threshold must be below autoscaling.scaleUp.threshold: nodes would come and go without end" -}}
{{- end -}}
{{- $tiers := addf .multiTier.spotPercentage .multiTier.onDemandPercentage .multiTier.reservedPercentage -}}
{{- if and .multiTier.enabled (gt $tiers 1.000001) -}}
{{- fail (printf "autoscaling.multiTier: spotPercentage, onDemandPercentage and reservedPercentage add up to %.2f; they are shares of 1" $tiers) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "pool=group,pool=group" of a map, in the order of its names. */}}
{{- define "gpuloom.groups" -}}
{{- $pairs := list -}}
{{- range $pool, $group := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $pool $group) -}}
{{- end -}}
{{- $pairs | sortAlpha | join "," | quote -}}
{{- end -}}

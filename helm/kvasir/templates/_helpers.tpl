{{/* Names. */}}
{{- define "kvasir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: the longest suffix, and a StatefulSet's own `-0` and hash, must fit into 63. */}}
{{- define "kvasir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "kvasir.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvasir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component, given as (dict "root" $ "component" "server"). Never changes: selectors cannot. */}}
{{- define "kvasir.selector" -}}
app.kubernetes.io/name: {{ include "kvasir.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kvasir.labels" -}}
{{ include "kvasir.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: kvasir
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The metadata of an object: (dict "root" $ "component" "server" "name" "…" "annotations" (dict …) "labels" (dict …)). */}}
{{- define "kvasir.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "kvasir.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kvasir.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Bytes of `64MiB` (the service's way) or `20Gi`, `500M` (Kubernetes'). */}}
{{- define "kvasir.bytes" -}}
{{- $text := kindIs "string" . | ternary (toString .) (int64 . | toString) -}}
{{- $scales := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- $unit := regexReplaceAll "^[0-9.]+ *" $text "" | trimSuffix "B" -}}
{{- if not (hasKey $scales $unit) -}}
{{- fail (printf "%s is not a size as 64MiB or 20Gi" $text) -}}
{{- end -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $scales $unit) | int64 -}}
{{- end -}}

{{/* Milliseconds of `250ms`, `1s`, `2m` or `1h`. */}}
{{- define "kvasir.millis" -}}
{{- $scales := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- if not (hasKey $scales $unit) -}}
{{- fail (printf "%s is not a duration as 250ms, 1s, 2m or 1h" .) -}}
{{- end -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $scales $unit) -}}
{{- end -}}

{{/* Seconds of `30s` or `1m30s`. */}}
{{- define "kvasir.seconds" -}}
{{- $scales := dict "s" 1 "m" 60 "h" 3600 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | int64) (get $scales (regexFind "[hms]$" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* A setting of the service as it will be in force: (list $ "gc" "grace"). */}}
{{- define "kvasir.setting" -}}
{{- $root := index . 0 -}}
{{- $section := index . 1 -}}
{{- $key := index . 2 -}}
{{- $default := get (include "kvasir.defaults" $root | fromYaml) (printf "%s.%s" $section $key) -}}
{{- $value := dig $section $key $default $root.Values.config -}}
{{- kindIs "string" $value | ternary $value (int64 $value | toString) -}}
{{- end -}}

{{/* Whether callers need a credential; empty: no. */}}
{{- define "kvasir.tenantsFile" -}}
{{- with .Values.auth.tenants -}}
{{- if or .existingSecret.name .tokens .quotas -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.jwt" -}}
{{- with .Values.auth.jwt -}}
{{- if or .configMap .existingSecret -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.hasAuth" -}}
{{- if or (include "kvasir.tenantsFile" .) (include "kvasir.jwt" .) -}}yes{{- end -}}
{{- end -}}

{{- define "kvasir.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{- include "kvasir.fullname" . }}-tls
{{- else -}}
{{- .Values.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.scheme" -}}
{{- if include "kvasir.tlsSecret" . -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{/* Address of the service inside the cluster. */}}
{{- define "kvasir.host" -}}
{{ include "kvasir.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "kvasir.url" -}}
{{ include "kvasir.scheme" . }}://{{ include "kvasir.host" . }}:{{ .Values.service.port }}
{{- end -}}

{{- define "kvasir.s3Endpoint" -}}
{{- if .Values.minio.enabled -}}
http://{{ include "kvasir.fullname" . }}-minio.{{ .Release.Namespace }}.svc:9000
{{- else -}}
{{- .Values.store.s3.endpoint -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.minioSecret" -}}
{{- default (printf "%s-minio" (include "kvasir.fullname" .)) .Values.minio.existingSecret -}}
{{- end -}}

{{/* Fewest replicas there are meant to be. */}}
{{- define "kvasir.replicasMin" -}}
{{- if .Values.autoscaling.enabled -}}
{{- .Values.autoscaling.minReplicas | int -}}
{{- else -}}
{{- .Values.replicas | int -}}
{{- end -}}
{{- end -}}

{{/* Whether a budget limits the drains of nodes. With one replica at times, one of `minAvailable` would block them. */}}
{{- define "kvasir.hasBudget" -}}
{{- $most := .Values.autoscaling.enabled | ternary .Values.autoscaling.maxReplicas .Values.replicas | int -}}
{{- $least := include "kvasir.replicasMin" . | int -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (gt $most 1) (or (gt $least 1) (kindIs "invalid" .minAvailable)) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.terminationGrace" -}}
{{- $needed := add .Values.drain.preStopSeconds .Values.drain.graceSeconds 10 -}}
{{- default $needed .Values.terminationGracePeriodSeconds | int -}}
{{- end -}}

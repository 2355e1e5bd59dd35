{{/*
Settings of the service that the validation looks at, where values do not give them: the service's own defaults.
`helm/check` compares them with kvasir-server.example.toml.
*/}}
{{- define "kvasir.defaults" -}}
server.connections_max: 1024
server.connection_memory: 128KiB
hot.memory: 256MiB
hot.disk: 4GiB
cache.index_memory: 192MiB
upload.memory: 64MiB
gc.interval: 600s
gc.grace: 900s
gc.capacity: 0B
direct.url_ttl: 300s
{{- end -}}

{{/* Settings that the chart makes, as section → key → value. */}}
{{- define "kvasir.derived" -}}
{{- $auth := dict -}}
{{- if include "kvasir.tenantsFile" . -}}
{{- $_ := set $auth "tenants_file" "/etc/kvasir/tenants/tenants.toml" -}}
{{- end -}}
{{- if include "kvasir.jwt" . -}}
{{- with .Values.auth.jwt -}}
{{- $_ := set $auth "jwks_file" "/etc/kvasir/jwt/jwks.json" -}}
{{- $_ := set $auth "jwt_issuer" .issuer -}}
{{- $_ := set $auth "jwt_audience" .audience -}}
{{- $_ := set $auth "jwt_tenant_claim" .tenantClaim -}}
{{- $_ := set $auth "jwt_role_claim" .roleClaim -}}
{{- end -}}
{{- end -}}
server:
  listen: {{ printf "%s:%d" .Values.listenAddress (int .Values.ports.http) | quote }}
  ops_listen: {{ printf "%s:%d" .Values.listenAddress (int .Values.ports.ops) | quote }}
  drain_grace: {{ printf "%ds" (int .Values.drain.graceSeconds) }}
  {{- if .Values.auth.allowUnauthenticated }}
  allow_unauthenticated: true
  {{- end }}
{{- with .Values.s3Front }}
{{- if .enabled }}
s3:
  listen: {{ printf "%s:%d" $.Values.listenAddress (int $.Values.ports.s3) | quote }}
  {{- with .domains }}
  domains: {{ join "," . | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- with $auth }}
auth:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if include "kvasir.tlsSecret" . }}
tls:
  certificate_file: /etc/kvasir/tls/tls.crt
  key_file: /etc/kvasir/tls/tls.key
  {{- if .Values.tls.clientCa.existingSecret.name }}
  client_ca_file: /etc/kvasir/client-ca/ca.crt
  {{- end }}
{{- end }}
{{- if .Values.encryption.existingSecret.name }}
encryption:
  keys_file: /etc/kvasir/keys/keys.toml
{{- end }}
store:
  {{- if eq .Values.store.type "file" }}
  url: file:///var/lib/kvasir-store/data
  {{- else }}
  {{- with .Values.store.s3 }}
  url: {{ printf "s3://%s/%s" .bucket (trimAll "/" .prefix) | trimSuffix "/" | quote }}
  {{- with include "kvasir.s3Endpoint" $ }}
  endpoint: {{ . | quote }}
  {{- end }}
  {{- with .publicEndpoint }}
  public_endpoint: {{ . | quote }}
  {{- end }}
  {{- with .region }}
  region: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- end }}
cache:
  directory: /var/lib/kvasir/cache
{{- if ne .Values.store.type "file" }}
cluster:
  members: {{ printf "dns+srv://_api._tcp.%s-headless" (include "kvasir.fullname" .) | quote }}
{{- end }}
{{- if ne .Values.gc.mode "service" }}
gc:
  interval: 0s
{{- end }}
{{- end -}}

{{/* kvasir.toml. */}}
{{- define "kvasir.toml" -}}
{{- $config := mergeOverwrite (deepCopy .Values.config) (include "kvasir.derived" . | fromYaml) -}}
{{- range $section := keys $config | sortAlpha }}
{{- with get $config $section }}
[{{ $section }}]
{{- range $key := keys . | sortAlpha }}
{{ $key }} = {{ include "kvasir.tomlValue" (get (get $config $section) $key) }}
{{- end }}
{{ end }}
{{- end }}
{{- end -}}

{{/* Strings of JSON are strings of TOML; numbers come as floats and are whole by the schema. */}}
{{- define "kvasir.tomlValue" -}}
{{- if kindIs "string" . -}}
{{- toJson . -}}
{{- else if kindIs "bool" . -}}
{{- . -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end -}}

{{/* tenants.toml of auth.tenants.tokens and .quotas. */}}
{{- define "kvasir.tenants" -}}
{{- range .Values.auth.tenants.tokens }}
[[token]]
{{- $token := . }}
{{- range $key := keys . | sortAlpha }}
{{ $key }} = {{ include "kvasir.tomlValue" (get $token $key) }}
{{- end }}
{{ end }}
{{- range $tenant, $quota := .Values.auth.tenants.quotas }}
[tenant.{{ toJson $tenant }}]
{{- range $key := keys $quota | sortAlpha }}
{{ $key }} = {{ include "kvasir.tomlValue" (get $quota $key) }}
{{- end }}
{{ end }}
{{- end -}}

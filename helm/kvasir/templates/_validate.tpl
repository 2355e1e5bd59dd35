{{/*
Combinations that the schema cannot see. All mistakes are reported at once, each as a sentence that says what to do.
The StatefulSet and the ConfigMap call it, because they are always rendered.
*/}}
{{- define "kvasir.validate" -}}
{{- $mistakes := list -}}
{{- range list "names" "store" "config" "credentials" "auth" "tls" "gc" "profiles" "life" "sizes" "network" "minio" -}}
{{- $found := include (printf "kvasir.validate.%s" .) $ | trim -}}
{{- if $found -}}
{{- $mistakes = append $mistakes $found -}}
{{- end -}}
{{- end -}}
{{- if $mistakes -}}
{{- fail (printf "\n\nthese values cannot be installed:\n%s\n" (join "\n" $mistakes)) -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.store" -}}
{{- $s3 := .Values.store.s3 -}}
{{- if and (eq .Values.store.type "s3") (not $s3.bucket) }}
  store.s3.bucket is not set: name the bucket, or set store.type=file for one replica over a volume
{{- end -}}
{{- if eq .Values.store.type "file" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}
  store.type=file keeps everything on the volume of one pod: set replicas=1 and autoscaling.enabled=false, or use store.type=s3
{{- end -}}
{{- if eq .Values.gc.mode "cronJob" }}
  gc.mode=cronJob does not reach the volume of store.type=file: use gc.mode=service
{{- end -}}
{{- if $s3.bucket }}
  store.s3.bucket is set, but store.type=file does not use it: set store.type=s3, or remove the bucket
{{- end -}}
{{- end -}}
{{- if and $s3.caBundle.configMap $s3.caBundle.secret }}
  store.s3.caBundle names a ConfigMap and a Secret: name only one
{{- end -}}
{{- if and $s3.existingSecret.name (hasKey .Values.serviceAccount.annotations "eks.amazonaws.com/role-arn") }}
  store.s3.existingSecret would override the role in serviceAccount.annotations: set only one
{{- end -}}
{{- end -}}

{{/* Settings that the chart makes, each with the value that it makes it from. */}}
{{- define "kvasir.owners" -}}
server.listen: listenAddress and ports.http
server.ops_listen: listenAddress and ports.ops
s3.listen: s3Front.enabled and ports.s3
s3.domains: s3Front.domains
server.drain_grace: drain.graceSeconds
server.allow_unauthenticated: auth.allowUnauthenticated
auth.tenants_file: auth.tenants
auth.jwks_file: auth.jwt
auth.jwt_issuer: auth.jwt.issuer
auth.jwt_audience: auth.jwt.audience
auth.jwt_tenant_claim: auth.jwt.tenantClaim
auth.jwt_role_claim: auth.jwt.roleClaim
tls.certificate_file: tls
tls.key_file: tls
tls.client_ca_file: tls.clientCa
encryption.keys_file: encryption.existingSecret
store.url: store.s3.bucket and store.s3.prefix
store.endpoint: store.s3.endpoint
store.public_endpoint: store.s3.publicEndpoint
store.region: store.s3.region
cache.directory: cache
{{- end -}}

{{- define "kvasir.validate.config" -}}
{{- range $setting, $owner := include "kvasir.owners" . | fromYaml -}}
{{- $parts := splitList "." $setting -}}
{{- if hasKey (get $.Values.config (first $parts) | default (dict)) (last $parts) }}
  config.{{ $setting }} is set by the chart: set {{ $owner }}
{{- end -}}
{{- end -}}
{{- if ne .Values.store.type "file" -}}
{{- range list "members" "advertise" "zone" -}}
{{- if hasKey ($.Values.config.cluster | default (dict)) . }}
  config.cluster.{{ . }} is set by the chart for each pod: remove it
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.credentials" -}}
{{- range list "access_key_id" "secret_access_key" "session_token" -}}
{{- if hasKey ($.Values.config.store | default (dict)) . }}
  config.store.{{ . }} would be readable in a ConfigMap: put credentials into a Secret and name it in store.s3.existingSecret
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.config.encryption | default (dict)) "keys" }}
  config.encryption.keys would be readable in a ConfigMap: put the keys into a Secret and name it in encryption.existingSecret
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if and (has .name (list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" "KVASIR_STORE_ACCESS_KEY_ID" "KVASIR_STORE_SECRET_ACCESS_KEY" "KVASIR_STORE_SESSION_TOKEN" "KVASIR_ENCRYPTION_KEYS")) (hasKey . "value") }}
  extraEnv has {{ .name }} as text: put it into a Secret and name the Secret in store.s3.existingSecret or encryption.existingSecret
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.auth" -}}
{{- $auth := .Values.auth -}}
{{- $inline := or $auth.tenants.tokens $auth.tenants.quotas -}}
{{- if and (not (include "kvasir.hasAuth" .)) (not $auth.allowUnauthenticated) }}
  callers are not authenticated: set auth.tenants or auth.jwt, or set auth.allowUnauthenticated=true if everyone who reaches the port may read and write everything
{{- end -}}
{{- if and (include "kvasir.hasAuth" .) $auth.allowUnauthenticated }}
  auth.allowUnauthenticated=true contradicts auth.tenants and auth.jwt: remove one
{{- end -}}
{{- if and $auth.tenants.existingSecret.name $inline }}
  auth.tenants.existingSecret is a whole tenants file: move auth.tenants.tokens and quotas into it, or remove the Secret
{{- end -}}
{{- if and $auth.tenants.quotas (not $auth.tenants.tokens) (not (include "kvasir.jwt" .)) (not $auth.tenants.existingSecret.name) }}
  auth.tenants.quotas without tokens or auth.jwt: no caller could authenticate
{{- end -}}
{{- if and $auth.jwt.configMap $auth.jwt.existingSecret }}
  auth.jwt names a ConfigMap and a Secret: name only one
{{- end -}}
{{- if and (include "kvasir.jwt" .) (not (and $auth.jwt.issuer $auth.jwt.audience)) }}
  auth.jwt needs issuer and audience: otherwise tokens for other services would be accepted
{{- end -}}
{{- if and (or $auth.jwt.issuer $auth.jwt.audience) (not (include "kvasir.jwt" .)) }}
  auth.jwt has an issuer or audience but no keys: name them in auth.jwt.configMap or auth.jwt.existingSecret
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.tls" -}}
{{- with .Values.tls -}}
{{- if and .existingSecret .certManager.enabled }}
  tls.existingSecret and tls.certManager.enabled both provide the certificate: set only one
{{- end -}}
{{- if and .certManager.enabled (not .certManager.issuerRef.name) }}
  tls.certManager.enabled needs tls.certManager.issuerRef.name: name the issuer of the certificate
{{- end -}}
{{- if and .clientCa.existingSecret.name (not .existingSecret) (not .certManager.enabled) }}
  tls.clientCa requires certificates of clients, but the service itself has none: set tls.existingSecret or tls.certManager
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.gc" -}}
{{- $interval := dig "gc" "interval" "" .Values.config -}}
{{- $capacity := include "kvasir.bytes" (include "kvasir.setting" (list . "gc" "capacity")) | int64 -}}
{{- if and (eq .Values.gc.mode "service") $interval (eq (include "kvasir.millis" $interval | int64) 0) }}
  gc.mode=service with config.gc.interval={{ $interval }} collects nothing: set gc.mode=none if that is intended
{{- end -}}
{{- if and (ne .Values.gc.mode "service") $interval }}
  config.gc.interval has no effect with gc.mode={{ .Values.gc.mode }}: remove it, or set gc.mode=service
{{- end -}}
{{- if and (ne .Values.gc.mode "service") (gt $capacity 0) }}
  config.gc.capacity needs gc.mode=service: {{ eq .Values.gc.mode "none" | ternary "nothing collects" "a job does not know what replicas use" }}
{{- end -}}
{{- if dig "direct" "enabled" true .Values.config -}}
{{- $ttl := include "kvasir.setting" (list . "direct" "url_ttl") -}}
{{- $grace := include "kvasir.setting" (list . "gc" "grace") -}}
{{- if gt (include "kvasir.millis" $ttl | int64) (include "kvasir.millis" $grace | int64) }}
  config.direct.url_ttl={{ $ttl }} is longer than config.gc.grace={{ $grace }}: a URL would outlive what it names
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.profiles" -}}
{{- with .Values.profiles.retrain -}}
{{- if and .enabled (include "kvasir.hasAuth" $) (not .tokenSecret.name) }}
  profiles.retrain.enabled needs a token of role admin: put it into a Secret and name that in profiles.retrain.tokenSecret
{{- end -}}
{{- if and .enabled $.Values.tls.clientCa.existingSecret.name }}
  profiles.retrain.enabled has no client certificate, which tls.clientCa requires: set it to false
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.names" -}}
{{- $name := include "kvasir.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
  {{ $name }} cannot name a Service, whose name begins with a letter and has no dots: set fullnameOverride
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.life" -}}
{{- $replicas := include "kvasir.replicasMin" . | int -}}
{{- $needed := add .Values.drain.preStopSeconds .Values.drain.graceSeconds 10 | int -}}
{{- if lt (include "kvasir.terminationGrace" . | int) $needed }}
  terminationGracePeriodSeconds={{ .Values.terminationGracePeriodSeconds }} ends before the drain: it takes drain.preStopSeconds + drain.graceSeconds + 10 = {{ $needed }}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if include "kvasir.hasBudget" $ -}}
{{- if kindIs "invalid" .minAvailable -}}
{{- if has (toString .maxUnavailable) (list "0" "0%") }}
  podDisruptionBudget.maxUnavailable={{ .maxUnavailable }} blocks every drain of a node: allow one replica
{{- end -}}
{{- else -}}
{{- $needed := int .minAvailable -}}
{{- if kindIs "string" .minAvailable -}}
{{- /* Kubernetes rounds a percentage up to whole replicas. */ -}}
{{- $needed = div (add (mul (trimSuffix "%" .minAvailable | int) $replicas) 99) 100 | int -}}
{{- end -}}
{{- if ge $needed $replicas }}
  podDisruptionBudget.minAvailable={{ .minAvailable }} of {{ $replicas }} replicas blocks every drain of a node: require fewer
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if .enabled -}}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
  autoscaling.minReplicas={{ .minReplicas }} is above autoscaling.maxReplicas={{ .maxReplicas }}
{{- end -}}
{{- if and (eq (int .cpu.targetUtilization) 0) (not .egress.target) }}
  autoscaling.enabled has no metric: set autoscaling.cpu.targetUtilization or autoscaling.egress.target
{{- end -}}
{{- if and (gt (int .cpu.targetUtilization) 0) (not (dig "requests" "cpu" "" $.Values.resources)) }}
  autoscaling.cpu.targetUtilization is a percentage of resources.requests.cpu, which is not set: set it
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Bytes that a busy replica uses in addition to its caches: buffers of all the connections that it takes, and with TLS
what is encrypted ahead of them; requests to the store, chunks in flight; and where there is a capacity, what the
collector chooses among.
*/}}
{{- define "kvasir.workingBytes" -}}
{{- $capacity := include "kvasir.bytes" (include "kvasir.setting" (list . "gc" "capacity")) | int64 -}}
{{- $connections := include "kvasir.setting" (list . "server" "connections_max") | int64 -}}
{{- $each := include "kvasir.bytes" (include "kvasir.setting" (list . "server" "connection_memory")) | int64 -}}
{{- if include "kvasir.tlsSecret" . -}}
{{- $each = add $each 262144 -}}
{{- end -}}
{{- add 402653184 (mul $connections $each) (gt $capacity 0 | ternary 419430400 0) -}}
{{- end -}}

{{- define "kvasir.validate.sizes" -}}
{{- $disk := include "kvasir.setting" (list . "hot" "disk") -}}
{{- $diskBytes := include "kvasir.bytes" $disk | int64 -}}
{{- $room := .Values.cache.persistence.enabled | ternary .Values.cache.persistence.size .Values.cache.emptyDir.sizeLimit -}}
{{- $name := .Values.cache.persistence.enabled | ternary "cache.persistence.size" "cache.emptyDir.sizeLimit" -}}
{{- if and (not (dig "hot" "directory" "" .Values.config)) (gt $diskBytes (div (mul (include "kvasir.bytes" $room | int64) 9) 10)) }}
  config.hot.disk={{ $disk }} needs a {{ $name }} above {{ $room }}, a tenth of which is for the hot index and waiting uploads: raise it, or lower config.hot.disk
{{- end -}}
{{- with dig "limits" "memory" "" .Values.resources -}}
{{- $limit := include "kvasir.bytes" . | int64 -}}
{{- $needed := include "kvasir.workingBytes" $ | int64 -}}
{{- range list (list $ "hot" "memory") (list $ "cache" "index_memory") (list $ "upload" "memory") -}}
{{- $needed = add $needed (include "kvasir.bytes" (include "kvasir.setting" .) | int64) -}}
{{- end -}}
{{- if lt $limit $needed }}
  resources.limits.memory={{ . }} is below {{ div (add $needed 1048575) 1048576 }}Mi, the sum of config.hot.memory, config.cache.index_memory, config.upload.memory and {{ div (include "kvasir.workingBytes" $ | int64) 1048576 }}Mi for connections, requests and the collector: raise it, or lower those
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.network" -}}
{{- with .Values.networkPolicy -}}
{{- if and .enabled (not .clients) }}
  networkPolicy.enabled without networkPolicy.clients blocks every caller: name the engines, as [{podSelector: …, namespaceSelector: …}]
{{- end -}}
{{- if and .enabled (not .scrapers) $.Values.metrics.serviceMonitor.enabled }}
  networkPolicy.enabled blocks the scrapes of metrics.serviceMonitor: name Prometheus in networkPolicy.scrapers
{{- end -}}
{{- end -}}
{{- with .Values.metrics.serviceMonitor -}}
{{- if and .enabled (gt (include "kvasir.seconds" .scrapeTimeout | int64) (include "kvasir.seconds" .interval | int64)) }}
  metrics.serviceMonitor.scrapeTimeout={{ .scrapeTimeout }} is longer than metrics.serviceMonitor.interval={{ .interval }}: Prometheus refuses that, lower it
{{- end -}}
{{- end -}}
{{- if eq (int .Values.ports.http) (int .Values.ports.ops) }}
  ports.http and ports.ops are both {{ .Values.ports.http }}: give probes and metrics a port of their own
{{- end -}}
{{- if and (contains ":" .Values.listenAddress) (not (hasPrefix "[" .Values.listenAddress)) }}
  listenAddress={{ .Values.listenAddress }} is an IPv6 address: put it into brackets, as "[::]"
{{- end -}}
{{- if .Values.s3Front.enabled -}}
{{- if has (int .Values.ports.s3) (list (int .Values.ports.http) (int .Values.ports.ops)) }}
  ports.s3 and another port are both {{ .Values.ports.s3 }}: give the S3 front a port of its own
{{- end -}}
{{- if not (or .Values.auth.tenants.existingSecret.name .Values.auth.allowUnauthenticated) }}
  s3Front.enabled without auth.tenants.existingSecret accepts no caller: put access keys into a tenants file, and that into a Secret
{{- end -}}
{{- end -}}
{{- with .Values.service -}}
{{- if ne .type "LoadBalancer" -}}
{{- range $key := eq .type "ClusterIP" | ternary (list "nodePort" "externalTrafficPolicy") list | concat (list "loadBalancerClass" "loadBalancerSourceRanges") -}}
{{- if get $.Values.service $key }}
  service.{{ $key }} has no effect with service.type={{ $.Values.service.type }}: remove it
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.s3Front.enabled (eq (int .port) (int .s3Port)) }}
  service.port and service.s3Port are both {{ .port }}: give the S3 front a port of its own
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.validate.minio" -}}
{{- if .Values.minio.enabled -}}
{{- if not .Values.minio.image }}
  minio.enabled needs minio.image, with a tag or digest that you have checked
{{- end -}}
{{- if .Values.store.s3.endpoint }}
  minio.enabled installs a store, but store.s3.endpoint names another: remove one
{{- end -}}
{{- if .Values.store.s3.existingSecret.name }}
  minio.enabled generates credentials: to use your own, name them in minio.existingSecret instead of store.s3.existingSecret
{{- end -}}
{{- if eq .Values.store.type "file" }}
  minio.enabled needs store.type=s3
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether `helm test` can call: it needs a token where the service asks for one, and has no client certificate. */}}
{{- define "kvasir.canTest" -}}
{{- $token := or (not (include "kvasir.hasAuth" .)) .Values.selfTest.tokenSecret.name -}}
{{- if and .Values.selfTest.enabled $token (not .Values.tls.clientCa.existingSecret.name) -}}yes{{- end -}}
{{- end -}}

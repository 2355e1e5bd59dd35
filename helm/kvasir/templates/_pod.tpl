{{/* Environment of whatever works on the store: credentials by reference, or none for the pod's own identity. */}}
{{- define "kvasir.storeEnv" -}}
{{- if eq .Values.store.type "s3" -}}
{{- with .Values.store.s3 -}}
{{- $secret := .existingSecret.name -}}
{{- if $.Values.minio.enabled -}}
{{- $secret = include "kvasir.minioSecret" $ -}}
{{- end -}}
{{- if $secret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ .existingSecret.accessKeyIdKey }}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ .existingSecret.secretAccessKeyKey }}
{{- with .existingSecret.sessionTokenKey }}
- name: AWS_SESSION_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ . }}
{{- end }}
{{- end }}
{{- if .virtualHostedStyle }}
- name: AWS_VIRTUAL_HOSTED_STYLE_REQUEST
  value: "true"
{{- end }}
{{- if or .caBundle.configMap .caBundle.secret }}
- name: SSL_CERT_FILE
  value: /etc/kvasir/store-ca/ca.crt
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Mounts of the configuration and of the files it names. Folders, never subPath: changes must arrive. */}}
{{- define "kvasir.configMounts" -}}
- name: config
  mountPath: /etc/kvasir/config
  readOnly: true
{{- if include "kvasir.tenantsFile" . }}
- name: tenants
  mountPath: /etc/kvasir/tenants
  readOnly: true
{{- end }}
{{- if include "kvasir.jwt" . }}
- name: jwt
  mountPath: /etc/kvasir/jwt
  readOnly: true
{{- end }}
{{- if include "kvasir.tlsSecret" . }}
- name: tls
  mountPath: /etc/kvasir/tls
  readOnly: true
{{- end }}
{{- if .Values.tls.clientCa.existingSecret.name }}
- name: client-ca
  mountPath: /etc/kvasir/client-ca
  readOnly: true
{{- end }}
{{- if .Values.encryption.existingSecret.name }}
- name: keys
  mountPath: /etc/kvasir/keys
  readOnly: true
{{- end }}
{{- with .Values.store.s3.caBundle }}
{{- if or .configMap .secret }}
- name: store-ca
  mountPath: /etc/kvasir/store-ca
  readOnly: true
{{- end }}
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "kvasir.configVolumes" -}}
- name: config
  configMap:
    name: {{ include "kvasir.fullname" . }}
{{- if include "kvasir.tenantsFile" . }}
{{- with .Values.auth.tenants.existingSecret }}
- name: tenants
  secret:
    secretName: {{ default (printf "%s-tenants" (include "kvasir.fullname" $)) .name }}
    defaultMode: 0440
    items: [{key: {{ if .name }}{{ .key }}{{ else }}tenants.toml{{ end }}, path: tenants.toml}]
{{- end }}
{{- end }}
{{- with .Values.auth.jwt }}
{{- if .configMap }}
- name: jwt
  configMap:
    name: {{ .configMap }}
    items: [{key: {{ .key }}, path: jwks.json}]
{{- else if .existingSecret }}
- name: jwt
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: jwks.json}]
{{- end }}
{{- end }}
{{- with include "kvasir.tlsSecret" . }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}
{{- with .Values.tls.clientCa.existingSecret }}
{{- if .name }}
- name: client-ca
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: ca.crt}]
{{- end }}
{{- end }}
{{- with .Values.encryption.existingSecret }}
{{- if .name }}
- name: keys
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: keys.toml}]
{{- end }}
{{- end }}
{{- with .Values.store.s3.caBundle }}
{{- if .configMap }}
- name: store-ca
  configMap:
    name: {{ .configMap }}
    items: [{key: {{ .key }}, path: ca.crt}]
{{- else if .secret }}
- name: store-ca
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: ca.crt}]
{{- end }}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end -}}

{{/* Where a pod that is a client of the service finds it, with its credential and the CA. */}}
{{- define "kvasir.clientArgs" -}}
- --url
- {{ include "kvasir.url" . }}
{{- if include "kvasir.hasAuth" . }}
- --token-file
- /etc/kvasir/token/token
{{- end }}
{{- if and (include "kvasir.tlsSecret" .) .Values.tls.caKey }}
- --ca-file
- /etc/kvasir/ca/ca.crt
{{- end }}
{{- end -}}

{{- define "kvasir.clientMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if include "kvasir.hasAuth" . }}
- name: token
  mountPath: /etc/kvasir/token
  readOnly: true
{{- end }}
{{- if and (include "kvasir.tlsSecret" .) .Values.tls.caKey }}
- name: ca
  mountPath: /etc/kvasir/ca
  readOnly: true
{{- end }}
{{- end -}}

{{/* (dict "root" $ "tokenSecret" {name, key}). */}}
{{- define "kvasir.clientVolumes" -}}
- name: tmp
  emptyDir: {}
{{- if include "kvasir.hasAuth" .root }}
- name: token
  secret:
    secretName: {{ .tokenSecret.name }}
    defaultMode: 0440
    items: [{key: {{ .tokenSecret.key }}, path: token}]
{{- end }}
{{- with .root.Values.tls.caKey }}
{{- with include "kvasir.tlsSecret" $.root }}
- name: ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: {{ $.root.Values.tls.caKey }}, path: ca.crt}]
{{- end }}
{{- end }}
{{- end -}}

{{/* What all pods have in common: identity, image secrets, placement. */}}
{{- define "kvasir.podBase" -}}
serviceAccountName: {{ include "kvasir.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kvasir.probe" -}}
httpGet:
  path: {{ .path }}
  port: ops
  scheme: HTTP
{{ toYaml .timing }}
{{- end -}}

{{- define "kvasir.spread" -}}
{{- if .Values.topologySpreadConstraints -}}
{{- toYaml .Values.topologySpreadConstraints -}}
{{- else -}}
{{- range $key, $when := dict "topology.kubernetes.io/zone" .Values.topologySpread.zone "kubernetes.io/hostname" .Values.topologySpread.node }}
{{- if $when }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: {{ $when }}
  labelSelector:
    matchLabels:
      {{- include "kvasir.selector" (dict "root" $ "component" "server") | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

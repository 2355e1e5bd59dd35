{{/* Apart from NOTES.txt, so that tests can render it without a cluster. */}}
{{- define "kvasir.notes" -}}
Kvasir {{ .Chart.AppVersion }} is release {{ .Release.Name }} in namespace {{ .Release.Namespace }}, at {{ include "kvasir.url" . }}

1. Wait until it is ready, and test it:

     kubectl --namespace {{ .Release.Namespace }} rollout status statefulset/{{ include "kvasir.fullname" . }}
{{- if include "kvasir.canTest" . }}
     helm test --namespace {{ .Release.Namespace }} {{ .Release.Name }} --logs
{{- else if .Values.tls.clientCa.existingSecret.name }}
     (helm test is left out: it has no client certificate)
{{- else if .Values.selfTest.enabled }}
     (helm test is left out: name a token of role write in selfTest.tokenSecret)
{{- end }}

2. Connect an engine. In the cluster:

     use kvasir_client::{BearerToken, Client, ClientConfig};
     let client = Client::new("{{ include "kvasir.url" . }}".parse()?, ClientConfig {
{{- if include "kvasir.hasAuth" . }}
         token: Some(BearerToken::new(&std::fs::read_to_string("/etc/kvasir/token")?)?), // role write
{{- end }}
{{- if include "kvasir.tlsSecret" . }}
         ca_certificates: Some(std::fs::read("/etc/kvasir/ca.crt")?),
{{- end }}
         ..ClientConfig::default()
     })?;

   From here:

     kubectl --namespace {{ .Release.Namespace }} port-forward service/{{ include "kvasir.fullname" . }} 7480:{{ .Values.service.port }}
     kvasir admin top --url {{ include "kvasir.scheme" . }}://127.0.0.1:7480
{{- if .Values.auth.allowUnauthenticated }}

Nobody is authenticated: whoever reaches the port may read and write everything. Set auth.tenants or auth.jwt
{{- if not .Values.networkPolicy.enabled }}, or at least networkPolicy.enabled{{ end }}.
{{- else if not (include "kvasir.tlsSecret" .) }}

Credentials go over the network in the clear: set tls.existingSecret or tls.certManager, unless a mesh encrypts.
{{- end }}
{{- if eq .Values.store.type "file" }}

Everything is on the volume of one pod: good for trying out, not for keeping.
{{- end }}
{{- if .Values.minio.enabled }}

The MinIO beside it is for development: what it holds goes with its pod.
{{- end }}
{{- end -}}

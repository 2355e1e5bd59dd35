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

     let kvasir = kvasir_client::Kvasir::builder("{{ include "kvasir.url" . }}")
{{- if include "kvasir.hasAuth" . }}
         .token(std::fs::read_to_string("/etc/kvasir/token")?.trim()) // role write
{{- end }}
{{- if include "kvasir.tlsSecret" . }}
         .rest(kvasir_client::rest::ClientConfig {
             ca_certificates: Some(std::fs::read("/etc/kvasir/ca.crt")?),
             ..Default::default()
         })
{{- end }}
         .model(spec) // kvasir model spec prints it
         .connect()
         .await?;

   From here, a replica's metrics:

     kubectl --namespace {{ .Release.Namespace }} port-forward statefulset/{{ include "kvasir.fullname" . }} 7481:{{ .Values.ports.ops }}
     kvasir admin top --url http://127.0.0.1:7481
{{- if .Values.auth.allowUnauthenticated }}

Callers are not authenticated: everyone who reaches the port may read and write everything. Set auth.tenants or auth.jwt
{{- if not .Values.networkPolicy.enabled }}, or at least networkPolicy.enabled{{ end }}.
{{- else if not (include "kvasir.tlsSecret" .) }}

Credentials go over the network in the clear: set tls.existingSecret or tls.certManager, unless a mesh encrypts.
{{- end }}
{{- if eq .Values.store.type "file" }}

Everything is on the volume of one pod: use it to try Kvasir out, not to keep data.
{{- end }}
{{- if .Values.minio.enabled }}

MinIO is for development: its data is lost with its pod.
{{- end }}
{{- end -}}

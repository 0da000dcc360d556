{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "slipstream.selector" -}}
app.kubernetes.io/name: slipstream
{{- end }}

{{- define "slipstream.labels" -}}
{{ include "slipstream.selector" . }}
app.kubernetes.io/component: service-proxy
{{- end }}

{{- /* What kube-proxy's configuration says, with what the chart decides. */ -}}
{{- define "slipstream.config" -}}
{{- $chart := dict
  "apiVersion" "kubeproxy.config.k8s.io/v1alpha1"
  "kind" "KubeProxyConfiguration"
  "clientConnection" (dict "kubeconfig" "/var/lib/slipstream/kubeconfig.conf") }}
{{- if or .Values.metrics.enabled .Values.metrics.serviceMonitor.enabled }}
{{- $_ := set $chart "metricsBindAddress" "0.0.0.0:10249" }}
{{- end }}
{{- toYaml (mergeOverwrite $chart .Values.config) }}
{{- $own := deepCopy .Values.slipstream }}
{{- if .Values.tlsSecret }}
{{- $own = merge $own (dict "tlsCertFile" "/run/secrets/slipstream-tls/tls.crt" "tlsPrivateKeyFile" "/run/secrets/slipstream-tls/tls.key") }}
{{- end }}
{{- with $own }}
---
{{ toYaml (mergeOverwrite (dict "apiVersion" "slipstream.config/v1beta1" "kind" "SlipstreamConfiguration") .) }}
{{- end }}
{{- end }}

{{/* Common parts of the daemon's pod and executor pods. */}}

{{/* Resources with a share of the node's disk: [resources, size]. */}}
{{- define "compactord.resources" -}}
{{- $resources := deepCopy (index . 0) }}
{{- $disk := dict "ephemeral-storage" (index . 1) }}
{{- range $kind := list "requests" "limits" }}
{{- $_ := set $resources $kind (merge (get $resources $kind | default dict) $disk) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "compactord.warehouseMount" -}}
{{- if .Values.warehouse.existingClaim -}}
- name: warehouse
  mountPath: {{ .Values.warehouse.mountPath }}
  {{- with .Values.warehouse.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "compactord.warehouseVolume" -}}
{{- with .Values.warehouse.existingClaim -}}
- name: warehouse
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end }}

{{/* Template of executor pods. Spark adds the container's image, arguments, cores and memory. */}}
{{- define "compactord.executorPod" -}}
{{- $executors := .Values.executors -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "compactord.executorLabels" . | nindent 4 }}
    app.kubernetes.io/part-of: compactord
    {{- with .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $executors.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $executors.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $executors.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  containers:
    - name: executor
      {{- with $executors.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $executors.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      resources:
        {{- include "compactord.resources" (list dict $executors.scratchSize) | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        # The working directory, where files of the driver are unpacked.
        - name: home
          mountPath: /var/lib/compactord
        {{- if $executors.existingSecret }}
        - name: secret
          mountPath: /run/secrets/compactord
          readOnly: true
        {{- end }}
        {{- with include "compactord.warehouseMount" . }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $executors.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: {{ $executors.scratchSize }}
    - name: home
      emptyDir:
        sizeLimit: {{ $executors.scratchSize }}
    {{- with $executors.existingSecret }}
    - name: secret
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- with include "compactord.warehouseVolume" . }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $executors.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $executors.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $executors.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $executors.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

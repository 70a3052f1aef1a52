{{- define "compactord.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* 52 leaves room for suffixes as long as "-executor". */}}
{{- define "compactord.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "compactord.selectorLabels" -}}
app.kubernetes.io/name: {{ include "compactord.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Selects only the daemon: executors have another component. */}}
{{- define "compactord.daemonLabels" -}}
{{ include "compactord.selectorLabels" . }}
app.kubernetes.io/component: daemon
{{- end }}

{{- define "compactord.executorLabels" -}}
{{ include "compactord.selectorLabels" . }}
app.kubernetes.io/component: executor
{{- end }}

{{- define "compactord.testLabels" -}}
{{ include "compactord.selectorLabels" . }}
app.kubernetes.io/component: test
{{- end }}

{{- define "compactord.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "compactord.daemonLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: compactord
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "compactord.image" -}}
{{- $name := printf "%s/%s" .Values.image.registry .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $name .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "compactord.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "compactord.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "compactord.executorAccountName" -}}
{{- if .Values.executors.serviceAccount.create }}
{{- default (printf "%s-executor" (include "compactord.fullname" .)) .Values.executors.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.executors.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "compactord.driverName" -}}
{{ include "compactord.fullname" . }}-driver
{{- end }}

{{/* Port in the configuration; the schema guarantees a number. */}}
{{- define "compactord.httpPort" -}}
{{- $port := dig "service" "http" "port" 9464 .Values.config | int }}
{{- if not $port }}
{{- fail "config.service.http.port: 0 means any free port; probes need a certain one" }}
{{- end }}
{{- $port }}
{{- end }}

{{/* Seconds of a duration of the configuration: [key, text]. */}}
{{- define "compactord.seconds" -}}
{{- $key := index . 0 }}
{{- $text := index . 1 | toString | trim }}
{{- $amount := regexFind "^[0-9]+" $text }}
{{- $unit := regexReplaceAll "^[0-9]+" $text "" | trim | lower }}
{{- if regexMatch "^0+$" $text }}0
{{- else if or (not $amount) (not (has $unit (list "ms" "s" "sec" "secs" "second" "seconds" "m" "min" "minute" "minutes" "h" "hour" "hours"))) }}
{{- fail (printf "%s: %s is no duration with its unit, such as 300 s, 5 min or 1 h" $key $text) }}
{{- else if eq $unit "ms" }}{{ div (add (int64 $amount) 999) 1000 }}
{{- else if hasPrefix "s" $unit }}{{ int64 $amount }}
{{- else if hasPrefix "m" $unit }}{{ mul (int64 $amount) 60 }}
{{- else }}{{ mul (int64 $amount) 3600 }}
{{- end }}
{{- end }}

{{/* Grace period: the configuration's drain time, plus 30 s for Spark to end. */}}
{{- define "compactord.gracePeriodSeconds" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds }}
{{- $grace := dig "shutdown" "grace" "300 s" .Values.config }}
{{- add (include "compactord.seconds" (list "config.shutdown.grace" $grace)) 30 }}
{{- else }}
{{- .Values.terminationGracePeriodSeconds }}
{{- end }}
{{- end }}

{{/* Failures until the kubelet ends a start: later than the daemon, which logs the cause. */}}
{{- define "compactord.startupFailures" -}}
{{- $probe := .Values.probes.startup }}
{{- if kindIs "invalid" $probe.failureThreshold }}
{{- $timeout := dig "startup" "timeout" "5 min" .Values.config }}
{{- $seconds := add (include "compactord.seconds" (list "config.startup.timeout" $timeout)) 30 }}
{{- div (add $seconds $probe.periodSeconds -1) $probe.periodSeconds }}
{{- else }}
{{- $probe.failureThreshold }}
{{- end }}
{{- end }}

{{/* Memory of all concurrent merges in executors; the default is measured on the daemon's own pod. */}}
{{- define "compactord.executorsMemory" -}}
{{- $overhead := .Values.executors.memoryOverhead }}
{{- $amount := regexFind "^[0-9]+" $overhead | int64 }}
{{- printf "%d %sb" (mul $amount .Values.executors.instances) (regexFind "[kmgt]$" $overhead) }}
{{- end }}

{{/* Cores of a Spark inside the pod: its threads see all cores of the node, but may not use them. */}}
{{- define "compactord.cpuResource" -}}
{{- if dig "limits" "cpu" "" .Values.resources }}limits.cpu
{{- else if dig "requests" "cpu" "" .Values.resources }}requests.cpu
{{- end }}
{{- end }}

{{/* Reports all contradictions of the values. */}}
{{- define "compactord.check" -}}
{{- $config := .Values.config }}
{{- $fullname := include "compactord.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) }}
{{- fail (printf "objects of this release would be named %s, which is not a valid Service name: set fullnameOverride to a name of a-z, 0-9 and - that begins with a letter" $fullname) }}
{{- end }}
{{- if not .Values.image.registry }}
{{- fail "image.registry: give the registry that you pushed the image to, such as registry.example.com/data; without one, nodes would pull an image of this name from a public registry" }}
{{- end }}
{{- $master := dig "spark" "master" "" $config | default "" }}
{{- if and .Values.executors.enabled $master }}
{{- fail "config.spark.master and executors.enabled exclude each other: the chart sets the master of executor pods" }}
{{- end }}
{{- range $key, $value := dict "instances" "spark.executor.instances" "cores" "spark.executor.cores" "memoryOverhead" "spark.executor.memoryOverhead" }}
{{- if and $.Values.executors.enabled (or (hasKey (dig "spark" "conf" dict $config | default dict) $value) (hasKey $.Values.executors.conf $value)) }}
{{- fail (printf "%s is set by executors.%s" $value $key) }}
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled }}
{{- fail "serviceMonitor.enabled and podMonitor.enabled exclude each other: all would be scraped twice" }}
{{- end }}
{{- $bind := dig "service" "http" "bind" "0.0.0.0" $config }}
{{- if or (hasPrefix "127." $bind) (has $bind (list "localhost" "::1")) }}
{{- fail (printf "config.service.http.bind: %s cannot be reached by probes; remove it" $bind) }}
{{- end }}
{{- range $name, $catalog := $config.catalogs }}
{{- if regexMatch "^[A-Za-z][A-Za-z0-9+.-]*:" $catalog.warehouse }}
{{- if not (regexMatch "^(?i)(file|s3|s3a|s3n|gs|abfs|abfss|wasb|wasbs|oss|hdfs):" $catalog.warehouse) }}
{{- fail (printf "config.catalogs.%s.warehouse: %s is not supported yet; supported are mounted file systems, hdfs://, s3://, gs://, abfss:// and oss://" $name $catalog.warehouse) }}
{{- end }}
{{- end }}
{{- range $key, $value := dig "options" dict $catalog | default dict }}
{{- if and $.Values.executors.enabled (regexMatch "^(s3|s3a|fs|gs|azure|hadoop)[.]" $key) }}
{{- $text := $value | toString }}
{{- if and (contains "${file:/run/secrets/compactord/" $text) (not $.Values.executors.existingSecret) }}
{{- fail (printf "config.catalogs.%s.options.%s: executors read this file themselves; set executors.existingSecret" $name $key) }}
{{- end }}
{{- if and (contains "${env:" $text) (not $.Values.executors.extraEnv) (not $.Values.executors.extraEnvFrom) }}
{{- fail (printf "config.catalogs.%s.options.%s: executors read this variable themselves; set executors.extraEnv or executors.extraEnvFrom" $name $key) }}
{{- end }}
{{- end }}
{{- if and (regexMatch "(?i)(secret|password|token|access.?key|account.?key|[.]sas)" $key) (not (contains "${" ($value | toString))) (not (regexMatch "(?i)(provider|endpoint|token[.]file)" $key)) }}
{{- fail (printf "config.catalogs.%s.options.%s: do not put a secret into a ConfigMap; write ${file:/run/secrets/compactord/NAME} with existingSecret, or ${env:NAME} with extraEnvFrom" $name $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings of Spark for executor pods, as YAML, without those in the configuration. */}}
{{- define "compactord.sparkSettings" -}}
{{- $executors := .Values.executors }}
{{- $settings := dict
  "spark.driver.bindAddress" "0.0.0.0"
  "spark.driver.host" (printf "%s.%s.svc.%s" (include "compactord.driverName" .) .Release.Namespace $executors.clusterDomain)
  "spark.driver.port" ($executors.driverPort | toString)
  "spark.driver.blockManager.port" ($executors.blockManagerPort | toString)
  "spark.executor.instances" ($executors.instances | toString)
  "spark.executor.cores" ($executors.cores | toString)
  "spark.executor.memory" $executors.memory
  "spark.executor.memoryOverhead" $executors.memoryOverhead
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "compactord.executorAccountName" .)
  "spark.kubernetes.container.image" (include "compactord.image" .)
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" "${env:POD_NAME}"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.executor.podTemplateFile" "/etc/compactord-executor/pod.yaml"
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.executor.useDriverPodIP" "false"
  "spark.decommission.enabled" "true"
  "spark.kubernetes.decommission.script" "/opt/compactord/bin/decommission"
}}
{{- with $executors.cpuLimit }}
{{- $_ := set $settings "spark.kubernetes.executor.limit.cores" (. | toString) }}
{{- end }}
{{- with .Values.imagePullSecrets }}
{{- $names := list }}
{{- range . }}{{ $names = append $names .name }}{{ end }}
{{- $_ := set $settings "spark.kubernetes.container.image.pullSecrets" (join "," $names) }}
{{- end }}
{{- range $key, $value := $executors.conf }}{{ $_ := set $settings $key ($value | toString) }}{{ end }}
{{- range $key, $value := dig "spark" "conf" dict .Values.config | default dict }}{{ $_ := unset $settings $key }}{{ end }}
{{- toYaml $settings }}
{{- end }}

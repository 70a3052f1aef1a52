{{/* Egress of the pods: the ports of stores and databases in the configuration. */}}

{{/* Names of the catalogs whose tables are, or may be, behind a network, as JSON. */}}
{{- define "compactord.objectStores" -}}
{{- $names := list }}
{{- range $name, $catalog := .Values.config.catalogs }}
{{- $isUrl := and (regexMatch "^[A-Za-z][A-Za-z0-9+.-]*:" $catalog.warehouse) (not (regexMatch "^(?i)file:" $catalog.warehouse)) }}
{{- if or $isUrl (eq (dig "metastore" "filesystem" $catalog) "rest") }}
{{- $names = append $names $name }}
{{- end }}
{{- end }}
{{- sortAlpha $names | toJson }}
{{- end }}

{{/* Port of an endpoint: [key, text, port without one]. */}}
{{- define "compactord.endpointPort" -}}
{{- $text := index . 1 }}
{{- $rest := regexReplaceAll "^[A-Za-z]+://" $text "" | regexFind "^[^/?]*" }}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $rest) }}
{{- if $port }}{{ $port }}
{{- else if regexMatch "^(?i)http://" $text }}80
{{- else if regexMatch "^(?i)https://" $text }}443
{{- else }}{{ index . 2 }}
{{- end }}
{{- end }}

{{/* Ports of stores, as JSON; 443 also serves token issuers (STS, Entra ID, Google). */}}
{{- define "compactord.storePorts" -}}
{{- $ports := list }}
{{- range $name := include "compactord.objectStores" . | fromJsonArray }}
{{- $catalog := index $.Values.config.catalogs $name }}
{{- $options := dig "options" dict $catalog | default dict }}
{{- if regexMatch "^(?i)hdfs:" $catalog.warehouse }}
{{- /* A name node, and the usual port of data nodes. */}}
{{- $ports = concat $ports (list (include "compactord.endpointPort" (list "warehouse" $catalog.warehouse 8020) | int) 9866) }}
{{- else }}
{{- $ports = append $ports 443 }}
{{- end }}
{{- $plain := 443 }}
{{- range $key, $value := $options }}
{{- if and (regexMatch "[.](ssl[.]enabled|secure[.]connections|always[.]use[.]https)$" $key) (eq ($value | toString | lower) "false") }}{{ $plain = 80 }}{{ end }}
{{- end }}
{{- if not (regexMatch "^(?i)hdfs:" $catalog.warehouse) }}{{ $ports = append $ports $plain }}{{ end }}
{{- range $key, $value := $options }}
{{- /* A REST catalog's server vends keys, which workers also fetch. */}}
{{- $isServer := and (eq $key "uri") (eq (dig "metastore" "filesystem" $catalog) "rest") }}
{{- if or $isServer (regexMatch "^(s3|s3a|fs)[.].*(endpoint|storage[.]root[.]url)$|^(hadoop[.])?dfs[.]namenode[.]rpc-address[.]" $key) }}
{{- include "compactord.requireKnown" (list $ $name $key $value) }}
{{- $ports = append $ports (include "compactord.endpointPort" (list $key ($value | toString) $plain) | int) }}
{{- end }}
{{- end }}
{{- end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{/* Ports of the databases of JDBC catalogs, of the metastores of Hive catalogs, and of a Spark elsewhere, as JSON. */}}
{{- define "compactord.daemonPorts" -}}
{{- $ports := list }}
{{- range $name, $catalog := .Values.config.catalogs }}
{{- $uri := dig "options" "uri" "" $catalog | toString }}
{{- if and (eq (dig "metastore" "filesystem" $catalog) "hive") $uri }}
{{- include "compactord.requireKnown" (list $ $name "uri" $uri) }}
{{- range $address := splitList "," $uri }}
{{- $ports = append $ports (include "compactord.endpointPort" (list "uri" (trim $address) 9083) | int) }}
{{- end }}
{{- end }}
{{- if and (eq (dig "metastore" "filesystem" $catalog) "jdbc") (not (hasPrefix "jdbc:sqlite:" $uri)) }}
{{- include "compactord.requireKnown" (list $ $name "uri" $uri) }}
{{- $default := ternary 5432 3306 (hasPrefix "jdbc:postgresql:" $uri) }}
{{- $ports = append $ports (include "compactord.endpointPort" (list "uri" (trimPrefix "jdbc:" $uri) $default) | int) }}
{{- end }}
{{- end }}
{{- $master := dig "spark" "master" "" .Values.config | default "" }}
{{- if regexMatch "^(spark|sc)://" $master }}
{{- $ports = append $ports (include "compactord.endpointPort" (list "spark.master" $master (ternary 15002 7077 (hasPrefix "sc:" $master))) | int) }}
{{- end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{/* Refuses values given by reference, which the chart cannot resolve: [root, catalog, key, text]. */}}
{{- define "compactord.requireKnown" -}}
{{- $root := index . 0 }}
{{- $policy := $root.Values.networkPolicy }}
{{- if and $policy.enabled (contains "${" (index . 3 | toString)) (not $policy.extraEgress) }}
{{- fail (printf "config.catalogs.%s.options.%s: the chart cannot read a reference, so its network policy would block this address; set networkPolicy.extraEgress (and executorExtraEgress), or write the value itself" (index . 1) (index . 2)) }}
{{- end }}
{{- end }}

{{/* A rule for ports: [root, ports]. */}}
{{- define "compactord.configuredEgress" -}}
{{- with index . 1 | uniq -}}
- ports:
    {{- range . }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with (index $ 0).Values.networkPolicy.configuredTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
